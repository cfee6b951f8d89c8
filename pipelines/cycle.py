"""The wheel: evaluate, then cycle after cycle roll out, grade, validate and train, then evaluate again.

All state is in the tables and in finished checkpoint folders. A run killed at any moment goes on from the last commit:
a chunk whose rows are committed is not asked again, a cycle whose policy is committed is not trained again, and what a
killed attempt left half done is done afresh from the same rows.
"""

import contextlib
import signal
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType

from pipelines.admission import RunTasks, admit
from pipelines.graph import checks_app, run_chunk
from pipelines.image_record import record_image
from pipelines.plan import Chunk, Plan, make_plan
from pipelines.progress import Reporter
from pipelines.run_record import EventLog, RunError, RunRecord, create_run, find_run, library_versions, only_one
from pipelines.spec import RunSpec
from pipelines.spec_file import spec_hash
from sandboxes.backends.choose import provider_of
from sandboxes.pool import Pool
from sandboxes.protocol import SandboxProvider
from training.base_model import resolve_base_model
from training.batch import cut_batch
from training.checkpoint import checkpoint_dir, prune, remove_unfinished, save, weights_hash
from training.trainer import Trainer
from transforms.async_map import run_async
from transforms.episode import now_us
from transforms.grade.grade import GraderBroken, ImageUsed
from transforms.lake.errors import LakeError
from transforms.lake.sql import query
from transforms.lake.table import Lake
from transforms.quality.gate import QualityStop, check_cycle, raise_on_breach, warnings_of
from transforms.quality.past import past_of
from transforms.quality.tables import check_tables
from transforms.quality.validate import validate_rows
from transforms.rollout.engines import make_service
from transforms.rollout.policy import EngineLost, EngineService
from transforms.tally import TALLY


def run(spec: RunSpec, tasks: RunTasks, *, lake: Lake, spec_folder: Path, new: bool, reporter: Reporter) -> str:
    """Run the spec to its end, or go on with the run of it that was begun before; returns the run's id.

    Raises RunError, TaskInvalid, NotAModel, EngineError, SandboxError, StorageFailed, TableTooNew, QualityStop,
    GraderBroken, and KeyboardInterrupt when interrupted; the tables are consistent after each of them.
    """
    home = lake.work
    with only_one(home, spec.name), _interruptible() as signals, contextlib.ExitStack() as held:
        lake.ensure_tables()
        record = None if new else find_run(lake, spec)
        if record is not None and record.tasks_hash != tasks.tasks_hash:
            raise RunError(
                f"the tasks have changed since run {record.run_id} began; restore them, or start a new run with --new"
            )
        image = record_image(lake, spec.sandbox)
        sandbox = held.enter_context(_provider(spec, spec_folder))
        with only_one(home, "tasks.admission", wait=True):  # two runs would both find the same tasks new
            admit(tasks, lake=lake, sandbox=sandbox, spec=spec.sandbox)
        resumed = record is not None
        record = record or create_run(lake, spec, tasks.tasks_hash)
        events = EventLog(lake, record.run_id)
        events.record("resumed" if resumed else "started", versions=library_versions())
        try:
            _Wheel(spec, spec_folder, record, tasks, lake, sandbox, image, events, reporter).turn()
        except BaseException as error:
            with contextlib.suppress(LakeError, OSError):  # a full disk may be what ended the run
                events.record(_ending(error, signals), error=f"{type(error).__name__}: {error}"[:2000])
            raise
        events.record("finished")
        return record.run_id


@contextlib.contextmanager
def _provider(spec: RunSpec, spec_folder: Path) -> Generator[SandboxProvider]:
    """The run's sandboxes; what a pool still holds at the end is destroyed."""
    provider = provider_of(spec.sandbox, spec_folder)
    try:
        yield provider
    finally:
        if isinstance(provider, Pool):
            run_async(provider.close())


