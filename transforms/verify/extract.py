"""From what a model wrote to the program it submits.

The rule: text inside <think>...</think> does not count. Of the fenced blocks tagged with the task's language or with
nothing, the last complete one is the program; if none is complete, the last one that was opened and not closed (answers
are stopped at the closing fence, and may be cut). With no fence at all the whole text is the program if one of its
lines begins as code of the language does (`_CODE`). An answer in prose (a task without a language) is the whole text.
A program of white space only is none.
"""

import re

from transforms.sources.kinds.math import Math
from transforms.sources.languages import LANGUAGES
from transforms.sources.task import Check
from transforms.verify.answers.final import final_answer

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
# Possessive throughout: what one part took no other part tries, so a line costs linear time whatever it holds.
_FENCE = re.compile(r"^[ \t]{0,3}+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$")
_TAGS = {name: language.fences for name, language in LANGUAGES.items()} | {
    "sql": frozenset({"sql", "sqlite"}),
    "diff": frozenset({"diff", "patch"}),
}
_INCLUDE = r"^[ \t]*#[ \t]*include\b"
_CODE = {
    language: re.compile(beginning, re.MULTILINE)
    for language, beginning in {
        "python": r"^(?:(?:async\s+)?def|class|import|from)\s|^@\w",
        "c": _INCLUDE,
        "cpp": _INCLUDE,
        "javascript": r"^(?:const|let|var)[ \t]+[^=\n]{1,200}=|^(?:async[ \t]+)?function\b|^console\.|^require\(",
        "bash": r"^#!",
        "go": r"^package[ \t]+\w+[ \t]*$",
        "java": r"^import[ \t]+[\w.*]+;|^(?:(?:public|final|abstract)[ \t]+)*class[ \t]+\w+[ \t]*[{\n]",
        "rust": r"^(?:pub[ \t]+)?fn[ \t]+\w+[ \t]*[(<]|^use[ \t]+\w+::",
        "sql": r"^[ \t]*(?:SELECT|WITH|select|with)\s",
        "diff": r"^diff --git |^--- \S",
    }.items()
}


def extract_submission(completion_text: str, check: Check) -> str | None:
    """What a completion submits to a check: its program, or its final answer for the kind `math`; None without one."""
    text = extract_program(completion_text, check.language)
    return final_answer(text, check.format) if isinstance(check, Math) and text is not None else text


def extract_program(completion_text: str, language: str | None = "python") -> str | None:
    """Take the program out of a completion by the rule above; None when there is none.

    `language` is a task's: one of LANGUAGES, `sql`, `diff`, or None for an answer in prose. Line ends become newlines
    and a byte order mark goes; tabs and everything else stay as written.
    """
    text = completion_text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = _THINK.sub("", text)
    # A chat template may have put the opening tag into the prompt.
    text = text.rsplit("</think>", 1)[-1]
    if language is None:
        return text if text.strip() else None
    tags = _TAGS[language] | {""}
    complete: str | None = None
    unclosed: str | None = None
    fences = 0
    opening: re.Match[str] | None = None
    body: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if opening is None:
            if fence:
                fences += 1
                opening, body = fence, []
        elif fence and not fence[2] and fence[1].startswith(opening[1]):
            if opening[2].lower() in tags:
                complete = "\n".join(body)
            opening = None
        else:
            body.append(line)
    if opening is not None and opening[2].lower() in tags:
        unclosed = "\n".join(body)
    program = complete if complete is not None else unclosed
    if not fences and _CODE[language].search(text):
        program = text
    return program if program is not None and program.strip() else None
