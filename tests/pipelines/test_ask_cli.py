"""`headrace sql`: where a query comes from, where its rows go, and tables as they were."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from pipelines.cli import app
from tests.builders import trajectory_row
from tests.pipelines.command import COMMAND
from tests.real_terminal import Terminal
from transforms.lake.schemas import TRAJECTORIES
from transforms.lake.table import Lake

ESCAPE = "\x1b[31mred\u202e\x9b"


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, given=None: CliRunner().invoke(app, arguments, input=given)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Forty trajectories, t00 to t39, in two commits of twenty; t39 names a hostile task."""
    home = tmp_path_factory.mktemp("home")
    lake = Lake(home)
    lake.ensure_tables()
    rows = [
        trajectory_row(trajectory_id=f"t{n:02}", cycle=39 - n, task_id=ESCAPE if n == 39 else "add") for n in range(40)
    ]
    lake.append("trajectories", rows[:20], app_id="r", version=1)
    lake.append("trajectories", rows[20:], app_id="r", version=2)
    return home


def on_terminal(home: Path, *arguments: str, columns: int = 100, pager: str = "sed s/^/paged:/") -> str:
    """All that a terminal of 24 lines is sent."""
    env = {**os.environ, "PAGER": pager, "TERM": "xterm"}
    with Terminal(*COMMAND, "sql", *arguments, "--home", str(home), columns=columns, env=env) as terminal:
        shown = terminal.everything()
        assert terminal.end() == 0
    return shown


def test_a_query_from_a_file_and_from_stdin(ask, home, tmp_path):
    text = "-- how many\nSELECT count(*) AS n\nFROM trajectories;\n"
    (tmp_path / "query.sql").write_text(text)
    done = ask("sql", "--file", "query.sql", "--format", "csv", "--home", str(home))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "n\n40\n", "")
    piped = ask("sql", "--file", "-", "--format", "csv", "--home", str(home), given=text)
    assert (piped.stdout, piped.stderr) == ("n\n40\n", "")


def test_a_view_is_printed_whole_and_sorted(ask, home):
    rows = json.loads(ask("sql", "--view", "learning_curve", "--format", "json", "--home", str(home)).stdout)
    assert [row["cycle"] for row in rows] == list(range(40))
    assert {row["episodes"] for row in rows} == {1}


def test_tables_as_they_were(ask, home):
    count = "SELECT count(*) AS n FROM tests"  # two tests a trajectory
    for at, tests in ((["trajectories=1"], 40), (["1"], 40), (["trajectories=2"], 80), (["trajectories=0"], 0)):
        options = [word for each in at for word in ("--at", each)]
        done = ask("sql", count, "--format", "csv", *options, "--home", str(home))
        assert (done.stdout, done.stderr) == (f"n\n{tests}\n", "")
    refused = ask("sql", count, "--at", "2020-01-01T00:00:00+02:00", "--home", str(home))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: table trajectories has no version of 2020-01-01T00:00:00+02:00 or before")


def test_parquet_is_the_rows_themselves(ask, home, tmp_path):
    query = "SELECT * FROM trajectories ORDER BY trajectory_id"
    done = ask("sql", query, "--out", "rows.parquet", "--home", str(home))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    read = pq.read_table(tmp_path / "rows.parquet")
    assert {field.name: field.type for field in read.schema}["started_at"] == pa.timestamp("us", tz="UTC")
    assert sorted(read.schema.names) == sorted(TRAJECTORIES.names)
    row = trajectory_row(trajectory_id="t39", cycle=0, task_id=ESCAPE)
    assert read.to_pylist()[39] == row
    piped = ask("sql", query, "--format", "parquet", "--home", str(home))
    assert pq.read_table(pa.BufferReader(piped.stdout_bytes)).equals(read)


def test_a_file_is_written_in_the_format_of_its_name_and_kept_if_it_is_there(ask, home, tmp_path):
    query = "SELECT trajectory_id FROM trajectories ORDER BY 1 LIMIT 1"
    for name, text in (("a.csv", "trajectory_id\nt00\n"), ("a.json", '[\n{"trajectory_id": "t00"}\n]\n')):
        assert ask("sql", query, "--out", name, "--home", str(home)).stdout == ""
        assert (tmp_path / name).read_text() == text
    assert ask("sql", query, "--format", "table", "--out", "a.txt", "--home", str(home)).exit_code == 0
    assert (tmp_path / "a.txt").read_text() == "trajectory_id\nt00\n"
    again = ask("sql", query, "--out", "a.csv", "--home", str(home))
    assert (again.exit_code, again.stderr) == (
        2, "error: a.csv exists\n\nhint: choose another name, or remove it first\n",
    )  # fmt: skip
    assert (tmp_path / "a.csv").read_text() == "trajectory_id\nt00\n"


