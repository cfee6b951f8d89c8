# ruff: noqa: E501 - one program a line
"""How fast programs that read stdin are graded, in C++ and Python, and what one more case costs.

    .venv/bin/python -m tests.benchmarks.stdio_rate [PROGRAMS] [PARALLEL]

Three small right programs a language, graded in turns on 1 and on 21 cases, so many at a time, after one to warm up:
the difference over 20 is the cost of a case. The compiler's share is that of C++ on 1 case against Python on 1 case.
"""

import asyncio
import sys
import time

from sandboxes.backends.bubblewrap import Bubblewrap
from sandboxes.protocol import SandboxRequest
from transforms.grade.outcomes import Outcome
from transforms.sources.kinds.stdio import Case, Stdio
from transforms.verify.stdio import run_stdio

PROGRAMS = {
    "python": (
        "print(sum(map(int, input().split())))",
        "import sys\nfrom collections import deque\nq = deque(map(int, sys.stdin.read().split()))\ns = 0\nwhile q: s += q.pop()\nprint(s)",
        "import heapq, itertools, math\nprint(int(math.fsum(heapq.merge(map(int, input().split())))))",
    ),
    "cpp": (
        "#include <iostream>\nint main() { long a, s = 0; while (std::cin >> a) s += a; std::cout << s; }",
        "#include <cstdio>\nint main() { long a, s = 0; while (scanf(\"%ld\", &a) == 1) s += a; printf(\"%ld\", s); }",
        "#include <bits/stdc++.h>\nusing namespace std;\nint main() { vector<long> v(istream_iterator<long>(cin), {}); cout << accumulate(v.begin(), v.end(), 0L); }",
    ),
}  # fmt: skip
EXTRA = 20


async def seconds(language: str, cases: int, programs: int, parallel: int) -> float:
    """Grade so many programs, all of which must pass; seconds a program."""
    check = Stdio(tuple(Case(str(n), f"{n} {n * n} 7\n", f"{n + n * n + 7}\n") for n in range(cases)), language)
    slots = asyncio.Semaphore(parallel)

    async def grade(number: int) -> None:
        async with slots:
            report = await run_stdio(Bubblewrap(), check, PROGRAMS[language][number % 3], SandboxRequest())
        if any(result.outcome is not Outcome.PASSED for result in report.results):
            raise AssertionError(f"a right program failed: {report}")

    await grade(0)
    began = time.monotonic()
    await asyncio.gather(*map(grade, range(programs)))
    return (time.monotonic() - began) / programs


async def main(programs: int, parallel: int) -> None:
    """Print a line a language."""
    for language in PROGRAMS:
        one = await seconds(language, 1, programs, parallel)
        many = await seconds(language, 1 + EXTRA, programs, parallel)
        sys.stdout.write(
            f"{language}: {1 / one:.1f} programs/s on 1 case, {1 / many:.1f} on {1 + EXTRA}, "
            f"{1000 * (many - one) / EXTRA:.1f} ms a case more; {programs} programs, {parallel} at a time\n"
        )


if __name__ == "__main__":
    asyncio.run(main(*map(int, [*sys.argv[1:], *("60", "2")[len(sys.argv) - 1 :]])))
