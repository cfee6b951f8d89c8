# ruff: noqa: E501 - one report a line
"""What is believed of a report on hidden tests."""

import json

import pytest

from transforms.grade.outcomes import Outcome
from transforms.verify.report import Told, read_report

NAMES = ["t.py::a", "t.py::b"]
PHASES = ("setup", "call", "teardown")


def line(case: str, when: str, outcome: str = "passed", **more: object) -> dict[str, object]:
    return {"case": case, "when": when, "outcome": outcome, "xfail": False, **more}


def report(*lines: dict[str, object], code: int | None = 0, **head: object) -> bytes:
    body = [{"collected": NAMES}, *lines, *([] if code is None else [{"finish": code}])]
    first = {"nonce": "n", "exit": code, "signal": None, "flood": False, "times": [0.5 * i for i in range(len(body))]}
    return b"\n".join(json.dumps(one).encode() for one in (first | head, *body)) + b"\n"


def read(reply: bytes | None) -> tuple[dict[str, Told], tuple[Outcome, str] | None]:
    return read_report(reply, "n", NAMES, {"s.py": "def f():\n    return 1\n"})


def outcomes(reply: bytes) -> dict[str, str]:
    told, fault = read(reply)
    assert fault is None, fault
    return {name: f"{one.outcome}: {one.kind}" for name, one in told.items()}


A, B = ([line(name, when) for when in PHASES] for name in NAMES)


def test_a_whole_report_counts():
    told, fault = read(report(*A, *B))
    assert fault is None
    assert [one.outcome for one in told.values()] == [Outcome.PASSED] * 2
    assert told["t.py::b"].seconds == 1.5  # three lines, half a second apart


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        ([line(NAMES[1], "setup", "skipped"), line(NAMES[1], "teardown")], "failed_tests: skipped, which is no pass"),
        ([B[0], B[1] | {"xfail": True}, B[2]], "failed_tests: expected to fail, which is no pass"),
        ([B[0], B[1] | {"xfail": None}, B[2]], "failed_tests: expected to fail, which is no pass"),
        ([B[0], B[1], line(NAMES[1], "teardown", "failed", kind="KeyError")], "runtime_error: KeyError"),
        ([B[0], line(NAMES[1], "call", "failed", kind="AssertionError"), B[2]], "failed_tests: AssertionError"),
        ([B[0], line(NAMES[1], "call", "failed", kind="answer=7"), B[2]], "runtime_error: an exception of the program's own"),
        ([B[0], line(NAMES[1], "call", "odd"), B[2]], "runtime_error: an exception of the program's own"),
        ([B[0], B[1]], "runtime_error: the test did not run to its end"),
        ([], "runtime_error: the test did not run to its end"),
    ],
)  # fmt: skip
def test_only_three_passed_phases_are_a_pass(lines: list[dict[str, object]], want: str):
    assert outcomes(report(*A, *lines, code=1)) == {NAMES[0]: "passed: ", NAMES[1]: want}


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (None, "tampered"),
        (b"", "tampered"),
        (report(*A, *B, nonce="other"), "tampered"),
        (report(*A, *B, nonce=None), "tampered"),
        (report(*A, *B, exit=1), "tampered"),
        (report(*A, *B, code=1), "tampered"),
        (report(*A, code=0), "tampered"),
        (report(*A, *A, *B), "tampered"),
        (report(*A, *B, line("t.py::c", "call")), "tampered"),
        (report(*A, B[0], B[2]), "tampered"),
        (report({"collected": NAMES}, *A, *B), "tampered"),
        (report(*A, *B, {"finish": 0}), "tampered"),
        (report(*A, *B, {"odd": 1}), "tampered"),
        (report(*A, *B) + b"{}\n", "tampered"),
        (report(*A, *B, code=None), "runtime_error"),
        (report(*A, code=None, signal=11), "runtime_error"),
        (report(*A, code=None, signal=24), "time_limit"),
        (report(flood=True), "output_limit"),
    ],
)
def test_a_run_counts_only_with_all_its_evidence(reply: bytes | None, outcome: str):
    told, fault = read(reply)
    assert fault is not None
    assert (fault[0], told) == (outcome, {})


def test_a_place_is_believed_where_the_file_has_it():
    for place, want in (
        ("s.py line 2 in f", "s.py line 2 in f"),
        ("s.py line 2 in secret", None),
        ("s.py line 9 in f", None),
        ("other.py line 1 in f", None),
        ("secret", None),
    ):
        failing = line(NAMES[1], "call", "failed", kind="KeyError", place=place)
        told, _ = read(report(*A, B[0], failing, B[2], code=1))
        assert told[NAMES[1]].place == want
