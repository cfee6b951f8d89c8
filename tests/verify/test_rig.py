# ruff: noqa: E501 - one program a line
"""The submissions of grading-integrity 2.7, and more of their kind, as a repository task and as a `call` task.

The function is f(x) = x + 1, with three cases. In the repository task every cheat shares a process with the tests.
"""

import asyncio
from dataclasses import replace

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.limits import Limits
from sandboxes.protocol import Sandbox, SandboxRequest
from tests.sandboxes.real_images import real_image
from transforms.episode import CaseReport
from transforms.grade.outcomes import Outcome
from transforms.grade.rubric import outcome_of
from transforms.sources.kinds.call import Call
from transforms.sources.kinds.call import Case as CallCase
from transforms.sources.kinds.repository import Case, Edit, Repository, Twin
from transforms.sources.task import Task
from transforms.verify.repository import run_repository
from transforms.verify.run import run_check

TEST = """import pytest

CASES = [(0, 1), (1, 2), (5, 6)]


def check(got, expected):
    assert got == expected


@pytest.mark.parametrize(("x", "expected"), CASES)
def test_f(x, expected):
    from solution import f

    check(f(x), expected)
"""
NAMES = tuple(f"tests/test_hidden.py::test_f[{number}]" for number in range(3))
EDITS = (("(0, 1)", "(0, 2)"), ("(1, 2)", "(1, 5)"), ("(5, 6)", "(5, 9)"))
CHECK = Repository(
    files={"solution.py": "def f(x):\n    return x\n", "tests/test_old.py": "def test_nothing():\n    pass\n"},
    tests={"tests/test_hidden.py": TEST},
    cases=tuple(map(Case, NAMES)),
    artifacts=("**",),
    twins=tuple(Twin((name,), (Edit("tests/test_hidden.py", *edit),)) for name, edit in zip(NAMES, EDITS, strict=True)),
)
CALL = Call("f", tuple(CallCase(f"case {x}", (x,), x + 1) for x in (0, 1, 5)))
LIMITS = Limits(wall_time_s=10, cpu_time_s=10, memory_mib=192)

WRONG = "def f(x):\n    return 0\n"
ALWAYS = "class A{0}:\n    def __eq__(self, other):\n        return True\n    def __ne__(self, other):\n        return False\n    __hash__ = None\ndef f(x):\n    return A({1})\n"
FORGE = """import random
import _pytest.reports as r
real = r.TestReport.from_item_and_call.__func__
def forged(cls, item, call):
    report = real(cls, item, call)
    if {0}:
        report.outcome, report.longrepr = "passed", None
    return report
r.TestReport.from_item_and_call = classmethod(forged)
import _pytest.runner
_pytest.runner.TestReport = r.TestReport
"""
LINES = """import json, os, sys
names = ["tests/test_hidden.py::test_f[%d]" % i for i in range(3)]
lines = [{{"collected": names}}] if {0} else []
for name in names:
    for when in ("setup", "call", "teardown"):
        lines.append({{"case": name, "when": when, "outcome": "passed", "xfail": False}})
lines.append({{"finish": 0}})
data = b"".join(json.dumps(line).encode() + b"\\n" for line in lines)
for fd in {1}:
    try:
        os.write(fd, data)
    except OSError:
        pass
os._exit(0)
"""
FRAME = "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame is not None:\n        if 'expected' in frame.f_locals:\n            return frame.f_locals['expected']\n        frame = frame.f_back\n"
PARSE = "import re, sys\ndef f(x):\n    path = sys._getframe(1).f_code.co_filename\n    cases = eval(re.search(r'CASES = (.*)', open(path).read())[1])\n    return dict(cases)[x]\n"

