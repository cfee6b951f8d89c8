"""The notebooks run as they stand, on tables that a short quickstart wrote, and draw what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
PLOTS = {"failures": 3, "learning_curve": 4, "reward_components": 4, "task_health": 3}
pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart itself, with fewer cycles and evaluation draws."""
    folder = tmp_path_factory.mktemp("quickstart")
    shorter = ("--set", "cycles.count=2", "--set", "evaluation.samples=4")
    headrace = Path(sys.executable).with_name("headrace")  # not `python -c`, which PySpark takes for a doctest
    command = [str(headrace), "run", "quickstart", "--plain", "--home", str(folder), *shorter]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", PLOTS)
def test_a_notebook_runs_on_what_the_quickstart_wrote(home: Path, name: str):
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client = NotebookClient(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute(env={**os.environ, "HEADRACE_HOME": str(home)})
    shown = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == PLOTS[name]
    assert [output["text"] for output in shown if output.get("name") == "stderr"] == []


def test_every_notebook_is_run_here():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(PLOTS)
