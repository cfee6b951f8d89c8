"""Where a completion gives its final answer: one place by a declared rule, or none."""

import pytest

from transforms.sources.kinds.math import Math
from transforms.verify.answers.final import Format
from transforms.verify.extract import extract_submission


def taken(completion: str, form: Format = "boxed") -> str | None:
    return extract_submission(completion, Math("1", form))


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"So $\boxed{42}$.", "42"),
        (r"\boxed {42}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ \frac{\sqrt{2}}{2} \right\}}", r"\left\{ \frac{\sqrt{2}}{2} \right\}"),
        (r"\boxed{ 42 } and again \boxed{42}", "42"),
        (r"\boxed{} then \boxed{42}", "42"),
        (r"\boxed{42} \boxed{43}", None),
        (r"\boxed{42} \boxed{42.0}", None),
        (r"\boxed{\boxed{42}}", r"\boxed{42}"),
        (r"\boxed{42", None),
        (r"\boxed{1 \boxed{42}", None),
        (r"\boxed{42\}", None),
        (r"\boxed{}", None),
        (r"\boxed 42", None),
        (r"boxed{42}", None),
        ("42", None),
        ("", None),
        (r"<think>\boxed{1}</think>\boxed{42}", "42"),
        (r"\boxed{1}</think>\boxed{42}", "42"),
        (r"<think>\boxed{42}", None),
        ("\ufeff\\boxed{42}\r\n", "42"),
        (r"\boxed{42}" * 500, "42"),
        (r"\boxed{42}" * 1500, None),
        (r"\boxed{" * 100_000, None),
        ("{" * 100_000 + r"\boxed{42}", "42"),
    ],
)
def test_boxed(completion: str, answer: str | None):
    assert taken(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("<answer>\n42\n</answer> done", "42"),
        ("<answer>42</answer><answer>42</answer>", "42"),
        ("<answer>41</answer><answer>42</answer>", None),
        ("<answer>41<answer>42</answer>", "42"),
        ("<answer></answer>", None),
        ("<answer>42", None),
        (r"\boxed{42}", None),
        ("<think><answer>41</answer></think><answer>42</answer>", "42"),
        ("<answer>" * 100_000, None),
    ],
)
def test_answer_tag(completion: str, answer: str | None):
    assert taken(completion, "answer_tag") == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("2 + 2 = 4\n#### 4", "4"),
        ("#### 3\n#### 4\n\n", "4"),
        ("####4", "4"),
        ("#### 1,234", "1,234"),
        ("#### 4\nI hope so.", None),
        ("The answer is #### 4", None),
        ("####", None),
        ("### 4", None),
        ("", None),
    ],
)
def test_hash(completion: str, answer: str | None):
    assert taken(completion, "hash") == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [("Thus\n42\n \n", "42"), ("42", "42"), ("The answer is 42", "The answer is 42"), ("\n \n", None)],
)
def test_last_line(completion: str, answer: str | None):
    assert taken(completion, "last_line") == answer
