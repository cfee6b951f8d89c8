"""A trajectory as a person reads it: from `episode.read_episode` to the text of a terminal or a pipe."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from pipelines.show import printable, rendered

Row = dict[str, Any]

_COLOURS = {"policy": "red", "infra": "yellow", "grader": "yellow", "task": "yellow"}
"""Of an outcome that is not `passed`, by its class."""

_WORD = 20


def episode_text(episode: Row) -> str:
    """The whole episode: 160 characters wide and without colours for a pipe."""
    row = episode["trajectory"]
    language = (episode["task"] or {}).get("language") or "text"
    said = [message["content"] for message in row["messages"] or ()]
    parts: list[RenderableType | None] = [
        Text(printable(row["trajectory_id"]), style="bold"),
        _outcome(row),
        *_section("messages", [_message(message) for message in row["messages"] or ()]),
        *_section("turns", [_turns(row["turns"] or ())]),
        *_section("program", [_program(row["program"], language)]),
        *_section("compiler", [_text(row["compiler_message"])]),
        *_section("steps", [_steps(row, {*said, row["program"]})]),
        *_section("tests", [_tests(row["tests"] or ())]),
        *_section("reward", [_reward(row)]),
        *_section("training", [_training(episode)]),
        *_section("attempts and samples of the group", [_group(episode)]),
        *_section("checks", [_reasons(row), _checks(episode["checks"])]),
        *_section("lineage", [_lineage(episode)]),
    ]
    text = rendered(*(part for part in parts if part is not None))
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _section(title: str, parts: Iterable[RenderableType | None]) -> list[RenderableType]:
    """A heading and what stands below it; nothing where there is nothing to say."""
    body = [Padding(part, (0, 0, 0, 2)) for part in parts if part is not None]
    return [Text(), Rule(Text(title, style="bold"), align="left", style="dim"), *body] if body else []


def _text(value: object, style: str = "") -> Text | None:
    return None if value in (None, "") else Text(printable(str(value), keep="\n\t"), style=style)


def _outcome(row: Row) -> Text:
    colour = "green" if row["outcome"] == "passed" else _COLOURS[row["outcome_class"]]
    fault = "" if row["outcome_class"] == "policy" else f" ({row['outcome_class']})"
    line = Text.assemble(
        (f"{row['outcome']}{fault}", f"bold {colour}"),
        f"  reward {_number(row['reward'])}  task {printable(row['task_id'])}  {row['purpose']}  cycle {row['cycle']}",
        f"  sample {row['sample']}  attempt {row['attempt']}{'' if row['final'] else ', which does not count'}",
    )
    for name in ("failure", "evidence"):
        if row[name]:
            line.append(f"\n{name}: ", style="bold").append(printable(row[name], keep="\n\t"))
    return line


def _message(message: Row) -> Text:
    content = printable(message["content"] or "", keep="\n\t").strip("\n")
    return Text.assemble((f"{message['role']}\n", "cyan"), content if content else ("(empty)", "dim"))


def _turns(turns: Iterable[Row]) -> Table | None:
    lines = []
    for number, turn in enumerate(turns, start=1):
        logprobs = turn["logprobs"] or []
        mean = sum(logprobs) / len(logprobs) if logprobs else None
        counts = [len(turn["prompt_token_ids"] or ()), len(turn["token_ids"] or ()), sum(turn["loss_mask"] or ())]
        lines.append([number, *counts, mean, turn["finish_reason"]])
    names = ["turn", "prompt tokens", "sampled tokens", "may train", "mean log-probability (nats)", "finish"]
    return _table(names, lines)


def _program(program: str | None, language: str) -> RenderableType | None:
    if program is None:
        return None
    text = printable(program, keep="\n\t").rstrip("\n")
    return Syntax(
        text, language, line_numbers=True, word_wrap=True, theme="ansi_dark", background_color="default"
    )  # fmt: skip


def _steps(row: Row, shown: set[str]) -> Table | None:
    lines = []
    for number, step in enumerate(row["steps"] or (), start=1):
        what = [step["state"], step["observation"]]
        told = " -> ".join(part for part in what if part) + ("" if step["action"] in shown else f"\n{step['action']}")
        files = None if step["workspace_digest"] is None else step["workspace_digest"][:12]
        start = (step["started_at"] - row["started_at"]).total_seconds()
        numbers = [start, step["wall_s"], step["cpu_s"], _mebibytes(step["peak_memory_bytes"])]
        lines.append([number, step["kind"], *numbers, files, told])
    return _table(["step", "kind", "at s", "wall s", "CPU s", "MiB", "files", "from what, to what"], lines)


def _tests(tests: Iterable[Row]) -> Table | None:
    lines = []
    for test in tests:
        told = {"": test["message"], "got ": test["got"], "expected a ": test["expected_type"], "at ": test["location"]}
        problem = "\n".join(f"{before}{value}" for before, value in told.items() if value)
        lines.append([test["name"], test["tier"], test["milestone"], test["outcome"], test["duration_s"], problem])
    return _table(["test", "tier", "milestone", "outcome", "s", "what was wrong"], lines)


def _reward(row: Row) -> Table | None:
    components = [[each["name"], each["value"]] for each in row["reward_components"] or ()]
    measured = [[name, value] for name, value in (row["measured"] or {}).items() if value is not None]
    signals = [["signal", name] for name in row["signals"] or ()]
    whole = [["reward", row["reward"]]] if row["reward"] is not None or components else []
    return _table(["what", "value"], [*whole, *components, *measured, *signals])


def _training(episode: Row) -> RenderableType:
    if episode["trained"]:
        names = ["optimizer_step", "advantage", "tokens", "policy_version", "checkpoint", "weights_hash"]
        lines = [[*(step[name] for name in names[:-1]), step["weights_hash"][:12]] for step in episode["trained"]]
        heads = ["step", "advantage", "tokens in the loss", "made policy", "checkpoint", "weights"]
        return _table(heads, lines) or Text()
    return Text(f"not trained on: {_why_untrained(episode)}")


def _why_untrained(episode: Row) -> str:
    row = episode["trajectory"]
    if row["purpose"] != "train":
        return "it was asked to evaluate the policy"
    if not row["final"]:
        return "a later attempt of the episode counts"
    if row["reward"] is None:
        return "it has no reward"
    if row["quarantine_reasons"]:
        return "it is in quarantine"
    valid = [each for each in episode["group"] if each["final"] and not each["quarantine_reasons"]]
    if len({each["reward"] for each in valid if each["reward"] is not None}) == 1:
        return "all rewards of its group are the same"
    return "no committed optimizer step used it"


def _group(episode: Row) -> Table | None:
    lines = []
    for each in episode["group"]:
        mark = ">" if each["trajectory_id"] == episode["trajectory"]["trajectory_id"] else ""
        notes = [
            "" if each["final"] else "does not count",
            "in quarantine" if each["quarantine_reasons"] else "",
            each["failure"],
        ]
        numbers = [each["reward"], each["advantage"], each["completion_tokens"]]
        lines.append([mark, each["sample"], each["attempt"], each["outcome"], *numbers, "; ".join(filter(None, notes))])
    return _table(["", "sample", "attempt", "outcome", "reward", "advantage", "tokens", "note"], lines)


def _reasons(row: Row) -> Text | None:
    if not row["quarantine_reasons"]:
        return None
    return _text("in quarantine: " + "; ".join(row["quarantine_reasons"]), style="bold yellow")


def _checks(checks: list[Row]) -> RenderableType | None:
    """How many held, and those that did not."""
    if not checks:
        return None
    names = ["level", "expectation", "column", "observed", "limit", "rows", "detail"]
    broken = [[check[name] for name in names] for check in checks if not check["success"]]
    table = _table(names, broken)
    held = Text(f"{len(checks) - len(broken)} of the {len(checks)} checks of its chunk and its cycle held")
    if table is None:
        return held
    both = Table.grid()
    both.add_row(held)
    both.add_row(table)
    return both


def _lineage(episode: Row) -> Table | None:
    row = episode["trajectory"]
    run, task, policy = episode["run"] or {}, episode["task"] or {}, episode["policy"] or {}
    seeded = {True: "used", False: "not used", None: "use not told"}[row["seeded"]]
    image = row["image"] and f"{row['image']} {(row['image_digest'] or '')[:12]}"
    sandbox = [
        row["sandbox"],
        row["host"] and f"on {row['host']}",
        image and f"image {image}",
        row["limits_enforced_by"],
    ]
    seconds = (row["ended_at"] - row["started_at"]).total_seconds()
    used = [
        f"wall {_number(row['wall_s'])} s",
        f"CPU {_number(row['cpu_s'])} s",
        f"memory {_number(_mebibytes(row['peak_memory_bytes']))} MiB",
    ]
    pairs = {
        "run": _joined([row["run_id"], run.get("name") and f"spec {run['name']} {run['spec_hash'][:12]}"]),
        "code": run.get("code_version"),
        "place": f"cycle {row['cycle']}, chunk {row['chunk']}, group {row['group_id']}",
        "task": _joined(
            [row["task_id"], task.get("kind"), task.get("source") and f"from {task['source']}", task.get("split")]
        ),
        "task hash": row["task_hash"],
        "policy": _joined(
            [f"version {row['policy_version']}", policy.get("checkpoint"), policy.get("weights_hash", "")[:12]]
        ),
        "sampling": f"{row['engine']}, temperature {row['temperature']:g}, top_p {row['top_p']:g}, "
        f"at most {row['max_tokens']} tokens, seed {row['seed']} ({seeded})",
        "sandbox": _joined(sandbox),
        "sandbox used": _joined(used) if row["wall_s"] is not None else None,
        "grader": _joined([f"version {row['grader_version']}", row["integrity"] and f"integrity {row['integrity']}"]),
        "time": f"{_instant(row['started_at'])} to {_instant(row['ended_at'])}, {seconds:.3f} s",
    }
    return _table(["", ""], [[name, value] for name, value in pairs.items() if value])  # fmt: skip


def _joined(parts: Iterable[str | None]) -> str:
    return ", ".join(part for part in parts if part)


def _table(names: list[str], lines: list[list[object]]) -> Table | None:
    """Columns that are empty in every line are left out; None without lines. Numbers are flush right."""
    if not lines:
        return None
    table = Table(box=None, show_header=any(names), header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    kept = [place for place in range(len(names)) if any(line[place] not in (None, "") for line in lines)]
    for place in kept:
        number = all(isinstance(line[place], int | float | None) for line in lines)
        # Names of outcomes and the like stay whole; what is prose, or long, gets the rest of the width.
        texts = [names[place], *(str(line[place] or "") for line in lines)]
        word = all(" " not in text and len(text) <= _WORD for text in texts)
        table.add_column(names[place], justify="right" if number else "left", overflow="fold", no_wrap=word)
    for line in lines:
        table.add_row(*(_cell(line[place]) for place in kept))
    return table


def _cell(value: object) -> Text:
    if isinstance(value, float):
        return Text(_number(value))
    return _text(value, style="green" if value == "passed" else "") or Text()


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _mebibytes(size: int | None) -> float | None:
    return None if size is None else size / 2**20


def _instant(value: datetime) -> str:
    return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", " UTC")
