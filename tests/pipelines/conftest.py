"""A tiny policy, tasks that its random answers solve by chance, and a server that runs `headrace` on them."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipelines.command import COMMAND
from tests.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]

SPEC = """
name: crash
engine: {{kind: transformers, dtype: float32, max_model_len: 64}}
policy: {{model: {material}/model}}
tasks: {{train: {material}/tasks.jsonl, heldout: {material}/tasks.jsonl}}
sampling: {{max_tokens: 1, stop: []}}
quality: {{max_truncation_rate: 1.0, max_duplicate_rate: 1.0}}
training: {{dtype: float32, lr: 1e-3, groups_per_step: 2}}
cycles: {{count: 2, group_size: 4, groups_per_chunk: 2}}
evaluation: {{samples: 2}}
"""
EPISODES = 2 * 2 * (2 + 1) + 2 * 3 * 4
"""Before and after: 2 held-out tasks, 2 sampled and 1 greedy answer; 2 cycles of 3 tasks and 4 answers."""


def program(body: str) -> str:
    """One token that is a whole answer (the tokenizer splits on spaces, so it holds none)."""
    return f"```python\ndef\tf(x):\n\treturn\t{body}\n```"


def task(name: str, split: str, body: str, cases: list[tuple[int, int]]) -> dict[str, object]:
    return {
        "task_id": name,
        "prompt": f"w{name}",
        "entry_point": "f",
        "split": split,
        "gold": f"def f(x):\n return {body}",
        "cases": [{"args": [x], "expected": value} for x, value in cases],
    }


TASKS = [
    task("same", "train", "x", [(3, 3), (-2, -2)]),
    task("double", "train", "x*2", [(3, 6), (-2, -4)]),
    task("even", "train", "x*x*0", [(3, 0), (7, 0)]),
    task("negate", "heldout", "-x", [(3, -3), (0, 0)]),
    task("square", "heldout", "x*x", [(3, 9), (5, 25)]),
]


@dataclass
class Driver:
    """Runs `headrace run SPEC` in a fresh process each time; `output` is what the last one printed."""

    server: subprocess.Popen[str]
    material: Path
    output: str = ""

    def run(
        self,
        home: Path,
        *options: str,
        at: int | None = None,
        by: signal.Signals = signal.SIGKILL,
        kill_after_s: float | None = None,
    ) -> int:
        """The exit status, or the negative number of the signal that ended it.

        It is sent the signal `by` at its boundary number `at`, counting from 1; or killed after some seconds.
        """
        spec, out, names = (home.with_name(home.name + end) for end in (".yaml", ".out", ".names"))
        if not spec.exists():
            spec.write_text(SPEC.format(material=self.material))
        names.write_text("")
        command = {
            "argv": ["run", str(spec), "--plain", "--home", str(home), *options],
            "at": at, "by": by, "kill_after_s": kill_after_s, "out": str(out), "names": str(names),
        }  # fmt: skip
        assert self.server.stdin
        assert self.server.stdout
        self.server.stdin.write(json.dumps(command) + "\n")
        self.server.stdin.flush()
        code = json.loads(self.server.stdout.readline())["code"]
        self.output = out.read_text()
        return code

    def write_spec(self, home: Path, **changed: str) -> None:
        """Write the spec of this home, with whole sections changed."""
        text = SPEC.format(material=self.material)
        for key, value in changed.items():
            text = re.sub(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.MULTILINE)
        home.with_name(home.name + ".yaml").write_text(text)

    def finish(self, home: Path, *options: str) -> None:
        assert self.run(home, *options) == 0, self.output[-3000:]

    def boundaries(self, home: Path) -> list[str]:
        """Names of the boundaries that the last run of this home passed."""
        return home.with_name(home.name + ".names").read_text().splitlines()


@pytest.fixture
def headrace(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command in an empty folder, as a user would."""

    def run(*arguments: str, columns: int = 100) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    material = tmp_path_factory.mktemp("material")
    make_tiny_model(material / "model", [program(body) for body in ("x", "-x", "x+1", "x*2", "0", "x*x", "y")])
    (material / "tasks.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crash_server.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    yield Driver(server, material)
    assert server.stdin
    server.stdin.close()
    server.wait(timeout=30)
