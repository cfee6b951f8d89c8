import time

import pytest

from transforms.verify.extract import extract_program

F = "def f():\n    return 1"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"Sure.\n```python\n{F}\n```\nDone.", F),
        (f"```py\n{F}\n```", F),
        (f"```Python\n{F}\n```", F),
        (f"```\n{F}\n```", F),
        (f"~~~python\n{F}\n~~~", F),
        # Stopped at the closing fence; cut before it.
        (f"```python\n{F}", F),
        (f"```python\n{F}\n", F + "\n"),
        # The last complete one counts, also before an unclosed one.
        (f"```python\nx = 1\n```\nor\n```python\n{F}\n```", F),
        (f"```python\n{F}\n```\nand\n```python\ndef g(", F),
        # Other languages do not.
        (f"```python\n{F}\n```\n```bash\nls\n```", F),
        (f"```text\nhello\n```\n```\n{F}\n```", F),
        ("```bash\nls\n```", None),
        ("```json\n{}", None),
        # Thoughts do not.
        (f"<think>```python\nwrong\n```</think>```python\n{F}\n```", F),
        (f"<think>```python\nwrong\n```</think>\n{F}", f"\n{F}"),
        ("<think>```python\nnever closed", None),
        (f"```python\nwrong\n```\n</think>\n```python\n{F}\n```", F),
        ("<think>\n```python\nnever closed\n```\n", None),
        (f"```python\n{F}\n```\n<think>\n```python\nwrong\n```\n</think>\nDone.", F),
        # No fence.
        (F, F),
        ("import os\nprint(1)", "import os\nprint(1)"),
        ("class A:\n    pass", "class A:\n    pass"),
        ("I would define a class.", None),
        ("  def indented(): pass", None),
        # Line ends, byte order mark, tabs.
        ("\ufeff```python\r\ndef f():\r\n\treturn 1\r\n```\r\n", "def f():\n\treturn 1"),
        ("\ufeffdef f(): return 1", "def f(): return 1"),
        # A longer fence holds a shorter one; backquotes inside a line are none.
        (f"````python\n'''\n```\n'''\n{F}\n````", f"'''\n```\n'''\n{F}"),
        ("```python\nx = '```'\n```", "x = '```'"),
        # A run of tildes is a fence, but not with a backquote behind it.
        (f"~~~~ python x\n{F}\n~~~\n~~~~~", f"{F}\n~~~"),
        (f"~~~python `x`\n{F}", f"~~~python `x`\n{F}"),
        # Nothing.
        ("", None),
        ("```python\n```", None),
        ("```python\n   \n\t\n```", None),
        ("no code here", None),
        ("\ud800 lone surrogate", None),
    ],
)
def test_the_declared_rule(text: str, program: str | None):
    assert extract_program(text) == program


def test_a_hostile_text_takes_linear_time():
    assert extract_program("<think>" * 50_000) is None
    assert extract_program("`" * 1_000_000) is None
    assert extract_program("```\n" * 100_000) is None


@pytest.mark.parametrize(
    "line",
    [
        "~" * 20_000 + "`",
        "`" * 20_000 + " `",
        "~" * 20_000 + "x`",
        "~~~" + " " * 20_000 + "`",
        "~~~" + "\t \t" * 7_000 + "a`",
        "~~~" + "a" * 20_000 + "`",
        "~~~" + "a " * 10_000 + "`",
        "~~~ " + "~" * 20_000 + "`",
        ("~" * 100 + "`\n") * 200,
        ("~~~" + " a" * 100 + "`\n") * 200,
    ],
    ids=lambda line: f"{line[:4]!r}..{line[-4:]!r}",
)
def test_a_hostile_line_takes_linear_time(line: str):
    began = time.process_time()
    assert extract_program(line) is None
    assert extract_program(f"```python\n{F}\n{line}\n```") == f"{F}\n{line}"
    assert time.process_time() - began < 0.5
