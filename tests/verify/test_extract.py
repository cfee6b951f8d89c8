import time

import pytest

from transforms.sources.languages import LANGUAGES
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


C = "#include <stdio.h>\nint main() { }"


@pytest.mark.parametrize(
    ("text", "language", "program"),
    [
        (f"```c\n{C}\n```", "c", C),
        (f"```cpp\n{C}\n```", "c", None),
        *((f"```{tag}\n{C}\n```", "cpp", C) for tag in ("cpp", "C++", "cc", "cxx", "")),
        *((f"```{tag}\nx\n```", "javascript", "x") for tag in ("js", "JavaScript", "node", "")),
        *((f"```{tag}\nx\n```", "bash", "x") for tag in ("bash", "sh", "shell", "")),
        *((f"```{tag}\nx\n```", "go", "x") for tag in ("go", "golang", "")),
        *((f"```{tag}\nx\n```", "rust", "x") for tag in ("rust", "rs", "")),
        *((f"```{tag}\nx\n```", "sql", "x") for tag in ("sql", "SQL", "sqlite", "")),
        *((f"```{tag}\nx\n```", "diff", "x") for tag in ("diff", "patch", "")),
        ("```java\nx\n```", "java", "x"),
        ("```javascript\nx\n```", "java", None),
        # The last of the language; a bare one is one; one in another language is none.
        ("```go\n1\n```\nor\n```\n2\n```\nrun:\n```bash\ngo run .\n```", "go", "2"),
        ("```bash\n1\n```\n```bash\n2\n```\n```python\n3\n```", "bash", "2"),
        ("```sql\nSELECT 1\n```\ngives\n```text\n1\n```", "sql", "SELECT 1"),
        # Unclosed, thoughts, line ends, tabs, byte order mark, nesting.
        ("text\n```rust\nfn main() {}", "rust", "fn main() {}"),
        ("<think>```sql\nSELECT 2\n```</think>\n```sql\nSELECT 1", "sql", "SELECT 1"),
        ("\ufeff```c\r\nint\tx;\r\n```\r\n", "c", "int\tx;"),
        ("`````bash\ncat <<E\n```sh\n```\nE\n`````", "bash", "cat <<E\n```sh\n```\nE"),
        # Without a fence, by how code of the language begins.
        (C, "c", C),
        (f"Here:\n{C}", "cpp", f"Here:\n{C}"),
        ("I include <stdio.h> here.", "c", None),
        ("const a = 1;", "javascript", "const a = 1;"),
        ("console.log(1)", "javascript", "console.log(1)"),
        ("Let us see what a const is.", "javascript", None),
        ("#!/bin/bash\necho", "bash", "#!/bin/bash\necho"),
        ("echo", "bash", None),
        ("package main\n\nfunc main() {}", "go", "package main\n\nfunc main() {}"),
        ("package managers are", "go", None),
        ("public class Main {}", "java", "public class Main {}"),
        ("import java.util.*;", "java", "import java.util.*;"),
        ("class names matter", "java", None),
        ("fn main() {}", "rust", "fn main() {}"),
        ("use the standard library", "rust", None),
        ("SELECT 1", "sql", "SELECT 1"),
        ("Select the row.", "sql", None),
        ("diff --git a/x b/x\n", "diff", "diff --git a/x b/x\n"),
        ("--- a/x\n+++ b/x\n", "diff", "--- a/x\n+++ b/x\n"),
        ("above\n---\nbelow", "diff", None),
        # An answer in prose.
        ("The answer is \\boxed{5}.", None, "The answer is \\boxed{5}."),
        ("<think>It is 4.</think>It is 5.", None, "It is 5."),
        ("so 4.</think>\nIt is 5.", None, "\nIt is 5."),
        ("```python\n5\n```", None, "```python\n5\n```"),
        ("<think>It is 4", None, None),
        (" \n", None, None),
    ],
)
def test_the_rule_in_other_languages(text: str, language: str | None, program: str | None):
    assert extract_program(text, language) == program


@pytest.mark.parametrize("language", [*LANGUAGES, "sql", "diff", None])
def test_a_hostile_text_takes_linear_time_in_every_language(language: str | None):
    began = time.process_time()
    for line in (
        "public\n",
        "public ",
        "async\n",
        " \t",
        "\n",
        "const ",
        "let a\n",
        "import a.",
        "package ",
        "#\t",
        "a",
    ):
        extract_program(line * (400_000 // len(line)), language)
    assert time.process_time() - began < 4


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
