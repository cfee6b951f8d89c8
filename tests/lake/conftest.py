"""A fresh lake, and child processes that write to it and can be killed on the way."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transforms.lake.table import Lake

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def python() -> Callable[..., subprocess.Popen[str]]:
    """Start a child that runs a script with arguments, with the repository on its path."""

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def log(lake: Lake) -> Callable[[str], list[dict[str, dict]]]:
    """All actions of a table, straight from the JSON files of its log, oldest first."""

    def actions(table: str) -> list[dict[str, dict]]:
        files = sorted((lake.path(table) / "_delta_log").glob("*.json"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    return actions
