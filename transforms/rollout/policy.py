"""What a policy engine owes: completions with the token ids and log-probabilities it really sampled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from sandboxes.declared import Declared

FinishReason = Literal["stop", "length"]


class Sampling(Declared):
    """How completions are drawn."""

    temperature: float = Field(1.0, ge=0, le=2)
    """Softmax temperature, at most vLLM's 2; 0 is greedy. Training wants 1.0 and no truncation: then the
    log-probabilities are the policy's."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus mass. Below 1 the stored log-probabilities are those of the truncated distribution."""

    max_tokens: int = Field(96, ge=1, le=131072)
    """Tokens a completion may have. A completion cut here has the finish reason `length`."""

    stop: tuple[str, ...] = ("\n```\n",)
    """Strings that end a completion; they stay in its text. The default is the closing fence of a code block: the line
    break behind it tells it from an opening one that names its language."""


class EngineSpec(Declared):
    """Which engine answers, and what it may use."""

    kind: Literal["vllm", "transformers"] = "vllm"
    """`vllm`: a child service on loopback, fast. `transformers`: in this process, slow, repeatable under a seed."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the engine. `auto` takes bfloat16 where the hardware multiplies it, else float32."""

    max_model_len: int = Field(1024, ge=64)
    """Tokens of prompt and answer together."""

    concurrent: int = Field(128, ge=1, le=4096)
    """Sequences the engine decodes at once."""

    memory_fraction: float = Field(0.35, gt=0, le=0.98)
    """Share of the device's memory (on the CPU: of RAM) that vLLM may plan with."""

    port: int = Field(0, ge=0, le=65535)
    """Loopback port of the vLLM service; 0 takes a free one."""

    startup_timeout_s: float = Field(300.0, gt=0)
    """Seconds the service may take to answer for the first time."""

    request_timeout_s: float = Field(300.0, gt=0)
    """Seconds one request may take; past it the episodes it asked for end as `engine_failed`."""


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; without them bfloat16 is slower than float32."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer, as the engine gave it. Tokens are never re-encoded from text."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Sampler log-probability of each token of `token_ids`, in nats, at the sampling temperature."""
    text: str
    finish_reason: FinishReason
    seeded: bool
    """Whether the draw came from a seed and can be repeated."""


class EngineError(Exception):
    """The engine failed (not the policy): the episode ends as `engine_failed`. `evidence` is what the host saw."""

    def __init__(self, message: str, *, evidence: str) -> None:
        super().__init__(f"{message} [{evidence}]")
        self.evidence = evidence


class EngineLost(EngineError):
    """The engine is gone, and nothing it is asked can be answered: no episode ends by it, the chunk is run again."""


class PolicyEngine(Protocol):
    """A picklable handle on a policy version. It travels to the workers; heavy state is made there on first use."""

    @property
    def name(self) -> str:
        """Name of the engine, as rows record it."""
        ...

    async def sample(
        self, messages: list[dict[str, str]], *, n: int, sampling: Sampling, seed: int
    ) -> list[Completion]:
        """Draw n completions of one chat prompt. Raises EngineError, EngineLost."""
        ...


class EngineService(Protocol):
    """The engine's life on this machine: start, serve policy versions in turn, stop. A context manager.

    Leaving it (also by Ctrl-C) ends every process it started; they end too if this process is killed.
    """

    def start(self, checkpoint: Path) -> None:
        """Begin to start the engine on this checkpoint, and return at once. Raises EngineError.

        Not needed before `serve`, but start-up can take tens of seconds in which other things can be done.
        """
        ...

    def serve(self, checkpoint: Path, policy_version: int) -> PolicyEngine:
        """Make this checkpoint the one that answers, without a restart where the engine can, and return a handle.

        Handles of other policy versions are refused from then on. The first call starts the engine, unless `start`
        did. Raises EngineError.
        """
        ...

    def stop(self) -> None:
        """End every process of the engine; `serve` starts it again. May be called again."""
        ...

    def __enter__(self) -> "EngineService": ...

    def __exit__(self, *exc: object) -> None: ...
