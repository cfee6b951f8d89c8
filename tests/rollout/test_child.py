import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from transforms.rollout.child import Child

# A service with a child in its group and one that has left it, as a daemon would.
SERVICE = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sleep", "301"], start_new_session=True)
print("serving in", os.environ["TMPDIR"], flush=True)
time.sleep(300)
"""
# The process that owns the service; a fork of it lives on with everything it had open.
OWNER = """
import os, sys, time
from pathlib import Path
from transforms.rollout.child import Child
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
child = Child([sys.executable, "-c", sys.argv[1]], env=os.environ, log=Path(sys.argv[2]))
try:
    time.sleep(300)
finally:
    child.stop()
"""
# A guardian told to stop at the worst moment: the service runs, and nothing has a name for it yet.
TOLD_AT_THE_FORK = """
import os, signal, subprocess, sys
from pathlib import Path
from transforms.rollout.child import guard

class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        Path(sys.argv[1]).write_text(str(self.pid))
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
sys.exit(guard(os.getppid(), ["sleep", "302"]))
"""

Started = Callable[[], list[psutil.Process]]


def start(log: Path) -> Child:
    child = Child([sys.executable, "-c", SERVICE], env=os.environ, log=log)
    wait_for(lambda: "serving in" in log.read_text())
    return child


def wait_for(condition, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def alive(processes: list[psutil.Process], timeout_s: float = 0) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=timeout_s)[1]


def test_stop_ends_every_process_and_removes_its_temporary_files(tmp_path: Path, started: Started):
    child = start(tmp_path / "log")
    tree = started()
    scratch = Path((tmp_path / "log").read_text().split()[-1])
    assert len(tree) == 4  # guardian, service, two sleeps
    assert scratch.is_dir()
    assert os.getsid(0) not in {os.getsid(process.pid) for process in tree}  # a Ctrl-C on the terminal is not theirs
    assert child.exit_code is None
    child.stop()
    assert alive(tree) == []
    assert not scratch.exists()
    child.stop()


def test_a_guardian_told_to_stop_while_it_forks_leaves_no_service(tmp_path: Path):
    pid, scratch = tmp_path / "pid", tmp_path / "scratch"
    scratch.mkdir()
    guardian = subprocess.run(
        [sys.executable, "-c", TOLD_AT_THE_FORK, str(pid)],
        env={**os.environ, "TMPDIR": str(scratch)}, timeout=30, check=False,
    )  # fmt: skip
    service = int(pid.read_text())
    try:
        assert guardian.returncode == 0
        assert not psutil.pid_exists(service)
        assert list(scratch.iterdir()) == []
    finally:
        if psutil.pid_exists(service):
            os.kill(service, signal.SIGKILL)


def test_a_guardian_told_twice_finishes_its_clean_up(tmp_path: Path, started: Started):
    child = start(tmp_path / "log")
    tree = started()
    scratch = Path((tmp_path / "log").read_text().split()[-1])
    guardian = next(process for process in tree if "-S" in process.cmdline())
    while guardian.status() != psutil.STATUS_ZOMBIE:
        guardian.terminate()
    assert child.exit_code is not None
    assert alive([process for process in tree if process != guardian]) == []
    assert not scratch.exists()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_the_owner(tmp_path: Path, sent: signal.Signals):
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, SERVICE, str(log)], stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and "serving in" in log.read_text())
    guardian = next(p for p in psutil.Process(owner.pid).children() if "-S" in p.cmdline())
    tree = [guardian, *guardian.children(recursive=True)]
    assert len(tree) == 4
    fork = next(p for p in psutil.Process(owner.pid).children() if p != guardian)
    owner.send_signal(sent)
    owner.wait(10)
    assert alive(tree, 10) == []
    fork.kill()


def test_a_service_that_ends_is_noticed_and_what_it_left_running_ends_too(tmp_path: Path, started: Started):
    log = tmp_path / "log"
    source = SERVICE.replace("time.sleep(300)", "sys.exit('no weights')")
    child = Child([sys.executable, "-c", source], env=os.environ, log=log)
    tree = started()
    wait_for(lambda: child.exit_code is not None)
    assert child.exit_code == 1
    assert "no weights" in child.log_tail()
    assert alive(tree) == []


def test_a_signal_that_ends_the_service_shows_in_its_status(tmp_path: Path):
    child = Child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], env=os.environ, log=tmp_path / "log")
    wait_for(lambda: child.exit_code is not None)
    assert child.exit_code == 128 + 9


def test_the_log_tail_is_of_this_start_alone(tmp_path: Path):
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    child = Child([sys.executable, "-c", "for i in range(100): print('line', i)"], env=os.environ, log=log)
    wait_for(lambda: child.exit_code is not None)
    lines = child.log_tail().splitlines()
    assert lines[0] == f"end of {log}:"
    assert lines[1:] == [f"line {i}" for i in range(70, 100)]
    assert "earlier" in log.read_text()
