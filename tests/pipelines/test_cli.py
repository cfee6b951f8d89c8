import ast
import importlib
import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
import typer

from pipelines.explain import EXIT_CODES, HINTS, explained
from pipelines.show import print_rows
from pipelines.spec_file import load_spec
from tests.builders import trajectory_row
from tests.pipelines.command import ADD, COMMAND
from transforms.lake.errors import CommitConflict
from transforms.lake.table import Lake
from transforms.quality.gate import QualityStop

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    lake = Lake(home)
    lake.ensure_tables()
    rows = [
        trajectory_row(trajectory_id="a/1", task_id='say "hi", you', reward=0.5),
        trajectory_row(trajectory_id="b/1", task_id="\x1b[31mred\n[bold]x", finish_reason=None),
    ]
    lake.append("trajectories", rows, app_id="r", version=1)
    return home


def test_help_answers_at_once_and_imports_nothing_heavy(headrace):
    times = []
    for _ in range(3):
        started = time.perf_counter()
        done = headrace("--help")
        times.append(time.perf_counter() - started)
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("run", "sql", "show", "tables", "doctor", "tasks", "sandbox"))
    assert min(times) < 1.0
    code = "import sys, pipelines.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "typer" in loaded.stdout.split()
    heavy = {
        "apache_beam",
        "torch",
        "vllm",
        "great_expectations",
        "deltalake",
        "pyarrow",
        "pandas",
        "scipy",
        "pydantic",
    }
    assert not heavy & set(loaded.stdout.split())


@pytest.mark.parametrize("command", [["run"], ["sql"], ["show"], ["tables"]])
def test_every_command_teaches_by_an_example(headrace, command):
    done = headrace(*command, "--help")
    assert done.returncode == 0
    assert f"headrace {' '.join(command)}" in done.stdout.partition("Example")[2]


def test_the_version_is_the_packages(headrace):
    assert headrace("--version").stdout == f"headrace {importlib.metadata.version('headrace')}\n"


def test_a_mistake_in_the_command_is_status_2(headrace):
    for arguments in (["rum"], ["run"], ["run", "quickstart", "--nwe"], ["sql", "SELECT 1", "--format", "xml"]):
        done = headrace(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Usage: headrace" in done.stderr


def test_a_mistake_in_the_spec_is_status_2_and_named(headrace, tmp_path):
    (tmp_path / "my.yaml").write_text("name: a\n\nrubrik: {}\n")
    done = headrace("run", "my.yaml", "--set", "seed=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: my.yaml:3: unknown key `rubrik`\n\nhint: did you mean `rubric`?\n\n"
        'error: --set seed=x: `seed` must be a whole number, not "x"\n\n'
        "hint: Seed of the order of tasks and, where the engine can be seeded, of the draws.\n"
    )
    missing = headrace("run", "quick")
    assert missing.stderr == (
        "error: quick: no such file, and no shipped spec of that name\n\nhint: did you mean `quickstart`?\n"
    )


def test_a_mistake_in_the_tasks_is_status_2(headrace, tmp_path):
    (tmp_path / "my.yaml").write_text("name: a\ntasks: {train: t.jsonl, heldout: null}\n")
    done = headrace("run", "my.yaml", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: t.jsonl: No such file or directory\n\nhint: ")


def test_a_dry_run_prints_a_spec_and_does_nothing(headrace, tmp_path):
    done = headrace("run", "quickstart", "--dry-run", "--set", "cycles.count=2", "--set", "training.lr=2e-5")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "again.yaml").write_text(done.stdout)
    spec = load_spec(tmp_path / "again.yaml", [])
    assert (spec.name, spec.cycles.count, spec.training.lr) == ("quickstart", 2, 2e-5)
    plan = [line.removeprefix("#   ") for line in done.stdout.partition("# The plan:\n")[2].splitlines()]
    # 16 tasks x 8 samples a cycle; 12 held-out tasks x (16 sampled + 1 greedy) before and after.
    assert "cycle 2 train: 128 episodes" in plan[4]
    assert "cycle 0 evaluate: 204 episodes, chunks 1 to 2" in plan[2]
    assert f"rows: {2 * 128 + 2 * 204} trajectories" in plan[6]


def test_rows_as_json_and_csv_are_whole(headrace, home):
    query = (
        "SELECT task_id, reward, finish_reason, started_at, quarantine_reasons FROM trajectories ORDER BY trajectory_id"
    )
    rows = json.loads(headrace("sql", query, "--format", "json", "--home", str(home)).stdout)
    assert rows[0] == {
        "task_id": 'say "hi", you',
        "reward": 0.5,
        "finish_reason": "stop",
        "started_at": "2026-01-02T03:04:05.678901+00:00",
        "quarantine_reasons": [],
    }
    assert rows[1]["task_id"] == "\x1b[31mred\n[bold]x"
    done = headrace("sql", query, "--format", "csv", "--home", str(home))
    assert done.stdout == (
        "task_id,reward,finish_reason,started_at,quarantine_reasons\n"
        '"say ""hi"", you",0.5,stop,2026-01-02T03:04:05.678901+00:00,[]\n'
        '"\x1b[31mred\n[bold]x",1.0,,2026-01-02T03:04:05.678901+00:00,[]\n'
    )
    assert headrace("sql", f"{query} LIMIT 0", "--format", "json", "--home", str(home)).stdout == "[]\n"


def test_a_piped_table_is_aligned_text_without_control_characters(headrace, home):
    query = "SELECT task_id, reward, finish_reason FROM trajectories ORDER BY trajectory_id"
    done = headrace("sql", query, "--home", str(home))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "task_id               reward  finish_reason\n"
        'say "hi", you            0.5  stop\n'
        "\\x1b[31mred\\n[bold]x       1  null\n"
    )


