"""From what a model wrote to the program it submits.

The rule: text inside <think>...</think> does not count. Of the fenced blocks whose language is python, py, python3 or
none, the last complete one is the program; if none is complete, the last one that was opened and not closed (answers
are stopped at the closing fence, and may be cut). With no fence at all the whole text is the program if one of its
lines starts with `def`, `class`, `import`, `from` or a decorator. A program of white space only is none.
"""

import re

_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
# Possessive throughout: what one part took no other part tries, so a line costs linear time whatever it holds.
_FENCE = re.compile(r"^[ \t]{0,3}+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$")
_CODE = re.compile(r"^(?:(?:async\s+)?def|class|import|from)\s|^@\w", re.MULTILINE)
_LANGUAGES = {"", "python", "py", "python3"}


def extract_program(completion_text: str) -> str | None:
    """Take the program out of a completion by the rule above; None when there is none.

    Line ends become newlines and a byte order mark goes; tabs and everything else stay as written.
    """
    text = completion_text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = _THINK.sub("", text)
    # A chat template may have put the opening tag into the prompt.
    text = text.rsplit("</think>", 1)[-1]
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
            if opening[2].lower() in _LANGUAGES:
                complete = "\n".join(body)
            opening = None
        else:
            body.append(line)
    if opening is not None and opening[2].lower() in _LANGUAGES:
        unclosed = "\n".join(body)
    program = complete if complete is not None else unclosed
    if not fences and _CODE.search(text):
        program = text
    return program if program is not None and program.strip() else None
