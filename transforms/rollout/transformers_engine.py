"""Completions from transformers in this process: slow, exact, and repeatable under a seed."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from transforms.rollout.policy import (
    Completion,
    EngineError,
    EngineSpec,
    FinishReason,
    Sampling,
    cpu_multiplies_bfloat16,
)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One policy version in memory."""

    key: tuple[Path, int, str]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]
    """Token ids that end a completion."""


disable_progress_bar()  # a bar for each load of a model would stand in the run's own progress

# One group decodes at a time: a second would only fight it for cores and memory. The thread is not one of asyncio's
# pool: groups that wait their turn would fill it, and sandboxes are closed there.
_decoder = ThreadPoolExecutor(1, "headrace-decode")
_stopped = threading.Event()  # ends the group that is being decoded
_loaded: _Loaded | None = None


@dataclass(frozen=True, slots=True)
class TransformersEngine:
    """A handle on one policy version. Each process loads the model on first use and keeps the version used last."""

    checkpoint: Path
    policy_version: int
    dtype: str
    max_model_len: int
    name: str = "transformers"

    async def sample(
        self, messages: list[dict[str, str]], *, n: int, sampling: Sampling, seed: int
    ) -> list[Completion]:
        """Draw n completions of one chat prompt as one batch, in a thread, group after group. Raises EngineError.

        A group that is cancelled while it waits is not begun; one that has begun goes on until the service stops.

        The draw depends on the weights, the messages, n, the sampling and the seed alone. The log-probabilities are
        those of the distribution sampled from: at the temperature and after top_p; for greedy ones at temperature 1.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_decoder, self._sample, messages, n, sampling, seed)

    def load(self) -> None:
        """Make this version the one this process holds. Raises EngineError."""
        _decoder.submit(self._load).result()

    def _load(self) -> _Loaded:
        global _loaded
        key = (self.checkpoint, self.policy_version, self.dtype)
        if _loaded is None or _loaded.key != key:
            _loaded = None  # frees the old weights before the new ones come
            try:
                tokenizer = AutoTokenizer.from_pretrained(self.checkpoint, local_files_only=True)
                model = AutoModelForCausalLM.from_pretrained(
                    self.checkpoint, dtype=getattr(torch, self.dtype), local_files_only=True
                )
            except Exception as error:  # transformers, safetensors and tokenizers each raise their own
                raise EngineError(f"{self.checkpoint} cannot be loaded", evidence=repr(error)) from error
            model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
            if tokenizer is None or tokenizer.chat_template is None:
                raise EngineError(f"{self.checkpoint} has no chat template", evidence=f"tokenizer {tokenizer!r}"[:2000])
            declared = model.generation_config.eos_token_id
            ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])} - {None}
            _loaded = _Loaded(key, model, tokenizer, frozenset(ends))
        return _loaded

    def _sample(self, messages: list[dict[str, str]], n: int, sampling: Sampling, seed: int) -> list[Completion]:
        loaded = self._load()
        template = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        prompt = cast(list[int], template)
        room = self.max_model_len - len(prompt)
        if room < 1:
            raise EngineError(
                f"a prompt of {len(prompt)} tokens leaves no room in engine.max_model_len = {self.max_model_len}",
                evidence=f"it begins {messages[0]['content'][:200]!r}",
            )
        bounded = sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, room)})
        return _decode(loaded, prompt, n, bounded, seed)


class TransformersService:
    """The life of the in-process engine: it holds one model, and lets go of it at the end."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        bfloat16 = torch.cuda.is_available() or cpu_multiplies_bfloat16()
        self._dtype = spec.dtype if spec.dtype != "auto" else ("bfloat16" if bfloat16 else "float32")

    def start(self, checkpoint: Path) -> None:
        """Nothing to do ahead: loading takes a second."""

    def serve(self, checkpoint: Path, policy_version: int) -> TransformersEngine:
        """Load this checkpoint in place of the last one, and return a handle. Raises EngineError."""
        engine = TransformersEngine(checkpoint, policy_version, self._dtype, self.spec.max_model_len)
        engine.load()
        return engine

    def stop(self) -> None:
        """Cancel the groups that wait, end the one that is being decoded, and let go of the model."""
        global _decoder, _loaded
        _stopped.set()
        _decoder.shutdown(cancel_futures=True)
        _loaded = None
        _stopped.clear()
        _decoder = ThreadPoolExecutor(1, "headrace-decode")

    def __enter__(self) -> "TransformersService":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class _Row:
    """One completion in the making."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None

    def add(self, token: int, logprob: float, loaded: _Loaded, sampling: Sampling) -> None:
        """Take the next token, and see whether it is the last."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.text = cast(str, loaded.tokenizer.decode(self.token_ids, skip_special_tokens=True))
        ends = [self.text.find(stop) + len(stop) for stop in sampling.stop if stop in self.text]
        if ends:
            self.text, self.finish_reason = self.text[: min(ends)], "stop"
        elif token in loaded.ends:
            self.finish_reason = "stop"
        elif len(self.token_ids) == sampling.max_tokens:
            self.finish_reason = "length"


@torch.inference_mode()
def _decode(loaded: _Loaded, prompt: list[int], n: int, sampling: Sampling, seed: int) -> list[Completion]:
    """Draw n completions together, the prompt computed once; finished ones leave the batch."""
    model = loaded.model
    generator = torch.Generator(model.device).manual_seed(seed)
    cache = DynamicCache(config=model.config)
    prompt_ids = torch.tensor([prompt], device=model.device)
    logits = model(input_ids=prompt_ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
    logits = logits.repeat(n, 1)
    cache.batch_repeat_interleave(n)
    rows = [_Row() for _ in range(n)]
    alive = rows
    while True:
        if _stopped.is_set():
            raise EngineError("the engine was stopped", evidence=f"{sum(len(row.token_ids) for row in rows)} tokens in")
        tokens, logprobs = _draw(logits.float(), sampling, generator)
        for row, token, logprob in zip(alive, tokens.tolist(), logprobs.tolist(), strict=True):
            row.add(token, logprob, loaded, sampling)
        going = [i for i, row in enumerate(alive) if row.finish_reason is None]
        if not going:
            break
        if len(going) < len(alive):
            alive = [alive[i] for i in going]
            kept = torch.tensor(going, device=model.device)
            cache.batch_select_indices(kept)
            tokens = tokens[kept]
        logits = model(input_ids=tokens[:, None], past_key_values=cache).logits[:, -1]
    return [
        Completion(
            prompt_token_ids=tuple(prompt),
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            text=row.text,
            finish_reason=row.finish_reason or "length",
            seeded=True,
        )
        for row in rows
    ]


def _draw(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-probability in nats. `logits` is [rows, vocabulary] in float32."""
    if sampling.temperature == 0:
        tokens, logprobs = logits.argmax(-1), logits.log_softmax(-1)
    else:
        logprobs = (logits / sampling.temperature).log_softmax(-1)
        if sampling.top_p < 1:
            ordered, order = logprobs.sort(-1, descending=True)
            mass_before = ordered.exp().cumsum(-1) - ordered.exp()
            outside = torch.zeros_like(logprobs, dtype=torch.bool).scatter(-1, order, mass_before >= sampling.top_p)
            logprobs = logprobs.masked_fill(outside, -torch.inf).log_softmax(-1)
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]