def test_a_wrong_query_is_status_2_with_the_nearest_name(headrace, home):
    done = headrace("sql", "SELECT * FROM trajectorys", "--home", str(home))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("\n\nhint: did you mean `trajectories`?\n")
    assert headrace("sql", "DELETE FROM trajectories", "--home", str(home)).returncode == 2


def test_a_reader_that_leaves_early_is_no_error(home):
    query = "SELECT a.trajectory_id FROM trajectories a, generate_series(1, 200000)"
    child = subprocess.Popen(
        [*COMMAND, "sql", query, "--home", str(home), "--format", "csv"], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == "trajectory_id\n"
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    child.wait(timeout=60)


def test_tables_are_listed_with_units_and_descriptions(headrace):
    listed = headrace("tables").stdout.splitlines()
    assert any(line.startswith("trajectories") for line in listed)
    assert any(line.startswith("learning_curve ") and " view   One row is" in line for line in listed)
    columns = {line.split()[0]: line for line in headrace("tables", "trajectories").stdout.splitlines()}
    assert columns["peak_memory_bytes"].split()[1:3] == ["int64", "bytes"]
    assert columns["turns"].split()[1] == "list<record>"
    assert columns["turns.logprobs"].split()[1:3] == ["list<float>", "nats"]
    done = headrace("tables", "trajectory")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no table or view is named `trajectory`\n\nhint: did you mean `trajectories`?\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [(CommitConflict("x"), 1), (KeyboardInterrupt(), 130), (ValueError("x"), 1), (typer.Exit(5), 5)],
)
def test_errors_become_statuses(error, code, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        explained(command)()
    assert caught.value.exit_code == code


def test_an_unknown_error_is_one_line_and_a_log(tmp_path, capsys):
    def command(home: str) -> None:
        raise ZeroDivisionError("by zero")

    with pytest.raises(typer.Exit):
        explained(command)(home=str(tmp_path))
    (log,) = (tmp_path / "logs").iterdir()
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: unexpected ZeroDivisionError: by zero\n\nhint: the traceback is in {log}\n"
    assert 'raise ZeroDivisionError("by zero")' in log.read_text()


def test_the_quality_gate_has_a_status_of_its_own():
    assert EXIT_CODES[f"{QualityStop.__module__}.{QualityStop.__qualname__}"] == 3


@pytest.mark.parametrize("name", [*EXIT_CODES, *HINTS])
def test_every_error_named_here_exists(name):
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), Exception)


