"""Which part of what a model wrote is its final answer: one declared place, or none.

`boxed`: what stands in `\\boxed{...}`. `answer_tag`: what stands in `<answer>...</answer>`. In both an empty place does
not count, and several that differ are no answer: nobody gets to submit every candidate. `hash`: the last line that is
not blank, which must begin with `####`. `last_line`: that line, whole.
"""

import re
from typing import Literal

Format = Literal["boxed", "answer_tag", "hash", "last_line"]

_BOX = re.compile(r"\\boxed\s*\{")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_MAX_PLACES = 1_000  # boxes or tags looked at: so many are no answer


def final_answer(text: str, form: Format) -> str | None:
    """Take the final answer out of a completion without its thoughts; None where there is none."""
    if form in ("boxed", "answer_tag"):
        found = {place.strip() for place in (_boxes(text) if form == "boxed" else _TAG.findall(text))} - {""}
        return found.pop() if len(found) == 1 else None
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    last = lines[-1] if lines else ""
    if form == "last_line":
        return last or None
    return last.removeprefix("####").strip() or None if last.startswith("####") else None


def _boxes(text: str) -> list[str]:
    """What stands in the boxes, those within another box left out. A box that is not closed holds nothing."""
    found: list[str] = []
    at = 0
    while (box := _BOX.search(text, at)) is not None:
        depth, at = 1, box.end()
        for brace in _BRACES.finditer(text, at):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                found.append(text[box.end() : brace.start()])
                at = brace.end()
                break
        else:
            return found
        if len(found) > _MAX_PLACES:
            return []
    return found
