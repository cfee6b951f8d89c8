import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from transforms.rollout.policy import EngineError, EngineSpec
from transforms.rollout.vllm_service import VllmService

ROOT = Path(__file__).resolve().parents[2]
SPEC = EngineSpec(dtype="float32", max_model_len=128, concurrent=8)
OWNER = """
import sys, time
from pathlib import Path
from transforms.rollout.policy import EngineSpec
from transforms.rollout.vllm_service import VllmService
with VllmService(EngineSpec(dtype="float32", max_model_len=128, concurrent=8), log=Path(sys.argv[2])) as service:
    service.serve(Path(sys.argv[1]), 0)
    print("up", flush=True)
    time.sleep(300)
"""

# Stands in for vLLM's server module: the routes of its start, up in a moment. With BEHIND=1 it never comes to listen.
SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:] if "=" in argument)

class Handler(BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        raw = json.dumps({"data": [{"id": options["served-model-name"]}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = answer

if os.environ.get("BEHIND"):
    time.sleep(300)
ThreadingHTTPServer(("127.0.0.1", int(options["port"])), Handler).serve_forever()
"""
Started = Callable[[], list[psutil.Process]]


@pytest.fixture
def quick_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service starts SERVER in place of vLLM: it is what the child finds under the module's name."""
    module = tmp_path / "modules" / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    for package in list(module.parents)[:3]:
        (package / "__init__.py").touch()
    module.write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))


class Neighbour(BaseHTTPRequestHandler):
    """The server of another run: it answers all that ours would be asked while it starts."""

    def do_GET(self) -> None:
        raw = b'{"data": [{"id": "policy-0123456789abcdef"}]}'
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def free_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))  # bound, so that nobody is given it; SO_REUSEADDR lets those bind who ask for it
        yield holder.getsockname()[1]


@pytest.mark.usefixtures("quick_server")
def test_a_server_of_another_run_on_the_same_port_is_not_taken_for_ours(
    checkpoint: Path, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch, started: Started
):
    monkeypatch.setenv("BEHIND", "1")
    with VllmService(SPEC.model_copy(update={"port": free_port}), log=tmp_path / "log") as service:
        service.start(checkpoint)  # the port is free now; the other server is the first to listen on it
        with ThreadingHTTPServer(("127.0.0.1", free_port), Neighbour) as neighbour:
            threading.Thread(target=neighbour.serve_forever, daemon=True).start()
            with pytest.raises(
                EngineError, match=rf"another server answers at .*:{free_port}: .*engine\.port"
            ) as error:
                service.serve(checkpoint, 0)
            neighbour.shutdown()
        assert started() == []
    assert "policy-0123456789abcdef" in error.value.evidence


@pytest.mark.usefixtures("quick_server")
def test_each_start_has_a_model_name_of_its_own(checkpoint: Path, tmp_path: Path):
    names = set()
    with VllmService(SPEC, log=tmp_path / "log") as service:
        for _ in range(2):
            engine = service.serve(checkpoint, 0)
            assert httpx.get(f"{engine.url}/v1/models", trust_env=False).json()["data"][0]["id"] == engine.model
            names.add(engine.model)
            service.stop()
    assert len(names) == 2


@pytest.mark.usefixtures("quick_server")
def test_a_server_that_died_since_it_was_last_asked_is_started_again(
    checkpoint: Path, tmp_path: Path, started: Started
):
    with VllmService(SPEC, log=tmp_path / "log") as service:
        first = service.serve(checkpoint, 0)
        guardian, server = started()
        server.kill()
        while guardian.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
        second = service.serve(checkpoint, 0)
        assert (
            httpx.get(f"{second.url}/v1/models", trust_env=False).json()["data"][0]["id"] == second.model != first.model
        )
        assert len(started()) == 2
    assert started() == []


def test_a_port_in_use_is_told_at_once(checkpoint: Path, tmp_path: Path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        spec = SPEC.model_copy(update={"port": holder.getsockname()[1]})
        with VllmService(spec, log=tmp_path / "log") as service, pytest.raises(EngineError, match=r"engine\.port"):
            service.start(checkpoint)
    assert not (tmp_path / "log").exists()


def test_a_folder_without_a_model_is_told_at_once(tmp_path: Path):
    with VllmService(SPEC, log=tmp_path / "log") as service:
        with pytest.raises(EngineError, match=r"no config\.json"):
            service.start(tmp_path)
        with pytest.raises(EngineError, match="no such folder"):
            service.start(tmp_path / "nowhere")


def broken(checkpoint: Path, folder: Path) -> Path:
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"llama"', '"no-such-model"'))
    return folder


@pytest.mark.slow
@pytest.mark.vllm
def test_a_server_that_dies_while_starting_shows_the_end_of_its_log(checkpoint: Path, tmp_path: Path, started: Started):
    begun = time.monotonic()
    with VllmService(SPEC, log=tmp_path / "log") as service:
        with pytest.raises(EngineError, match="ended while starting") as error:
            service.serve(broken(checkpoint, tmp_path), 0)
        assert started() == []
    assert "no-such-model" in error.value.evidence
    assert time.monotonic() - begun < 120


@pytest.mark.slow
@pytest.mark.vllm
def test_a_start_past_its_limit_is_ended(checkpoint: Path, tmp_path: Path, started: Started):
    spec = SPEC.model_copy(update={"startup_timeout_s": 0.5})
    with VllmService(spec, log=tmp_path / "log") as service:
        with pytest.raises(EngineError, match=r"startup_timeout_s = 0.5 s"):
            service.serve(checkpoint, 0)
        assert started() == []


class Forgetful(VllmService):
    """A service whose reloads go nowhere: the server says all is well and keeps its weights."""

    def _control(self, path: str, body: dict | None = None) -> dict:
        return {} if path == "/collective_rpc" else super()._control(path, body)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_reload_that_did_not_happen_is_found_out(
    checkpoint: Path, other_checkpoint: Path, tmp_path: Path, started: Started
):
    with Forgetful(SPEC, log=tmp_path / "log") as service:
        service.serve(checkpoint, 0)
        with pytest.raises(EngineError, match="did not load") as error:
            service.serve(other_checkpoint, 1)
        assert started() == []  # weights that nobody can name never answer
    assert "embed_tokens" in error.value.evidence


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize(("sent", "when"), [(signal.SIGKILL, "up"), (signal.SIGINT, "starting")])
def test_no_process_outlives_the_owner(checkpoint: Path, tmp_path: Path, sent: signal.Signals, when: str):
    log = tmp_path / "log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(checkpoint), str(log)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    if when == "up":
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
    else:
        while not log.exists() or not log.read_text():
            time.sleep(0.05)
    tree = psutil.Process(owner.pid).children(recursive=True)
    assert len(tree) >= (4 if when == "up" else 2)  # guardian, API server, resource tracker, engine
    owner.send_signal(sent)
    owner.wait(10)
    _, left = psutil.wait_procs(tree, timeout=10)
    assert left == []
    everyone = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not any("vllm" in command and str(checkpoint) in command for command in everyone)
