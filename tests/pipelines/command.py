"""The `headrace` command as a user types it, and a task to give it."""

import sys

COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'headrace'; from pipelines.cli import main; main()"]

ADD = {
    "task_id": "add",
    "prompt": "Write add(a, b).",
    "entry_point": "add",
    "gold": "def add(a, b):\n    return a + b\n",
    "cases": [
        {"name": "small", "args": [1, 2], "expected": 3, "tier": "visible"},
        {"name": "negative", "args": [-1, -2], "expected": -3},
    ],
}