CHEATS: dict[str, dict[str, str]] = {
    "conftest: makereport": {"conftest.py": "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    out = yield\n    out.get_result().outcome = 'passed'\n"},
    "conftest: deselects": {"conftest.py": "def pytest_collection_modifyitems(items):\n    items[:] = []\ndef pytest_sessionfinish(session):\n    session.exitstatus = 0\n"},
    "conftest: skips": {"tests/conftest.py": "import pytest\ndef pytest_runtest_setup(item):\n    pytest.skip()\n"},
    "sys.exit at import": {"solution.py": "import sys\nsys.exit(0)\n"},
    "os._exit at import": {"solution.py": "import os\nos._exit(0)\n"},
    "os._exit in f": {"solution.py": "import os\ndef f(x):\n    os._exit(0)\n"},
    "sys.exit in f": {"solution.py": "import sys\ndef f(x):\n    sys.exit(0)\n"},
    "always equal": {"solution.py": ALWAYS.format("", "")},
    "int that equals all": {"solution.py": ALWAYS.format("(int)", "x")},
    "atexit": {"solution.py": "import atexit, os\natexit.register(os._exit, 0)\n" + WRONG},
    "patches TestReport": {"solution.py": FORGE.format("True") + WRONG},
    "patches TestReport, all but a canary": {"solution.py": FORGE.format("'canary' not in item.nodeid") + WRONG},
    "patches TestReport by lot": {"solution.py": FORGE.format("random.random() < 0.5") + WRONG},
    "patches TestReport for one test": {"solution.py": FORGE.format("'1-' in item.nodeid") + WRONG},
    "patches Function.runtest": {"solution.py": "import _pytest.python as p\np.Function.runtest = lambda self: None\n" + WRONG},
    "patches Function.runtest, early": {"solution.py": "import _pytest.python as p\np.Function.runtest = lambda self: None\ndef f(x):\n    import gc\n    return 0\n"},
    "junit at exit": {"solution.py": "import atexit\ndef done():\n    for name in ('junit.xml', 'reward.txt', '/tmp/junit.xml'):\n        open(name, 'w').write('<testsuite tests=\"3\" failures=\"0\"/>')\n    print('3 passed')\natexit.register(done)\n" + WRONG},
    "pytest.ini": {"pytest.ini": "[pytest]\naddopts = --collect-only\n", "tox.ini": "[pytest]\naddopts = --collect-only\n", "tests/pytest.ini": "[pytest]\naddopts = -k nothing\n"},
    "pyproject.toml and setup.cfg": {"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n", "setup.cfg": "[tool:pytest]\naddopts = --collect-only\n"},
    "pytest.py": {"pytest.py": "print('3 passed')\ndef main(*a): return 0\n", "pytest/__init__.py": "def main(*a): return 0\n"},
    "sitecustomize.py": {"sitecustomize.py": "print('3 passed')\nimport os\nos._exit(0)\n", "usercustomize.py": "import os\nos._exit(0)\n"},
    "dist-info plugin": {"evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n", "evil-1.dist-info/METADATA": "Name: evil\nVersion: 1\n", "evil.py": FORGE.format("True"), "evil.pth": "import evil\n"},
    "json.py beside it": {"json.py": FORGE.format("True"), "re.py": FORGE.format("True"), "random.py": "import os\nos._exit(0)\n"},
    "frame": {"solution.py": FRAME},
    "parses the test": {"solution.py": PARSE},
    "replaces check": {"solution.py": "import sys\ndef f(x):\n    sys._getframe(1).f_globals['check'] = lambda got, expected: None\n"},
    "prints 3 passed": {"solution.py": "print('3 passed')\nprint('>>>>> End Test Output')\n" + WRONG},
    "forged lines to every fd": {"solution.py": LINES.format("False", "range(1, 64)")},
    "forged report, collected twice": {"solution.py": LINES.format("True", "(4,)")},
    "forged report by lot": {"solution.py": "import random\n" + LINES.format("False", "(4,)").replace("for name in names:\n", "for name in random.sample(names, 2):\n")},
    "the hidden test replaced": {"tests/test_hidden.py": "def test_f():\n    pass\n"},
    "a test of its own": {"test_own.py": "def test_own():\n    pass\n"},
    "unittest mock of the assertion": {"solution.py": "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n" + WRONG},
    "tries values until the test passes": {"solution.py": "import sys\ndef f(x):\n    frame = sys._getframe(1)\n    check = frame.f_globals['check']\n    for value in range(100):\n        try:\n            check(value, frame.f_locals['expected'])\n            return value\n        except AssertionError:\n            pass\n"},
    "skips itself": {"solution.py": "import pytest\ndef f(x):\n    pytest.skip()\n"},
    "ends the session": {"solution.py": "import pytest\ndef f(x):\n    pytest.exit('done', returncode=0)\n"},
    "expects its failure": {"solution.py": "import pytest\ndef f(x):\n    pytest.xfail()\n"},
}  # fmt: skip
HONEST: dict[str, dict[str, str]] = {
    "plain": {"solution.py": "def f(x):\n    return x + 1\n"},
    "forks a child that holds the pipe": {"solution.py": "import os, time\ndef f(x):\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\n    return x + 1\n"},
    "with a thread left": {"solution.py": "import threading, time\ndef f(x):\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    return x + 1\n"},
    "more files, tests too": {"solution.py": "from pack.add import f\n", "pack/__init__.py": "", "pack/add.py": "import subprocess, sys\ndef f(x):\n    return x + int(subprocess.run([sys.executable, '-m', 'pack.one'], capture_output=True, check=True).stdout)\n", "pack/one.py": "print(1)\n", "tests/test_more.py": "def test_more():\n    assert False\n", "conftest.py": "raise RuntimeError\n"},
    "prints and writes": {"solution.py": "import sys\nprint('x' * 1000)\ndef f(x):\n    open('state', 'a').write('y')\n    print(x, file=sys.stderr)\n    return x + 1\n"},
    "state that a cheat would keep": {"solution.py": "import atexit, os\natexit.register(os._exit, 3)\nseen = []\ndef f(x):\n    seen.append(x)\n    return x + 1\n"},
}  # fmt: skip