def test_a_file_that_cannot_be_filled_is_not_left_behind(ask, home, tmp_path):
    done = ask("sql", "SELECT 1 AS a, 2 AS a", "--out", "a.parquet", "--home", str(home))
    assert done.exit_code == 2
    assert not (tmp_path / "a.parquet").exists()
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 8; trap "" XFSZ; "$@"', "bash", *COMMAND, "sql", "SELECT * FROM trajectories",
         "--out", str(tmp_path / "full.json"), "--home", str(home)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (full.returncode, full.stderr) == (
        2, f"error: {tmp_path}/full.json cannot be written: File too large\n",
    )  # fmt: skip
    assert not (tmp_path / "full.json").exists()


MISTAKES = {
    "": "one query is needed: SELECT, --file or --view\n\nhint: `headrace sql --help` has examples",
    "--view tests --file q.sql": (
        "one query is needed: SELECT, --file or --view\n\nhint: `headrace sql --help` has examples"
    ),
    "--view learning_curv": "no view is named `learning_curv`\n\nhint: did you mean `learning_curve`?",
    "--file none.sql": "none.sql cannot be read: No such file or directory",
    "--view tests --out rows": "in what format is rows?\n\nhint: name it .csv, .json or .parquet, or give --format",
    "--view tests --out no/rows.csv": "no/rows.csv cannot be written: No such file or directory",
    "--view tests --at 9": "table trajectories has no version 9: the newest is 2",
    "--view tests --at -1": "--at -1: no time; one looks like 2026-08-21T09:30:00Z",
    "--view tests --at yesterday": "--at yesterday: no time; one looks like 2026-08-21T09:30:00Z",
    "--view tests --at 2026-08-21T09:30": (
        "--at 2026-08-21T09:30: a time in which zone?\n\nhint: end it with Z for UTC, or as in +02:00"
    ),
    "--view tests --at 1 --at 2": "--at 2: there is a moment already",
    "--view tests --at trajectories=1 --at trajectories=2": (
        "--at trajectories=2: table trajectories has a moment already"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "message"), MISTAKES.items())
def test_a_mistake_is_status_2_and_explained(ask, home, options, message):
    done = ask("sql", *options.split(), "--home", str(home))
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")


def test_rows_beyond_the_terminal_go_through_the_pager(home):
    query = "SELECT trajectory_id FROM trajectories ORDER BY 1 LIMIT {}"
    long = on_terminal(home, query.format(40)).splitlines()
    assert all(line.startswith("paged:") for line in long)
    assert "t39" in long[-2]
    # A frame of four lines, and the prompt below.
    assert "paged:" not in on_terminal(home, query.format(19))
    assert "paged:" in on_terminal(home, query.format(20))
    # Rows that are too wide are blocks of lines, and these are paged too.
    assert "paged:-- row 1" in on_terminal(home, "SELECT * FROM trajectories LIMIT 1", columns=60)
    assert "paged:" not in on_terminal(home, query.format(40), "--format", "csv")


def test_a_pager_that_is_left_early_is_no_error(home):
    wide = "SELECT repeat('x', 50) AS x FROM generate_series(1, 3000)"
    assert "the first:" in on_terminal(home, wide, pager="read line; echo the first:$line")


def test_parquet_does_not_go_to_a_terminal(home):
    with Terminal(*COMMAND, "sql", "SELECT 1", "--format", "parquet", "--home", str(home)) as terminal:
        shown = terminal.everything().replace("\r", "")
        assert terminal.end() == 2
    assert shown == "error: Parquet is not for a terminal\n\nhint: --out FILE.parquet writes it to a file\n"


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_control_characters_do_not_reach_the_terminal(home, form):
    shown = on_terminal(home, "SELECT task_id FROM trajectories WHERE cycle = 0", "--format", form)
    assert "31mred" in shown
    text = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")  # the heading of a table is bold
    assert not {"\x1b", "\u202e", "\x9b"} & set(text)


def test_ctrl_c_is_left_to_the_pager(home):
    env = {**os.environ, "PAGER": "trap 'echo stopped' INT; echo ready; sleep 2; echo left", "TERM": "xterm"}
    with Terminal(*COMMAND, "sql", "--view", "learning_curve", "--home", str(home), env=env) as terminal:
        terminal.expect("ready")
        terminal.type("\x03")
        terminal.expect("left")
        assert terminal.end() == 0
