import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from pipelines import doctor
from pipelines.doctor import Finding, examine, ready

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


def test_findings_agree_with_the_kernel(tmp_path):
    found = {finding.name: finding for finding in examine(tmp_path)}
    flags = Path("/proc/cpuinfo").read_text()
    assert (found["CPU bfloat16"].state == "ok") == ("avx512_bf16" in flags or "amx_bf16" in flags)
    mounts = Path("/proc/mounts").read_text()
    assert found["cgroups"].detail.startswith("v2" if "cgroup2 /sys/fs/cgroup cgroup2" in mounts else "v1")


def test_what_fails_is_reported_and_does_not_stop_the_rest(tmp_path, monkeypatch):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(doctor, "_bwrap", lambda: str(broken))
    monkeypatch.setattr(doctor, "MEMORY_GIB", 1 << 20)  # a pebibyte
    monkeypatch.setenv("PATH", str(tmp_path))  # no docker, java, runsc, nvidia-smi, unshare
    found = {finding.name: finding for finding in examine(tmp_path)}
    assert found["bubblewrap"].state == "missing"
    assert "No permissions" in found["bubblewrap"].detail
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
