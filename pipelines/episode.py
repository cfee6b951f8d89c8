"""Everything that the tables of a home folder say of one trajectory."""

from typing import Any

from pipelines.explain import UsageError
from transforms.lake.sql import literal, query
from transforms.lake.storage import Place

_SHORTEST, _MOST_NAMED = 6, 20


def read_episode(home: Place, beginning: str) -> dict[str, Any]:
    """The trajectory of which this is the id, or the beginning of the id and of no other.

    Keys: `trajectory`, its row; `run`, `task` and `policy`, rows that it refers to, null if they are not there;
    `group`, the attempts of all samples of its group with the `advantage` each was trained with, if it was; `trained`,
    the optimizer steps that used it and the policies they led to; `checks`, over its chunk and its cycle. Raises
    UsageError for an id that is too short or not there, and for one with several endings, which are named.
    """
    row = query(
        home, f"SELECT * FROM trajectories WHERE trajectory_id = {literal(_whole(home, beginning))}"
    ).to_pylist()[0]
    run, group = f"run_id = {literal(row['run_id'])}", f"group_id = {literal(row['group_id'])}"

    def first(sql: str) -> dict[str, Any] | None:
        return next(iter(query(home, sql).to_pylist()), None)

    used = query(
        home,
        f"""SELECT c.trajectory_id, c.policy_version, c.optimizer_step, c.advantage, c.tokens,
                   p.checkpoint, p.weights_hash
            FROM consumption AS c
            JOIN policies AS p ON p.run_id = c.run_id AND p.policy_version = c.policy_version
            WHERE c.{run} AND c.trajectory_id IN (SELECT trajectory_id FROM trajectories WHERE {run} AND {group})
            ORDER BY c.policy_version, c.optimizer_step""",
    ).to_pylist()
    advantages = {step["trajectory_id"]: step["advantage"] for step in used}
    attempts = query(
        home,
        f"""SELECT trajectory_id, episode_id, sample, attempt, final, outcome, outcome_class, reward, completion_tokens,
                   failure, quarantine_reasons
            FROM trajectories WHERE {run} AND {group} ORDER BY sample, attempt""",
    ).to_pylist()
    return {
        "trajectory": row,
        "run": first(f"SELECT * FROM runs WHERE {run}"),
        "task": first(f"SELECT * FROM tasks WHERE task_hash = {literal(row['task_hash'])}"),
        "policy": first(
            f"""SELECT policy_version, parent_version, checkpoint, weights_hash, created_at FROM policies
                WHERE {run} AND policy_version = {row["policy_version"]}"""
        ),
        "group": [{**each, "advantage": advantages.get(each["trajectory_id"])} for each in attempts],
        "trained": [step for step in used if step["trajectory_id"] == row["trajectory_id"]],
        "checks": query(
            home,
            f"""SELECT * FROM checks
                WHERE {run} AND cycle = {row["cycle"]} AND (chunk IS NULL OR chunk = {row["chunk"]})
                ORDER BY success, chunk, suite, expectation""",
        ).to_pylist(),
    }  # fmt: skip


def _whole(home: Place, beginning: str) -> str:
    """The id that begins so. Raises UsageError unless there is exactly one, or one that is equal."""
    if len(beginning) < _SHORTEST:
        raise UsageError(f"`{beginning}` is too short: give at least {_SHORTEST} characters of the trajectory's id")
    found = query(
        home,
        f"""SELECT trajectory_id FROM trajectories WHERE starts_with(trajectory_id, {literal(beginning)})
            ORDER BY trajectory_id LIMIT {_MOST_NAMED + 1}""",
    ).to_pylist()
    names = [row["trajectory_id"] for row in found]
    if len(names) == 1 or beginning in names:  # it stands first: what it is the beginning of is longer
        return names[0]
    if not names:
        raise UsageError(
            f"no trajectory has an id that begins with `{beginning}`\n\n"
            'hint: headrace sql "SELECT trajectory_id, outcome FROM trajectories ORDER BY 1"'
        )
    more = ["..."] if len(names) > _MOST_NAMED else []
    raise UsageError(
        f"several trajectories begin with `{beginning}`:\n  " + "\n  ".join([*names[:_MOST_NAMED], *more])
        + "\n\nhint: give more of the id"
    )  # fmt: skip
