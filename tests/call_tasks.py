"""Tasks of the kind `call`, for tests that look into them."""

from transforms.sources.kinds.call import Call
from transforms.sources.task import Task


def call_of(task: Task) -> Call:
    """The task's check, which must be a call."""
    assert isinstance(task.check, Call)
    return task.check
