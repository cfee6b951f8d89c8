"""Twins of tests: what is altered, how, and that a right program fails it."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from transforms.sources.alterations import others, sites
from transforms.sources.kinds.repository import Case, Edit, Repository, Twin
from transforms.sources.twins import altered, make_twins, units

TESTS = {
    "test_a.py": '''"""Docs 7."""

CASES = [(1, 2), (3, 4)]
LIMIT = 50


def test_rows():
    """Docs 8."""
    for x, want in CASES:
        assert f(x) == want


def test_ünï():
    assert name("é") == "ab"; assert near(f(1), 2.5, abs=0.5)


def test_bound():
    assert f(1) > 1


def test_one(): assert f(0) == 1
'''
}


def check(*names: str, twins: tuple[Twin, ...] = (), tests: Mapping[str, str] = TESTS) -> Repository:
    cases = tuple(Case(f"test_a.py::{name}") for name in names)
    return Repository({"a.py": ""}, tests, cases, ("a.py",), twins)


async def run(tests: Mapping[str, str]) -> dict[str, str]:
    """Run the functions of the file here, beside a right program."""

    def near(got: float, want: float, abs: float) -> bool:
        return want - abs <= got <= want + abs

    scope: dict = {"f": lambda x: x + 1, "name": lambda text: "ab" if text == "é" else "", "near": near}
    exec(tests["test_a.py"], scope)
    found = {}
    for name in [name for name in scope if name.startswith("test_")]:
        try:
            scope[name]()
            found[f"test_a.py::{name}"] = "passed"
        except AssertionError:
            found[f"test_a.py::{name}"] = "assertion"
    return found


def test_each_unit_fails_its_own_cases_and_no_other():
    made = check("test_rows", "test_ünï", "test_bound", "test_one")
    twins = asyncio.run(make_twins(made, run))
    # A bound is no constant to alter: a better program than the gold might pass it as well.
    assert {twin.cases for twin in twins} == {
        ("test_a.py::test_rows",),
        ("test_a.py::test_ünï",),
        ("test_a.py::test_one",),
    }
    full = check("test_rows", "test_ünï", "test_bound", "test_one", twins=twins)
    pool = units(full)
    assert len(pool) == 4  # a canary for the bound
    assert min(len(unit.alternatives) for unit in pool if "test_a.py::test_bound" not in unit.cases) > 5
    for mask in range(16):
        chosen = [unit for number, unit in enumerate(pool) if mask >> number & 1]
        failing = {name for unit in chosen for name in unit.cases}
        for number in range(12):
            changes = [change for unit in chosen for change in unit.alternatives[number % len(unit.alternatives)]]
            statuses = asyncio.run(run(altered(full.tests, changes)))
            assert {name for name, status in statuses.items() if status == "assertion"} == failing


def test_what_a_wrong_program_returned_comes_first():
    wanted = [("2", "7"), ("'ab'", "'abc'"), ("5", "2"), ("object()", "2"), ("[", "2"), ("2.0", "9.5")]
    twins = asyncio.run(make_twins(check("test_rows", "test_ünï"), run, wanted))
    first = {
        twin.cases[0]: altered(TESTS, units(check("test_rows", "test_ünï", twins=(twin,)))[0].alternatives[0])
        for twin in reversed(twins)
    }
    assert "CASES = [(1, 7), (3, 4)]" in first["test_a.py::test_rows"]["test_a.py"]
    assert 'assert name("é") == "abc"; ' in first["test_a.py::test_ünï"]["test_a.py"]


def test_a_number_that_a_tolerance_may_let_pass_is_no_twin():
    tests = {
        "test_a.py": "def test_x():\n    assert near(f(1), 2.25, abs=0.3)\n\n\ndef test_y():\n    assert f(1) == 2\n"
    }
    names = ("test_x", "test_y")
    twins = asyncio.run(make_twins(check(*names, tests=tests), run))
    values = {
        name: [float(edit_value(tests, twin)) for twin in twins if twin.cases == (f"test_a.py::{name}",)]
        for name in names
    }
    # test_x takes 1.95 to 2.55 from a right program, so a twin that takes any of these would have 1.65 .. 2.85.
    assert values["test_x"]
    assert not any(1.65 <= value <= 2.85 for value in values["test_x"])
    assert {1.0, 3.0} <= set(values["test_y"])
    assert min(values["test_y"]) >= 0


def edit_value(tests: Mapping[str, str], twin: Twin) -> str:
    """The constant on the right of the line that a twin alters."""
    [edit] = twin.edits
    line = next(
        line
        for line in tests[edit.path].replace(edit.old, edit.new).split("\n")
        if line not in tests[edit.path].split("\n")
    )
    return line.replace(", abs=0.3)", "").replace("== ", ", ").rpartition(", ")[2]


@pytest.mark.parametrize(
    ("source", "among", "never"),
    [
        ("7", ["6", "8"], ["7", "-1", "7.5"]),
        ("-7", [], []),
        ("1234", ["1233", "1235", "1243"], []),
        ("2.50", ["2.49", "2.51", "2.05"], ["2.5"]),
        ("True", ["False"], ["1"]),
        ('"ab"', ['"ba"'], ["'ba'", '"AB"']),
        ("b'ab'", ["b'ba'"], []),
        ("[1, 2, 3]", ["[2, 1, 3]", "[1, 3, 2]", "[2, 3]"], ["[1, 2, 3]"]),
        ("{'a': 1, 'b': 2}", ["{'a': 2, 'b': 1}"], []),
        ("{1, 2}", [], ["{2, 1}"]),
        ("0xff", [], ["254"]),
        ("None", [], ["None"]),
    ],
)  # fmt: skip
def test_others_are_near_and_in_the_same_manner(source: str, among: list[str], never: list[str]):
    for seed in range(20):
        found = others(source, (), random.Random(seed))
        assert set(among) <= set(found)
        assert not set(never) & set(found)


def test_two_right_programs_may_differ_in_what_is_left_alone():
    loose = ("f(1) != 3", "f(1) in (2, 4)", "5 not in [f(1)]", "f(1) < 9")
    tests = "def test_x():\n" + "".join(f"    assert {condition}\n" for condition in loose)
    assert [site.value for site in sites({"t.py": tests})] == []


def test_edits_side_by_side_do_not_touch():
    twins = tuple(
        Twin((f"test_a.py::{name}",), (Edit("test_a.py", old, new),))
        for name, old, new in (("test_rows", "[(1, 2),", "[(1, 5),"), ("test_bound", ", 2), (3, 4)]", ", 2), (3, 7)]"))
    )
    made = units(check("test_rows", "test_bound", twins=twins))
    text = altered(TESTS, [change for unit in made for [changes] in [unit.alternatives] for change in changes])[
        "test_a.py"
    ]
    assert "CASES = [(1, 5), (3, 7)]\n" in text
    assert text.replace("(1, 5), (3, 7)", "(1, 2), (3, 4)") == TESTS["test_a.py"]


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("def test_x():\n    f()\n", "def test_x():\n    f()\n    assert False\n"),
        ("def test_x(): f()\n", "def test_x(): f(); assert False\n"),
        ("async def test_x():\n\twith f():\n\t\tg()", "async def test_x():\n\twith f():\n\t\tg()\n\tassert False"),
        (
            "class T:\n    def test_x(self):\n        if f:\n            g()\n",
            "class T:\n    def test_x(self):\n        if f:\n            g()\n        assert False\n",
        ),
    ],
)  # fmt: skip
def test_a_canary_comes_after_the_program_has_run(source: str, want: str):
    name = "T::test_x" if source.startswith("class") else "test_x"
    tests = {"test_a.py": source}
    [unit] = units(check(name, tests=tests))
    assert altered(tests, unit.alternatives[0])["test_a.py"] == want


def test_what_is_not_in_the_file_has_no_canary():
    assert units(check("test_nowhere")) == ()
    assert units(check("test_x", tests={"test_a.py": "def test_x(:"})) == ()


def test_a_gold_that_fails_makes_no_twins():
    broken = {"test_a.py": "def test_x():\n    assert f(1) == 1\n"}
    with pytest.raises(ValueError, match="the gold fails test_a"):
        asyncio.run(make_twins(check("test_x", tests=broken), run))