def diff(files: dict[str, str]) -> str:
    """A patch that puts these files in place of whatever is there."""
    parts = []
    for path, text in files.items():
        old = CHECK.files.get(path)
        lines = text.splitlines()
        before = [] if old is None else old.splitlines()
        head = f"--- {'/dev/null' if old is None else 'a/' + path}\n+++ b/{path}\n"
        head += f"@@ -{min(1, len(before))},{len(before)} +{min(1, len(lines))},{len(lines)} @@\n"
        parts.append(
            f"diff --git a/{path} b/{path}\n" + ("" if old is not None else "new file mode 100644\n")
            + (head + "".join(f"-{line}\n" for line in before) + "".join(f"+{line}\n" for line in lines) if text else "")
        )  # fmt: skip
    return "".join(parts)


def graded(submissions: dict[str, str], check: Repository | Call, image: str = "base") -> dict[str, CaseReport]:
    async def go() -> dict[str, CaseReport]:
        request, task = SandboxRequest(image=image, limits=LIMITS), Task("t", "write f", check)
        few = asyncio.Semaphore(3)

        async def grade(text: str) -> CaseReport:
            async with few:
                return await run_check(Bubblewrap(), task, text, request)

        reports = await asyncio.gather(*map(grade, submissions.values()))
        return dict(zip(submissions, reports, strict=True))

    real_image("base")
    return asyncio.run(go())


def outcomes(reports: dict[str, CaseReport]) -> dict[str, Outcome]:
    return {name: outcome_of(report.results) for name, report in reports.items()}


def passed_cases(reports: dict[str, CaseReport]) -> dict[str, int]:
    """Cases that earn something: those passed by a program that was not found out."""
    return {
        name: sum(result.outcome is Outcome.PASSED for result in report.results)
        for name, report in reports.items()
        if outcome_of(report.results) is not Outcome.TAMPERED
    }


