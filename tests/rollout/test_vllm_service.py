import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

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
def test_a_server_that_dies_while_starting_shows_the_end_of_its_log(checkpoint: Path, tmp_path: Path):
    begun = time.monotonic()
    with VllmService(SPEC, log=tmp_path / "log") as service:
        with pytest.raises(EngineError, match="ended while starting") as error:
            service.serve(broken(checkpoint, tmp_path), 0)
        assert psutil.Process().children(recursive=True) == []
    assert "no-such-model" in error.value.evidence
    assert time.monotonic() - begun < 120


@pytest.mark.slow
@pytest.mark.vllm
def test_a_start_past_its_limit_is_ended(checkpoint: Path, tmp_path: Path):
    spec = SPEC.model_copy(update={"startup_timeout_s": 0.5})
    with VllmService(spec, log=tmp_path / "log") as service:
        with pytest.raises(EngineError, match=r"startup_timeout_s = 0.5 s"):
            service.serve(checkpoint, 0)
        assert psutil.Process().children(recursive=True) == []


class Forgetful(VllmService):
    """A service whose reloads go nowhere: the server says all is well and keeps its weights."""

    def _control(self, path: str, body: dict | None = None) -> dict:
        return {} if path == "/collective_rpc" else super()._control(path, body)


@pytest.mark.slow
@pytest.mark.vllm
def test_a_reload_that_did_not_happen_is_found_out(checkpoint: Path, other_checkpoint: Path, tmp_path: Path):
    with Forgetful(SPEC, log=tmp_path / "log") as service:
        service.serve(checkpoint, 0)
        with pytest.raises(EngineError, match="did not load") as error:
            service.serve(other_checkpoint, 1)
        assert psutil.Process().children(recursive=True) == []  # weights that nobody can name never answer
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