class _Wheel:
    """One session of work on a run: what it holds open, and the turning."""

    def __init__(
        self, spec: RunSpec, spec_folder: Path, record: RunRecord, tasks: RunTasks, lake: Lake,
        sandbox: SandboxProvider, image: ImageUsed, events: EventLog, reporter: Reporter,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.spec_folder = spec_folder
        self.run_id = record.run_id
        self.lake = lake
        self.sandbox, self.image = sandbox, image
        self.events = events
        self.reporter = reporter
        self.plan: Plan = make_plan(spec, record.run_id, tasks.train, tasks.heldout)
        self.policies = lake.work / "policies" / record.run_id
        self.trainer: Trainer | None = None

    def turn(self) -> None:
        """Do everything of the run that is not done yet."""
        last = self.spec.cycles.count
        with self._stage("setup", cycle=0):
            remove_unfinished(self.policies)
            base = resolve_base_model(self.spec.policy.model, self.spec_folder, self.lake.work / "models")
            self._commit_base(base)
        with make_service(self.spec.engine, log=self.lake.work / "logs" / f"{self.run_id}-engine.log") as service:
            done = self._newest_version()
            self._check_weights(done)
            if self._pending(self.plan.chunks):
                with self._stage("engine", cycle=done):
                    service.start(self._checkpoint(done))
                    if done < last:
                        # Loading the trainer takes as long as the engine's start, and needs none of it.
                        self.trainer = Trainer(self._checkpoint(done), self.spec.training)
                    service.serve(self._checkpoint(done), done)
            self._measure(service, cycle=0)
            for cycle in range(1, last + 1):
                if self._newest_version() < cycle:
                    self._collect(service, cycle)
                    self._train(cycle, self._gate(cycle))
                self.reporter.cycle_done(cycle)
            self._measure(service, cycle=last)

    def _measure(self, service: EngineService, *, cycle: int) -> None:
        self._run_chunks(service, "evaluate", cycle, self.plan.evaluation(cycle))

    def _collect(self, service: EngineService, cycle: int) -> None:
        self._run_chunks(service, "rollout", cycle, self.plan.training(cycle))

    def _run_chunks(self, service: EngineService, stage: str, cycle: int, chunks: tuple[Chunk, ...]) -> None:
        """Run those chunks that are not committed, and complete the checks of those that are."""
        pending = self._pending(chunks)
        for chunk in chunks:
            if chunk not in pending:
                self._complete_checks(chunk)
        if pending:
            version = pending[0].groups[0].policy_version
            with self._stage(stage, cycle=cycle, total=sum(chunk.episodes for chunk in pending)):
                for chunk in pending:
                    self._run_chunk(service, chunk, version)
        self._alarm(cycle, stage)

    def _alarm(self, cycle: int, stage: str) -> None:
        """Record which attempts of a stage earned anything on an impossible task, once: they found a hole."""
        purpose = "purpose <> 'train'" if stage == "evaluate" else "purpose = 'train'"
        found = query(
            self.lake.home,
            f"SELECT trajectory_id FROM trajectories WHERE run_id = '{self.run_id}' AND cycle = {cycle} "
            f"AND {purpose} AND impossible AND reward > 0 ORDER BY trajectory_id",
        ).to_pylist()
        said = query(
            self.lake.home,
            f"SELECT event FROM events WHERE run_id = '{self.run_id}' AND cycle = {cycle} AND stage = '{stage}' "
            "AND event = 'impossible_rewarded'",
        ).num_rows
        if found and not said:
            names = [row["trajectory_id"] for row in found]
            self.events.record(
                "impossible_rewarded", cycle=cycle, stage=stage, count=len(names), trajectory_ids=names[:100]
            )
            self.reporter.note(f"ALARM: {len(names)} rewards on tasks that no honest program can pass")

    def _run_chunk(self, service: EngineService, chunk: Chunk, version: int) -> None:
        """Run a chunk to its commit; an engine that dies under it is started again, once."""
        for last_try in (False, True):
            try:
                engine = service.serve(self._checkpoint(version), version)
                run_chunk(
                    chunk, run_id=self.run_id, spec=self.spec, engine=engine, sandbox=self.sandbox, image=self.image,
                    lake=self.lake,
                )  # fmt: skip
                return
            except EngineLost as error:
                service.stop()
                if last_try:
                    raise
                self.events.record("engine_lost", cycle=chunk.cycle, error=str(error)[:2000])
                self.reporter.note("the engine is gone; starting it again")

    def _pending(self, chunks: tuple[Chunk, ...]) -> list[Chunk]:
        committed = self.lake.committed_version("trajectories", self.run_id) or 0
        return [chunk for chunk in chunks if chunk.number > committed]

    def _complete_checks(self, chunk: Chunk) -> None:
        """A kill between the two commits of a chunk leaves rows without their checks: they follow from the rows."""
        app_id = checks_app(self.run_id)
        if (self.lake.committed_version("checks", app_id) or 0) >= chunk.number:
            return
        rows = self._rows(f"chunk = {chunk.number}")
        _, checks = validate_rows(rows, run_id=self.run_id, cycle=chunk.cycle, chunk=chunk.number, cases=chunk.cases)
        self.lake.append("checks", checks, app_id=app_id, version=chunk.number)

    def _gate(self, cycle: int) -> list[dict[str, object]]:
        """The cycle's training rows, past the quality gate. Raises QualityStop."""
        with self._stage("quality", cycle=cycle):
            rows = self._rows(f"cycle = {cycle} AND purpose = 'train'")
            checks = check_cycle(
                rows, self.spec.quality, run_id=self.run_id, cycle=cycle,
                groups={group.group_id: group.n for chunk in self.plan.training(cycle) for group in chunk.groups},
                past=past_of(self.lake.home, self.run_id, cycle),
            )  # fmt: skip
            checks += check_tables(self.lake.home, self.spec.quality, self.run_id, cycle)
            self._store_verdict(cycle, checks)
            for warning in warnings_of(checks):
                self.reporter.note(warning)
            raise_on_breach(checks)
        return rows

    def _store_verdict(self, cycle: int, checks: list[dict[str, object]]) -> None:
        """Keep the gate's checks, once for each different verdict: a resumed run asks the gate again."""
        app_id = f"{self.run_id}/gate/{cycle}"
        version = self.lake.committed_version("checks", app_id) or 0
        stored = query(
            self.lake.home,
            f"SELECT expectation, observed, \"limit\", success, severity FROM checks WHERE run_id = '{self.run_id}' "
            f"AND cycle = {cycle} AND level = 'batch' ORDER BY checked_at DESC LIMIT {len(checks)}",
        ).to_pylist()
        key = ("expectation", "observed", "limit", "success", "severity")
        if {tuple(map(row.get, key)) for row in stored} != {tuple(map(check.get, key)) for check in checks}:
            self.lake.append("checks", checks, app_id=app_id, version=version + 1)

    def _train(self, cycle: int, rows: list[dict[str, object]]) -> None:
        batch = cut_batch(rows, self.spec.training, seed=self.spec.seed, cycle=cycle)
        groups = {"with_signal": batch.groups_with_signal, "without_signal": batch.groups_without_signal}
        rows_out = {"unscored": batch.unscored, "left_out": batch.left_out}
        with self._stage("train", cycle=cycle, total=len(batch.steps), groups=groups, rows=rows_out):
            if self.trainer is None:
                self.trainer = Trainer(self._checkpoint(cycle - 1), self.spec.training)
            report = self.trainer.train(batch, first_step=self._optimizer_steps() + 1, on_step=self._on_step)
            checkpoint = self._checkpoint(cycle)
            save(self.trainer, checkpoint)
            row: dict[str, object] = {
                "run_id": self.run_id,
                "policy_version": cycle,
                "parent_version": cycle - 1,
                "checkpoint": str(checkpoint.relative_to(self.lake.work)),
                "weights_hash": weights_hash(checkpoint),
                "batch_hash": batch.batch_hash,
                "trajectories_version": self.lake.open_or_create("trajectories").version(),
                "spec_hash": spec_hash(self.spec),
                "optimizer_steps": report.optimizer_steps,
                "consumed": report.consumed,
                "created_at": now_us(),
            }
            self.lake.append("policies", [row], app_id=self.run_id, version=cycle)
            prune(self.policies, self.spec.training.keep_checkpoints)

    def _on_step(self, step: dict[str, object]) -> None:
        TALLY.add(steps=1)

    def _commit_base(self, base: Path) -> None:
        """Version 0 of the run's policy is the base model, where it lies."""
        if self.lake.committed_version("policies", self.run_id) is not None:
            return
        inside = base.is_relative_to(self.lake.work)
        row: dict[str, object] = {
            "run_id": self.run_id,
            "policy_version": 0,
            "parent_version": None,
            "checkpoint": str(base.relative_to(self.lake.work) if inside else base.absolute()),
            "weights_hash": weights_hash(base),
            "batch_hash": None,
            "trajectories_version": None,
            "spec_hash": spec_hash(self.spec),
            "optimizer_steps": [],
            "consumed": [],
            "created_at": now_us(),
        }
        self.lake.append("policies", [row], app_id=self.run_id, version=0)

    def _check_weights(self, version: int) -> None:
        """Make sure that the checkpoint to go on from is the one its row speaks of. Raises RunError."""
        row = query(
            self.lake.home,
            f"SELECT weights_hash FROM policies WHERE run_id = '{self.run_id}' AND policy_version = {version}",
        ).to_pylist()[0]
        checkpoint = self._checkpoint(version)
        if weights_hash(checkpoint) != row["weights_hash"]:
            raise RunError(
                f"the weights in {checkpoint} are not those of policy {version} of run {self.run_id} any more; "
                "restore them, or start a new run with --new"
            )

    def _newest_version(self) -> int:
        return self.lake.committed_version("policies", self.run_id) or 0

    def _checkpoint(self, version: int) -> Path:
        """Folder of a policy version: where its row says, or where its training will put it."""
        rows = query(
            self.lake.home,
            f"SELECT checkpoint FROM policies WHERE run_id = '{self.run_id}' AND policy_version = {version}",
        ).to_pylist()
        return self.lake.work / rows[0]["checkpoint"] if rows else checkpoint_dir(self.policies, version)

    def _optimizer_steps(self) -> int:
        """Optimizer steps of all committed cycles."""
        rows = query(
            self.lake.home, f"SELECT array_length(optimizer_steps) AS n FROM policies WHERE run_id = '{self.run_id}'"
        ).to_pylist()
        return sum(row["n"] for row in rows if row["n"])

    def _rows(self, where: str) -> list[dict[str, object]]:
        return query(
            self.lake.home,
            f"SELECT * FROM trajectories WHERE run_id = '{self.run_id}' AND {where} ORDER BY trajectory_id",
        ).to_pylist()

    @contextlib.contextmanager
    def _stage(self, name: str, *, cycle: int, total: int = 0, **detail: object) -> Generator[None]:
        """Report a stage while it runs and record its time when it is done."""
        self.reporter.stage(name, cycle=cycle, total=total)
        started = time.monotonic()
        yield
        self.events.record("stage", stage=name, cycle=cycle, seconds=time.monotonic() - started, **detail)


def _ending(error: BaseException, signals: list[int]) -> str:
    if signals:
        return "interrupted"
    if isinstance(error, GraderBroken):
        return "grader_broken"
    return "gate_stopped" if isinstance(error, QualityStop) else "failed"


@contextlib.contextmanager
def _interruptible() -> Generator[list[int]]:
    """Turn Ctrl-C and SIGTERM into KeyboardInterrupt, also out of Beam, which wraps it in a RuntimeError.

    Gives the list of signals that came.
    """
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
        if seen:  # something on the way swallowed it
            raise KeyboardInterrupt
    except Exception:
        if seen:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
