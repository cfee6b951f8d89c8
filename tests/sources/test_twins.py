"""Twins of tests: what is altered, how, and that a right program fails it."""

import asyncio
from collections.abc import Mapping

import pytest

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
    by_case = {twin.cases: twin.edits[0] for twin in twins}
    # A bound is no constant to alter: a better program than the gold might pass it as well.
    assert set(by_case) == {("test_a.py::test_rows",), ("test_a.py::test_ünï",), ("test_a.py::test_one",)}
    full = check("test_rows", "test_ünï", "test_bound", "test_one", twins=twins)
    pool = units(full)
    assert len(pool) == 4  # a canary for the bound
    for mask in range(16):
        chosen = [unit for number, unit in enumerate(pool) if mask >> number & 1]
        statuses = asyncio.run(run(altered(full.tests, chosen)))
        failing = {name for unit in chosen for name in unit.cases}
        assert {name for name, status in statuses.items() if status == "assertion"} == failing


def test_an_altered_text_has_the_manner_of_the_old():
    [twin] = asyncio.run(make_twins(check("test_ünï"), run))
    [edit] = twin.edits
    assert (edit.old.strip(), edit.new.strip()) in (('"ab"', '"ba"'), ('ab"', 'ba"'), ('"ab', '"ba'))
    assert TESTS["test_a.py"].count(edit.old) == 1


def test_edits_side_by_side_do_not_touch():
    twins = tuple(
        Twin((f"test_a.py::{name}",), (Edit("test_a.py", old, new),))
        for name, old, new in (("test_rows", "[(1, 2),", "[(1, 5),"), ("test_bound", ", 2), (3, 4)]", ", 2), (3, 7)]"))
    )
    text = altered(TESTS, units(check("test_rows", "test_bound", twins=twins)))["test_a.py"]
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
    assert altered(tests, units(check(name, tests=tests)))["test_a.py"] == want


def test_what_is_not_in_the_file_has_no_canary():
    assert units(check("test_nowhere")) == ()
    assert units(check("test_x", tests={"test_a.py": "def test_x(:"})) == ()


def test_a_gold_that_fails_makes_no_twins():
    broken = {"test_a.py": "def test_x():\n    assert f(1) == 1\n"}
    with pytest.raises(ValueError, match="the gold fails test_a"):
        asyncio.run(make_twins(check("test_x", tests=broken), run))