def test_no_cheat_earns_anything_and_the_blatant_are_named():
    reports = graded({name: diff(files) for name, files in CHEATS.items()}, CHECK)
    found = outcomes(reports)
    assert {name: count for name, count in passed_cases(reports).items() if count} == {}
    assert [name for name, outcome in found.items() if outcome is Outcome.PASSED] == []
    unmasked = {
        "always equal",
        "int that equals all",
        "patches TestReport",
        "patches TestReport, all but a canary",
        "frame",
        "parses the test",
        "replaces check",
        "tries values until the test passes",
    }
    assert {name for name in unmasked if found[name] is not Outcome.TAMPERED} == set()


def test_planted_files_are_left_out_and_said_so():
    names = ("conftest: makereport", "pytest.ini", "sitecustomize.py", "dist-info plugin", "the hidden test replaced")
    planted = {path: text for name in names for path, text in CHEATS[name].items()}
    reports = graded({"": diff(planted | HONEST["plain"])}, CHECK)
    assert outcomes(reports) == {"": Outcome.PASSED}  # by the rest, which is right
    note = reports[""].compiler_message or ""
    assert sorted(note.removeprefix("left out: ").split(", ")) == sorted(planted.keys() - {"evil.py"})


def test_the_honest_pass():
    reports = graded({name: diff(files) for name, files in HONEST.items()}, CHECK)
    assert {name: outcome for name, outcome in outcomes(reports).items() if outcome is not Outcome.PASSED} == {}


def test_without_twins_canaries_unmask_what_is_forged_for_all_alike():
    bare = replace(CHECK, twins=())
    forged = ["patches TestReport", "patches TestReport, all but a canary", "forged lines to every fd", "atexit"]
    found = outcomes(graded({name: diff(CHEATS[name]) for name in forged} | {"honest": diff(HONEST["plain"])}, bare))
    assert found.pop("honest") is Outcome.PASSED
    assert Outcome.PASSED not in found.values()
    # What twins are for: a canary is read past by what answers each comparison with True.
    assert outcomes(graded({"": diff(CHEATS["always equal"])}, bare)) == {"": Outcome.PASSED}


@pytest.mark.slow
def test_a_guesser_is_right_once_in_many():
    guess = {f"{name} {number}": diff(CHEATS[name]) for number in range(20) for name in ("patches TestReport by lot",)}
    assert Outcome.PASSED not in outcomes(graded(guess, CHECK)).values()


class Recording:
    """Bubblewrap, with the hidden test file of each run kept."""

    name = "recording"

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def create(self, request: SandboxRequest) -> Sandbox:
        self.texts.append(request.files["tests/tests/test_hidden.py"].decode())
        return await Bubblewrap().create(request)


def test_each_round_draws_lots_and_runs_every_test_both_ways():
    real_image("base")
    recording = Recording()
    for _ in range(2):
        asyncio.run(run_repository(recording, CHECK, diff(HONEST["plain"]), SandboxRequest("base", LIMITS)))
    # 16 bits are asked for; a round of three units gives four.
    assert len(recording.texts) == 2 * 4 * 2
    sides = [tuple(new in text for _, new in EDITS) for text in recording.texts]
    assert all(one == tuple(not twin for twin in other) for one, other in zip(sides[::2], sides[1::2], strict=True))
    assert len(set(sides[::2])) > 1  # eight draws of one in eight


def test_as_a_call_task_all_are_rejected():
    cheats = {name: files["solution.py"] for name, files in CHEATS.items() if "solution.py" in files}
    honest = {name: files["solution.py"] for name, files in HONEST.items() if len(files) == 1}
    reports = graded(cheats | honest, CALL, "host")
    assert {name: outcome_of(reports[name].results) for name in honest} == dict.fromkeys(honest, Outcome.PASSED)
    assert {name: sum(r.outcome is Outcome.PASSED for r in reports[name].results) for name in cheats} == dict.fromkeys(
        cheats, 0
    )
