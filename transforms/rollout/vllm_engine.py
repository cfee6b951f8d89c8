"""Completions from a vLLM server, by its OpenAI-compatible HTTP interface."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import httpx

from transforms.rollout.child import log_tail
from transforms.rollout.policy import Completion, EngineError, EngineLost, Sampling

CONNECTION_TRIES = 3

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """A handle on one policy version of a vLLM server. Holds no connection: each event loop makes its own."""

    url: str
    model: str
    """Name of the model in each request. No other server has it, whichever port it listens on."""
    policy_version: int
    seeds: bool
    """Whether requests carry a seed. Off on the CPU, where one seeded request can end the whole engine."""
    max_model_len: int
    """Tokens of prompt and answer together; vLLM refuses a `max_completion_tokens` above it."""
    timeout_s: float
    log: Path
    """Where the server writes; an error shows its end."""
    name: str = "vllm"

    async def sample(
        self, messages: list[dict[str, str]], *, n: int, sampling: Sampling, seed: int
    ) -> list[Completion]:
        """Draw n completions of one chat prompt in one request (greedy ones once: they are equal). Raises EngineError.

        The log-probabilities are those of the distribution sampled from: at the temperature and after top_p; for
        greedy ones at temperature 1.
        """
        asked = n if sampling.temperature > 0 else 1  # vLLM refuses more of a greedy request
        answer = await self._post("/v1/chat/completions", self._request(messages, asked, sampling, seed))
        served = (await self._get("/weight_info"))["weight_version"]
        if served != str(self.policy_version):
            raise EngineError(
                f"{self.url} answers for policy version {served} now, this handle is for {self.policy_version}",
                evidence=f"weight_version {served}",
            )
        try:
            completions = [self._completion(answer["prompt_token_ids"], choice) for choice in answer["choices"]]
        except (KeyError, TypeError) as error:
            raise EngineError("vLLM's answer lacks a field", evidence=f"{error!r} in {str(answer)[:2000]}") from error
        if len(completions) != asked:
            raise EngineError(f"vLLM gave {len(completions)} completions of {asked}", evidence=str(answer)[:2000])
        return completions * (n // asked)

    def _request(self, messages: list[dict[str, str]], n: int, sampling: Sampling, seed: int) -> dict[str, object]:
        """The request body. Every setting that a model's generation_config.json could change is spelled out."""
        return {
            "model": self.model,
            "messages": messages,
            "n": n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "max_completion_tokens": min(sampling.max_tokens, self.max_model_len),
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "logprobs": True,
            "return_token_ids": True,
            **({"seed": seed} if self.seeds else {}),
        }

    def _completion(self, prompt_token_ids: list[int], choice: dict) -> Completion:
        token_ids = choice["token_ids"]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"] or ()]
        reason = choice["finish_reason"]
        if reason not in ("stop", "length") or len(token_ids) != len(logprobs):
            raise EngineError(
                f"vLLM ended a completion by {reason!r}: {len(token_ids)} tokens, {len(logprobs)} log-probabilities",
                evidence=str(choice)[:2000],
            )
        return Completion(
            prompt_token_ids=tuple(prompt_token_ids),
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            text=choice["message"]["content"] or "",
            finish_reason=reason,
            seeded=self.seeds,
        )

    async def _get(self, path: str) -> dict:
        return await self._send("GET", path, None)

    async def _post(self, path: str, body: dict[str, object]) -> dict:
        return await self._send("POST", path, body)

    async def _send(self, method: str, path: str, body: dict[str, object] | None) -> dict:
        """One request, tried again only where the connection failed."""
        tries = 0
        while True:
            tries += 1
            try:
                response = await _client().request(method, self.url + path, json=body, timeout=self.timeout_s)
                response.raise_for_status()
                return response.json()
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.NOT_FOUND:
                    raise EngineLost(
                        f"another server answers at {self.url}: it has no {self.model}",
                        evidence=f"{error.response.text[:2000]}; {log_tail(self.log)}",
                    ) from error
                raise EngineError(
                    f"vLLM answered {path} with HTTP {error.response.status_code}", evidence=error.response.text[:2000]
                ) from error
            except httpx.TimeoutException as error:
                raise EngineError(
                    f"vLLM did not answer {path} within engine.request_timeout_s = {self.timeout_s:g} s",
                    evidence=f"{error!r}; {log_tail(self.log)}",
                ) from error
            except httpx.TransportError as error:
                if tries == CONNECTION_TRIES:
                    raise EngineLost(
                        f"no connection to vLLM at {self.url} in {tries} tries",
                        evidence=f"{error!r}; {log_tail(self.log)}",
                    ) from error
                await asyncio.sleep(0.2 * tries)


def _client() -> httpx.AsyncClient:
    """The running event loop's client: connections cannot be shared between loops."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), trust_env=False)
    return _clients[loop]