INTERNAL = {
    "transforms.sources.asserts.CannotCompile": "an importer turns it into `unsupported`",
    "transforms.verify.values.ValueCodecError": "the verifier turns it into a case's result",
    "transforms.sources.task.TaskBroken": "the verification that met it is kept as `grader_error`",
    "transforms.sources.repository.RepositoryError": "no command reads repositories yet; for those who call it",
    "transforms.verify.math.VerifierDisagreement": "an attempt's outcome",
    "transforms.verify.report._Forged": "the verifier turns it into a case's result",
    "transforms.verify.documents.Differs": "the verifier turns it into a case's result",
    "transforms.verify.patch.PatchError": "the verifier turns it into the cases' results",
    "transforms.verify.patch.PathRefused": "the verifier turns it into the cases' results",
    "transforms.verify.answers.tokens.Unreadable": "a wrong answer",
    "transforms.verify.answers.numeric._NoValue": "a verifier without a verdict",
    "transforms.verify.answers.same.Undecided": "a verifier without a verdict",
    "sandboxes.scheduling.tickets.QueueFull": "the fleet holds the request back until there is room",
    "sandboxes.network.request.Answer": "the proxy sends it to the program",
    "sandboxes.remote.wire.BrokenMessage": "the connection to the host ends, which is a SandboxError",
    "transforms.quality.suite.SuiteError": "a defect of ours: the traceback is what helps",
}
"""Errors without a message for users, and why."""


def test_every_error_of_ours_has_a_status():
    bases: dict[str, list[str]] = {}
    where: dict[str, str] = {}
    for package in ("pipelines", "transforms", "training", "sandboxes"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                    where[node.name] = f"{module}.{node.name}"

    def ancestry(name: str) -> list[str]:
        return [name, *(each for base in bases.get(name, []) for each in ancestry(base))]

    errors = [
        name for name in bases if {"Exception", "RuntimeError", "ValueError", "ArithmeticError"} & set(ancestry(name))
    ]
    assert len(errors) > 10
    lost = [
        where[name]
        for name in errors
        if not any(where.get(each) in {*EXIT_CODES, *INTERNAL} for each in ancestry(name))
    ]
    assert lost == []


def test_a_home_without_tables_is_the_users_mistake_and_not_an_empty_answer(headrace, tmp_path):
    done = headrace("sql", "SELECT count(*) FROM trajectories", "--home", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {tmp_path}/nowhere holds no tables\n\n"
        "hint: --home or HEADRACE_HOME names the folder that a run wrote to\n"
    )


def test_json_has_no_nan(headrace, home):
    statement = "SELECT cast('nan' AS double) AS n, [1.5, cast('inf' AS double)] AS l"
    done = headrace("sql", statement, "--home", str(home), "--format", "json")
    assert json.loads(done.stdout) == [{"n": None, "l": [1.5, None]}]


def test_rows_wider_than_the_terminal_are_shown_a_line_a_column(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_rows(pa.table({"name": ["a" * 30, "b"], "n": [1, 2], "more": ["c" * 20, "d"]}), "table")
    out = capsys.readouterr().out
    assert out == f"-- row 1\nname  {'a' * 30}\nn     1\nmore  {'c' * 20}\n-- row 2\nname  b\nn     2\nmore  d\n"


def test_a_dry_run_means_the_same_spec_in_another_folder(headrace, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "t.jsonl").write_text(json.dumps(ADD))
    (tmp_path / "other" / "s.yaml").write_text("name: s\ntasks: {train: ../t.jsonl, heldout: null}\n")
    printed = headrace("run", "other/s.yaml", "--dry-run")
    assert printed.returncode == 0, printed.stderr
    (tmp_path / "flat.yaml").write_text(printed.stdout)
    again = headrace("run", "flat.yaml", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert f"train: {tmp_path}/t.jsonl" in again.stdout


def test_a_part_that_is_not_installed_is_named_with_the_extra_that_brings_it(capsys):
    @explained
    def command() -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == (
        "error: the package `torch` is not installed, and this command needs it\n\n"
        "hint: install Headrace with its `cpu` extra, or `gpu` for a GPU; in a clone, `make setup` does\n"
    )
