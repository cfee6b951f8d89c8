"""What no stored text may hold: secrets, and paths that tell about the machine or the people who use it.

A finding names the kind and the place and never repeats what it found. The list is short on purpose: a policy writes
programs, and a rule that fires on ordinary ones would keep good rows from training. Each secret has a shape that its
issuer gives it, with enough random characters that prose and code do not hit it by chance; a password without a shape
is not looked for. Documented examples (`EXAMPLE` in the key, `user:password@`) are none.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SECRETS = {
    "AWS access key": r"\b(?:AKIA|ASIA)(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{34,}\b",
    "OpenAI or Anthropic key": r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{40,}",
    "Slack token": r"\bxox[abprs]-[0-9]{10,}-[A-Za-z0-9-]{10,}",
    "Google API key": r"\bAIza[A-Za-z0-9_-]{35}\b",
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}",
    "credentials in a URL": r"\b[a-z][a-z0-9+]{1,9}://(?!user(?:name)?:)[^\s:/@'\"<>{}]{1,64}:[^\s:/@'\"<>{}$]{6,128}@[a-z0-9]",
}
_PLACEHOLDERS = ("user", "username", "you", "your", "yourname", "name", "me", "test", "example", "runner", "ubuntu")
_HOME = rf"(?<![\w/.])/(?:home|Users)/(?!(?:{'|'.join(_PLACEHOLDERS)})\b)[a-z_][a-z0-9_-]{{1,31}}/"
_ANY = {name.replace(" ", "_"): (name, pattern) for name, pattern in _SECRETS.items()}
_PATTERN = re.compile("|".join(f"(?P<{group}>{pattern})" for group, (_, pattern) in _ANY.items()))
_HOME_PATTERN = re.compile(_HOME)
_HINT = re.compile(r"AKIA|ASIA|gh[pousr]_|github_pat_|hf_|sk-|xox|AIza|PRIVATE KEY|://|/home/|/Users/")
"""What every pattern needs: a text without any of it, nearly all, is read once."""
_OWN_HOME = str(Path.home())
_FLAT = {"program": False, "compiler_message": True, "failure": True, "evidence": True}
"""Columns of text, and whether the host or a program that ran there wrote it: only such text can tell paths of it."""
_NESTED = {
    "messages": {"content": False},
    "steps": {"state": True, "action": False, "observation": True},
    "tests": {"name": False, "message": True, "got": True, "location": True},
}


def no_secrets_or_host_paths(row: Mapping[str, Any]) -> str | None:
    """No text of a trajectory holds a secret of a known form; none that comes from the host names somebody's home
    folder or this machine's own.

    Prompts and answers may name folders: issues of real repositories do. This machine's own home folder counts only if
    it lies at least two folders deep: `/root` is in many a message.
    """
    for place, text, from_host in _texts(row):
        if text and (found := _found(text, from_host)):
            return f"{found} in {place}"
    return None


def _found(text: str, from_host: bool) -> str | None:
    if _HINT.search(text):
        if secret := _PATTERN.search(text):
            return _ANY[secret.lastgroup or ""][0]
        if from_host and _HOME_PATTERN.search(text):
            return "a home folder"
    own = from_host and _OWN_HOME.count("/") > 1 and f"{_OWN_HOME}/" in text
    return "this machine's home folder" if own else None


def _texts(row: Mapping[str, Any]) -> Iterator[tuple[str, str | None, bool]]:
    for column, from_host in _FLAT.items():
        yield column, row[column], from_host
    for column, names in _NESTED.items():
        for number, item in enumerate(row[column] or [], 1):
            for name, from_host in names.items():
                yield f"{column}[{number}].{name}", item[name], from_host
