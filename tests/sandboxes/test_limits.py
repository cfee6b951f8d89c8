import pytest

from sandboxes.bubblewrap import Bubblewrap
from tests.sandboxes.conftest import LIMITS, ask, needs_cgroups, run

MEMFDS = """
files = [os.memfd_create(str(i)) for i in range(60)]
for fd in files: os.write(fd, bytes(4 << 20))
import time; time.sleep(30)
"""
FOUR_CORES = """
for _ in range(3): os.fork()
while True: pass
"""


@pytest.mark.parametrize(
    ("source", "breach"),
    [
        ("while True: os.write(1, b'x' * 65536)", "output_limit"),
        ("while True: os.write(2, b'x' * 65536)", "output_limit"),
        ("while True:\n try: os.fork()\n except OSError: pass", "process_limit"),
        (MEMFDS, "memory_limit"),
        (FOUR_CORES, "time_limit"),
    ],
    ids=["stdout", "stderr", "forks", "memfd", "cpu"],
)
def test_a_broken_limit_ends_the_sandbox_and_is_named(sandbox: Bubblewrap, source: str, breach: str):
    frame, usage = run(source, sandbox, limits=LIMITS.model_copy(update={"cpu_time_s": 1.0}))
    assert frame is None
    assert usage.breach == breach
    assert len(usage.stdout) + len(usage.stderr) <= 64 * 1024


@needs_cgroups
def test_memory_that_grows_is_the_memory_limit_and_page_cache_is_not():
    _, usage = run("l = []\nwhile True: l.append(bytearray(1 << 20))", Bubblewrap())
    assert usage.breach == "memory_limit"
    # 20 x 7 MiB in /tmp, one at a time: more than the limit in sum, never at once.
    source = (
        "import sys\nfor i in range(20): open('/tmp/a', 'wb').write(bytes(7 << 20)); os.unlink('/tmp/a')\nsend(b'done')"
    )
    frame, usage = run(source, Bubblewrap(), limits=LIMITS.model_copy(update={"memory_mib": 64}))
    assert (frame, usage.breach) == (b"done", None)


def test_files_are_bounded_one_by_one_and_together(sandbox: Bubblewrap):
    assert ask("open('/tmp/a', 'wb').write(bytes(9 << 20))", sandbox) == "OSError"
    assert ask("[open(f'/tmp/{i}', 'wb').write(bytes(1 << 20)) for i in range(20)]", sandbox) == "OSError"
    assert ask("open('/tmp/a', 'wb').truncate(1 << 40)", sandbox) == "OSError"
    assert ask("sum(open(f'/tmp/{i}', 'wb').write(bytes(1 << 20)) for i in range(7))", sandbox) == 7 << 20


def test_output_just_under_the_limit_is_kept_whole():
    _, usage = run("os.write(1, b'a' * 65000); os.write(2, b'b' * 500)", limits=LIMITS)
    assert (usage.stdout, usage.stderr, usage.breach) == (b"a" * 65000, b"b" * 500, None)
