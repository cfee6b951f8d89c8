"""Hidden tests against programs that take the expected value from them: their twins look as right as they do."""

import asyncio
from dataclasses import replace
from functools import cache

import pytest

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.protocol import SandboxRequest
from tests.adversarial.cheats.repository import CHECKS_ALL, LOOKS_RIGHT
from tests.adversarial.corpus import LIMITS, Program
from tests.adversarial.honest.repository import GOLD, OTHER_WAYS, SHOP
from tests.sandboxes.real_images import real_image
from transforms.grade.rubric import outcome_of
from transforms.sources.kinds.repository import Edit, Repository, Twin
from transforms.verify.repository import run_repository, twins_for

GRADINGS = 4  # a cheat is lucky in one grading of some
REQUEST = SandboxRequest("base", LIMITS.model_copy(update={"wall_time_s": 10.0, "cpu_time_s": 10.0, "memory_mib": 192}))


@cache
def twinned() -> Repository:
    real_image("base")
    return replace(SHOP, twins=asyncio.run(twins_for(Bubblewrap(), SHOP, GOLD, REQUEST)))


def graded(program: Program, check: Repository) -> str:
    report = asyncio.run(run_repository(Bubblewrap(), check, program.source, REQUEST))
    return str(outcome_of(report.results))


def test_every_test_has_several_twins_and_the_bases_value_is_one():
    check = twinned()
    by_case = {case.name: [twin for twin in check.twins if case.name in twin.cases] for case in check.cases}
    assert min(map(len, by_case.values())) > 5
    news = {twin.edits[0].new for twin in by_case["test_shop.py::test_slug[1]"]}
    assert any("one-" in new for new in news)


@pytest.mark.parametrize("program", LOOKS_RIGHT, ids=lambda program: program.name)
def test_a_value_that_only_looks_right_is_found_out(program: Program):
    assert any(graded(program, twinned()) == "tampered" for _ in range(GRADINGS))


@pytest.mark.parametrize("program", OTHER_WAYS, ids=lambda program: program.name)
def test_right_programs_are_never_taken_for_cheats(program: Program):
    assert graded(program, twinned()) == "passed"


def test_who_checks_everything_is_known_to_pass():
    """A weakness: when it is mended, it is no more to be declared in docs/tasks.md."""
    assert [graded(program, twinned()) for program in CHECKS_ALL] == ["passed"]


def test_one_twin_that_looks_wrong_finds_nothing():
    """What it was like, and is with such twins written by hand."""
    texts = (("one-two", "one-tow"), ('"one"', '"noe"'), ('"on"', '"no"'), ('"one-t"', '"noe-t"'))
    twins = tuple(
        Twin((f"test_shop.py::test_slug[{number}]",), (Edit("test_shop.py", old, new),))
        for number, (old, new) in enumerate(texts)
    )
    assert graded(LOOKS_RIGHT[0], replace(SHOP, twins=twins)) == "passed"
