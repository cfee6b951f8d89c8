import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipelines.progress import Reporter
from transforms.tally import TALLY, Counts, Tally

ROOT = Path(__file__).resolve().parents[2]

LIVE = """
import os, time
from pipelines.progress import Reporter
from transforms.tally import TALLY
with Reporter(cycles=2) as reporter:
    reporter.stage("rollout", cycle=1, total=4)
    TALLY.add(episodes=4, tokens=200, graded=4, scored=4, reward_sum=1.0)
    os.write(1, b"begun\\n")  # past the display, which takes what is printed to the terminal
    time.sleep(30)
"""


@pytest.fixture
def switching_often():
    """Threads take turns so often that an unguarded counter would lose some."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_tally_loses_nothing_between_threads(switching_often):
    tally = Tally()

    def work() -> None:
        for _ in range(2000):
            tally.add(episodes=1, reward_sum=0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.snapshot() == Counts(episodes=8000, reward_sum=4000.0)
    assert tally.snapshot().since(Counts(episodes=1, reward_sum=0.5)) == Counts(episodes=7999, reward_sum=3999.5)
    with pytest.raises(TypeError):
        tally.add(episode=1)  # ty: ignore[unknown-argument] - a misspelt counter is an error, not a new counter


def test_plain_lines_say_what_each_stage_came_to(capsys):
    with Reporter(cycles=2, plain=True) as reporter:
        reporter.stage("rollout", cycle=1, total=4)
        TALLY.add(episodes=4, tokens=1200)
        TALLY.add(graded=3, scored=2, reward_sum=0.5)
        time.sleep(0.06)
        reporter.stage("train", cycle=1, total=2)
        TALLY.add(steps=2)
        time.sleep(0.06)
        reporter.cycle_done(1)
        reporter.note("a note")
    out, err = capsys.readouterr()
    assert out == ""  # stdout is for data
    rollout, train, note = err.splitlines()
    # 3 of 4 episodes have a verdict; the mean is over the two that carry a reward.
    assert re.fullmatch(
        r"\[0:00\] cycle 1/2 rollout: 3/4 episodes, 1 being graded, 1,200 tokens \([\d,]+/s\), "
        r"mean reward 0\.250, 0:00",
        rollout,
    )
    assert train == "[0:00] cycle 1/2 train: 2/2 steps, 0:00"
    assert note == "[0:00] a note"


def test_plain_lines_come_now_and_then_and_tell_the_time_left(capsys):
    with Reporter(cycles=3, plain=True, every_s=0.1) as reporter:
        reporter.stage("rollout", cycle=1, total=1)
        for _ in range(11):
            time.sleep(0.1)
            TALLY.add(tokens=1)
        silent = len(capsys.readouterr().err.splitlines())
        time.sleep(0.5)  # nothing moves, so nothing is said
        reporter.cycle_done(1)
        first = capsys.readouterr().err.splitlines()
        reporter.stage("rollout", cycle=2, total=1)
        time.sleep(0.15)
        second = capsys.readouterr().err.splitlines()
    assert 5 <= silent <= 12
    assert 1 <= len(first) <= 2  # the tick that saw the last token, and the end of the stage
    assert not any("left" in line for line in first)  # nothing to judge by yet
    # Two cycles of 1.6 s are left, less the 0.1 s spent.
    assert second[0].endswith("about 0:03 left")


def test_cycles_of_an_earlier_session_do_not_count_as_time(capsys):
    with Reporter(cycles=5, plain=True, every_s=0.05) as reporter:
        for cycle in (1, 2, 3):
            reporter.cycle_done(cycle)
        reporter.stage("rollout", cycle=4, total=1)
        time.sleep(0.12)
    assert "left" not in capsys.readouterr().err


def test_the_live_display_restores_the_terminal_when_interrupted():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", LIVE], stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True
    )
    os.close(theirs)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    child.wait(timeout=20)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # Linux reports the end of a terminal this way
        pass
    os.close(ours)
    child.stdout.close()
    text = written.decode()
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")  # the cursor was hidden, and is back
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "cycle 1/2  rollout" in plain
    assert "4/4 episodes" in plain
    assert "mean reward 0.250" in plain
