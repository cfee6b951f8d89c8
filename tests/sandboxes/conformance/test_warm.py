"""The waiting interpreter: what it forks behaves like a started one, only sooner."""

import asyncio
import os
import random
import time

import pytest

from sandboxes.protocol import Command, Result, Warm
from tests.sandboxes.conformance.backends import Backend

HELPER = Warm(imports=("json", "decimal", "helper"), files=(("helper.py", b"import json\nLOADED = 41 + 1\n"),))


async def run(backend: Backend, source: str, *arguments: str, warm: Warm = HELPER, **command: object) -> Result:
    async with backend.open(files={"main.py": source.encode()}, warm=warm) as sandbox:
        order = Command(("main.py", *arguments), warm=True, **command)  # ty: ignore[invalid-argument-type]
        return await sandbox.exec(order)


async def test_a_warm_program_is_a_main_module_with_its_arguments(backend: Backend):
    source = """
import sys, os, pickle, dataclasses
@dataclasses.dataclass
class Point: x: int
assert pickle.loads(pickle.dumps(Point(3))) == Point(3) and __file__.endswith("/job/main.py")
print(__name__, sys.argv[1:], os.getcwd() == os.environ["HOME"], sys.modules["__main__"].Point is Point)
"""
    result = await run(backend, source, "a b", "ü", "")
    assert result.stdout.decode() == "__main__ ['a b', 'ü', ''] True True\n", result


@pytest.mark.parametrize(
    ("source", "code", "stdout", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, b"", b""),
        ("import sys; print('x', end=''); sys.exit()", 0, b"x", b""),
        ("import sys; sys.exit('why')", 1, b"", b"why\n"),
        ("import os; os._exit(9)", 9, b"", b""),
        ("import atexit; atexit.register(print, 'bye')", 0, b"bye\n", b""),
        (
            "import threading, time; threading.Thread(target=lambda: (time.sleep(.1), print('t'))).start()",
            0,
            b"t\n",
            b"",
        ),
    ],
    ids=["code", "none", "text", "_exit", "atexit", "thread"],
)
async def test_a_warm_program_ends_as_a_started_one(
    backend: Backend, source: str, code: int, stdout: bytes, stderr: bytes
):
    result = await run(backend, source)
    assert (result.exit_code, result.stdout, result.stderr) == (code, stdout, stderr)


async def test_an_exception_in_a_warm_program_is_a_traceback_of_it(backend: Backend):
    result = await run(backend, "def f():\n    return 1 / 0\nf()\n")
    assert result.exit_code == 1
    lines = result.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert any("main.py" in line and "line 2, in f" in line for line in lines)
    assert not any("guest.py" in line for line in lines)
    result = await run(backend, "def f(:\n")
    assert (result.exit_code, result.stderr.decode().splitlines()[-1].startswith("SyntaxError")) == (1, True)


async def test_imports_are_there_before_the_program(backend: Backend):
    source = "import sys; print('json' in sys.modules, 'decimal' in sys.modules, sys.modules['helper'].LOADED)"
    assert (await run(backend, source)).stdout == b"True True 42\n"


async def test_a_warm_file_lies_in_the_job_folder_too(backend: Backend):
    source = (
        "import sys; sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0]); print(open(sys.path[0] + '/helper.py').read())"
    )
    assert b"LOADED = 41 + 1" in (await run(backend, source)).stdout


async def test_stdin_and_environment_are_the_commands(backend: Backend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANARY_7F3A", "secret")
    source = (
        "import os; print(input(), input(), os.environ['OWN'], os.environ.get('CANARY_7F3A'), 'PATH' in os.environ)"
    )
    fresh = Warm(files=(("fresh.py", os.urandom(8).hex().join("##").encode()),))  # an interpreter started just now
    result = await run(backend, source, warm=fresh, stdin=b"one\ntwo\n", env={"OWN": "1"})
    assert result.stdout == b"one two 1 None True\n", result


async def test_nothing_of_one_run_is_in_the_next(backend: Backend):
    source = "import json, os; print(hasattr(json, 'mark'), os.path.exists('left')); json.mark = 1; open('left', 'w')"
    for _ in range(2):
        assert (await run(backend, source)).stdout == b"False False\n"


async def test_chance_differs_from_sandbox_to_sandbox_and_hashes_do_not(backend: Backend):
    source = """
import random, uuid, os, tempfile
print(hash("headrace"), list({"a", "b", "c", "d", "e"}))
print(random.random(), uuid.uuid4(), os.urandom(4).hex(), tempfile.mktemp(dir=""))
"""
    warm = Warm(imports=("random", "uuid", "tempfile"))
    first, second = [(await run(backend, source, warm=warm)).stdout.splitlines() for _ in range(2)]
    assert first[0] == second[0]
    assert not set(first[1].split()) & set(second[1].split())
    assert len(first[1].split()) == 4
    assert random.random() != float(first[1].split()[0])


async def test_warm_starts_sooner_than_cold(backend: Backend):
    """Modules that take a fifth of a second to import are there at once."""
    slow = Warm(imports=("slow",), files=(("slow.py", b"import time\ntime.sleep(0.4)\n"),))
    files = {"main.py": b"import slow"}
    async with backend.open(files=files, warm=slow) as sandbox:
        cold = await sandbox.exec(Command(("python3", "-P", f"{sandbox.job}/slow.py")))
        walls = [(await sandbox.exec(Command(("main.py",), warm=True))).wall_s for _ in range(3)]
    assert cold.wall_s > 0.4
    assert min(walls) < 0.2


async def test_a_warm_program_that_is_not_there_is_a_result(backend: Backend):
    async with backend.open() as sandbox:
        result = await sandbox.exec(Command(("nothing.py",), warm=True))
        assert result.exit_code in (1, 2, 126, 127)
        assert b"nothing.py" in result.stderr


async def test_a_warm_program_is_held_to_the_limits(backend: Backend):
    result = await run(backend, "while True: pass", cpu_time_s=0.3)
    assert (result.breach, result.signal) == ("time_limit", 9)
    assert 0.3 <= result.cpu_s < 1.5
    assert (await run(backend, "open('big', 'wb').write(bytes(9 << 20))")).breach == "disk_limit"


async def test_warm_programs_run_at_once(backend: Backend):
    source = b"import sys, time; time.sleep(0.3); print(sys.argv[1])"
    async with backend.open(files={"main.py": source}, warm=HELPER) as sandbox:
        began = time.monotonic()
        orders = [Command(("main.py", str(n)), warm=True) for n in range(4)]
        results = await asyncio.gather(*map(sandbox.exec, orders))
        assert [result.stdout for result in results] == [b"0\n", b"1\n", b"2\n", b"3\n"]
        assert time.monotonic() - began < 1.1


async def test_a_warm_program_may_use_what_the_standard_library_offers(backend: Backend):
    source = """
import multiprocessing, sqlite3, subprocess, threading, tempfile, concurrent.futures, asyncio, zoneinfo
def square(n): return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(square, range(4)))
    with concurrent.futures.ThreadPoolExecutor(2) as pool: print(list(pool.map(square, range(4))))
    print(subprocess.run(["echo", "said"], capture_output=True, text=True).stdout.strip())
    with tempfile.NamedTemporaryFile() as file: print(sqlite3.connect(file.name).execute("select 6 * 7").fetchone())
    print(asyncio.run(asyncio.sleep(0, "slept")))
"""
    result = await run(backend, source)
    assert result.stdout.decode().split("\n")[:-1] == ["[0, 1, 4, 9]", "[0, 1, 4, 9]", "said", "(42,)", "slept"], result
