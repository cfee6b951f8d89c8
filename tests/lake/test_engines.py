"""Every block of docs/engines.md runs as it stands, in a process of its own, and finds what was written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import trajectory_row
from transforms.lake.table import Lake

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "engines.md").read_text()
BLOCKS = dict(re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
ROWS = {
    "Headrace from Python": "[list(row.values()) for row in curve.to_pylist()]",
    "DuckDB": "curve.fetchall()",
    "Polars": "curve.rows()",
    "pandas": "curve.values.tolist()",
    "Spark": "[list(row) for row in curve.collect()]",
}
"""How each engine's `curve` becomes rows of (cycle, reward)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `.headrace`: cycles 1 to 3 of two runs, rows that are not asked for, and files of no version."""
    folder = tmp_path_factory.mktemp("engines")
    lake = Lake(folder / ".headrace")
    version = 0
    for run in ("quickstart-4244e42c", "night-00000007"):
        for cycle in (1, 2, 3):
            rows = [
                trajectory_row(
                    trajectory_id=f"{run}/{cycle}/{n}", run_id=run, cycle=cycle, purpose=purpose, reward=reward
                )
                for n, (purpose, reward) in enumerate([("train", 0.125 * cycle), ("train", 1.0), ("eval_greedy", 0.0)])
            ]
            lake.append("trajectories", rows, app_id="r", version=(version := version + 1))
    lake.write_files("trajectories", [trajectory_row(run_id="dead", cycle=1, reward=0.0)])
    delta = lake.open("trajectories")
    assert delta is not None
    assert delta.optimize.compact()["numFilesRemoved"] == 0
    lake.append("trajectories", [trajectory_row(run_id="night-00000007", cycle=3, reward=0.5)], app_id="r", version=99)
    assert delta.update_incremental() is None
    assert delta.optimize.compact()["numFilesRemoved"] == 2
    return folder


def test_the_page_shows_each_engine():
    assert BLOCKS.keys() == ROWS.keys()
    for block in BLOCKS.values():
        lines = [line for line in block.splitlines() if line]
        assert len(lines) <= 7  # with its imports


@pytest.mark.parametrize(
    "engine", [*(name for name in ROWS if name != "Spark"), pytest.param("Spark", marks=pytest.mark.slow)]
)
def test_an_engine_opens_the_tables(folder: Path, engine: str):
    script = f"{BLOCKS[engine]}\nimport json\nprint()\nprint(json.dumps({ROWS[engine]}))\n"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = {int(cycle): reward for cycle, reward in json.loads(done.stdout.splitlines()[-1])}
    # Two runs alike; the mean of 1/8, 1, 1/8, 1 and so on, in cycle 3 with one more 1/2.
    assert found == pytest.approx({1: 2.25 / 4, 2: 2.5 / 4, 3: (0.375 + 1.0 + 0.375 + 1.0 + 0.5) / 5})
