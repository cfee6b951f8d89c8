"""Charts of the quality report, as inline SVG. Colours are the page's CSS variables: light, dark and print follow."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

Row = dict[str, Any]

COLOURS = 8
"""Colours for series; more series begin again."""


def trend(measure: Row, runs: Sequence[str]) -> Markup:
    """A check's values over cycles, a line a run, below or above its dashed limit; broken ones are marked."""
    points = [point for point in measure["points"] if point["observed"] is not None]
    limits = [point["limit"] for point in points if point["limit"] is not None]
    top = 1.12 * max([*(point["observed"] for point in points), *limits], default=0.0) or 1.0
    axes = _Axes(260, 116, [point["cycle"] for point in measure["points"]], top, left=38)
    parts = [*axes.frame(steps=2)]
    if limits:
        at = axes.y(limits[-1])
        parts.append(f'<line class="limit" x1="{axes.left}" x2="{axes.right}" y1="{at}" y2="{at}"/>')
    for place, run in enumerate(runs):
        mine = [point for point in points if point["run_id"] == run]
        parts.append(axes.line(mine, "observed", place))
        for point in mine:
            told = f"{run}, cycle {point['cycle']}: {point['observed']:.4g}, limit {point['limit'] or 0:.4g}"
            parts.append(axes.dot(point["cycle"], point["observed"], place, told, broken=not point["success"]))
    return axes.svg(parts, f"{measure['expectation']} over cycles")


def rates(series: Mapping[str, Sequence[Row]], column: str, title: str) -> Markup:
    """Values in 0 .. 1 over cycles, a line a series."""
    cycles = [row["cycle"] for rows in series.values() for row in rows]
    axes = _Axes(760, 260, cycles, 1.0, left=40)
    parts = [*axes.frame(steps=5)]
    for place, (name, rows) in enumerate(series.items()):
        known = [row for row in rows if row[column] is not None]
        parts.append(axes.line(known, column, place))
        parts += [
            axes.dot(row["cycle"], row[column], place, f"{name}, cycle {row['cycle']}: {row[column]:.3f}")
            for row in known
        ]
    return axes.svg(parts, title)


def mix(rows: Sequence[Row], names: Sequence[str], title: str) -> Markup:
    """Shares that sum to 1, a bar a cycle, stacked in the order of `names`."""
    cycles = sorted({row["cycle"] for row in rows})
    axes = _Axes(760, 240, cycles, 1.0, left=40)
    width = min(46.0, 0.7 * (axes.right - axes.left) / max(1, len(cycles)))
    parts = [*axes.frame(steps=5)]
    for cycle in cycles:
        shares = {row["outcome"]: row["share"] for row in rows if row["cycle"] == cycle}
        below = 0.0
        for place, name in enumerate(names):
            share = shares.get(name, 0.0)
            if share:
                high, low = axes.y(below + share), axes.y(below)
                box = f'x="{axes.x(cycle) - width / 2:.1f}" y="{high}" width="{width:.1f}" height="{low - high:.1f}"'
                told = f"{escape(name)}, cycle {cycle}: {share:.1%}"
                parts.append(f'<rect class="{_colour(name, place)}" {box}><title>{told}</title></rect>')
            below += share
    return axes.svg(parts, title)


def strip(tasks: Sequence[Row], title: str) -> Markup:
    """Tasks from the hardest to the easiest: a dot each at its pass rate; those without a signal are hollow."""
    known = [task for task in tasks if task["pass_rate"] is not None]
    axes = _Axes(760, 170, list(range(1, len(known) + 1)), 1.0, left=40, ticks=False)
    parts = [*axes.frame(steps=2)]
    for place, task in enumerate(known, 1):
        told = f"{task['task_id']}: {task['pass_rate']:.2f} of {task['scored']} answers, {task['verdict']}"
        kind = "c0" if task["signal"] else "hollow"
        parts.append(
            f'<circle class="{kind}" cx="{axes.x(place):.1f}" cy="{axes.y(task["pass_rate"])}" r="4">'
            f"<title>{escape(told)}</title></circle>"
        )
    return axes.svg(parts, title)


def _colour(name: str, place: int) -> str:
    return "good" if name == "passed" else f"c{place % COLOURS}"


class _Axes:
    """Where things are in a chart with cycles across and values up."""

    def __init__(
        self, width: int, height: int, cycles: Sequence[int], top: float, *, left: int, ticks: bool = True
    ) -> None:  # fmt: skip
        self.width, self.height, self.top, self.left, self.right = width, height, top, left, width - 12
        self.first, self.last, self.ticks = min(cycles, default=0), max(cycles, default=1), ticks

    def x(self, cycle: float) -> float:
        inner = self.right - self.left - 60
        return round(self.left + 30 + inner * (cycle - self.first) / max(1, self.last - self.first), 1)

    def y(self, value: float) -> float:
        return round(8 + (self.height - 32) * (1 - value / self.top), 1)

    def frame(self, steps: int) -> list[str]:
        parts = []
        for step in range(steps + 1):
            value = self.top * step / steps
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{at}" y2="{at}"/>')
            parts.append(f'<text x="{self.left - 6}" y="{at + 4}" text-anchor="end">{value:.2g}</text>')
        every = max(1, -(-(self.last - self.first + 1) // max(2, self.width // 60)))
        for cycle in range(self.first, self.last + 1, every) if self.ticks else ():
            parts.append(f'<text x="{self.x(cycle)}" y="{self.height - 6}" text-anchor="middle">{cycle}</text>')
        return parts

    def line(self, rows: Sequence[Row], column: str, place: int) -> str:
        points = " ".join(f"{self.x(row['cycle'])},{self.y(row[column])}" for row in rows)
        return f'<polyline class="line c{place % COLOURS}" points="{points}"/>'

    def dot(self, cycle: int, value: float, place: int, told: str, *, broken: bool = False) -> str:
        kind = "broken" if broken else f"c{place % COLOURS}"
        radius = 5 if broken else 3.2
        spot = f'cx="{self.x(cycle)}" cy="{self.y(value)}" r="{radius}"'
        return f'<circle class="{kind}" {spot}><title>{escape(told)}</title></circle>'

    def svg(self, parts: Sequence[str], title: str) -> Markup:
        head = f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img"><title>{escape(title)}</title>'
        return Markup("\n".join([head, *parts, "</svg>"]))  # names in it are escaped where they are put in
