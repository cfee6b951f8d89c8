"""Grade again what we failed to judge, and put each new row in the old one's place.

A retry fills a second file beside the first, `R.jsonl.retry`: a row with a verdict is copied, any other is made anew.
At its end, and where it is stopped, the old rows that it did not come to follow, and the file takes the first one's
place in one step. A kill leaves both files, the first untouched; the next command then does what is left of that.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.grade_input import Submission
from pipelines.grade_output import Results, unjudged


def open_results(path: Path) -> Results:
    """Open the file for rows; a retry of it that was killed is completed first. Raises ResultsError, ResultsFull."""
    if _beside(path).exists():
        with Results(path) as results, Results(_beside(path)) as retried:
            if _is_of(retried, results):
                complete(retried, results)
            _beside(path).unlink(missing_ok=True)
    return Results(path)


def open_retry(results: Results) -> Results:
    """Open the second file, which is new. Raises ResultsError."""
    return Results(_beside(results.path))


def kept_or_again(
    submissions: Iterator[Submission], rows: Iterator[dict[str, Any]]
) -> Iterator[Submission | dict[str, Any]]:
    """For each submission in turn its row, where that has a verdict, else the submission itself, to be graded."""
    for submission in submissions:
        row = next(rows, None)
        yield submission if row is None or unjudged(row) else row


def complete(retried: Results, results: Results) -> None:
    """Put the rows that a retry did not come to behind its own, and its file in the place of the first.

    A retry without a row changes nothing. Raises ResultsFull.
    """
    done = sum(1 for _ in retried.rows())
    if done:
        for row in islice(results.rows(), done, None):
            retried.append(json.dumps(row))
        retried.replace(results)


def _beside(path: Path) -> Path:
    real = path.resolve()
    return real.with_name(f"{real.name}.retry")


def _is_of(retried: Results, results: Results) -> bool:
    """Whether a second file that was left there is of these rows, and not of some that were there before them."""
    fits = False
    for old, new in zip(results.rows(), retried.rows(), strict=False):
        fits = new == old or (unjudged(old) and new["program_sha256"] == old["program_sha256"])
        if not fits:
            break
    return fits
