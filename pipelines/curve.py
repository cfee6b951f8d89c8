"""The learning curve as one inline SVG. Colours are the page's CSS variables, so it follows light, dark and print."""

from dataclasses import dataclass, field

from markupsafe import Markup

_WIDTH, _HEIGHT = 760, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 16, 46


@dataclass(frozen=True, slots=True)
class Point:
    """A rate in 0 .. 1 with its interval, at a policy version."""

    version: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn: mean training reward by policy version, and held-out rates before and after."""

    train: list[Point] = field(default_factory=list)
    sampled: list[Point] = field(default_factory=list)
    greedy: list[Point] = field(default_factory=list)


def draw(curve: Curve) -> Markup:
    """The SVG element; empty when there is no point at all."""
    points = [*curve.train, *curve.sampled, *curve.greedy]
    if not points:
        return Markup("")
    last = max(1, *(point.version for point in points))

    def x(version: float) -> float:
        return _LEFT + 14 + (_WIDTH - _LEFT - _RIGHT - 28) * version / last

    def y(rate: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - rate)

    parts = [
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="curve-title">',
        '<title id="curve-title">Mean training reward and held-out pass rates by policy version</title>',
    ]
    for tenth in range(0, 11, 2):
        at = y(tenth / 10)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    every = max(1, -(-last // 16))
    for version in range(0, last + 1, every):
        parts.append(
            f'<text class="tick" x="{x(version):.1f}" y="{_HEIGHT - 26}" text-anchor="middle">{version}</text>'
        )
    parts.append(
        f'<text class="label" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">'
        "policy version (cycles of training behind it)</text>"
    )
    if curve.train:
        upper = [f"{x(p.version):.1f},{y(p.high):.1f}" for p in curve.train]
        lower = [f"{x(p.version):.1f},{y(p.low):.1f}" for p in reversed(curve.train)]
        line = " ".join(f"{x(p.version):.1f},{y(p.mean):.1f}" for p in curve.train)
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        parts.append(f'<polyline class="train" points="{line}"/>')
        parts += [_dot("train-dot", x(p.version), y(p.mean), f"training reward {p.mean:.3f}") for p in curve.train]
    for name, series, shift in (("sampled", curve.sampled, -5), ("greedy", curve.greedy, 5)):
        for p in series:
            at = x(p.version) + shift
            parts.append(f'<line class="{name}" x1="{at:.1f}" x2="{at:.1f}" y1="{y(p.low):.1f}" y2="{y(p.high):.1f}"/>')
            parts.append(
                _dot(f"{name}-dot", at, y(p.mean), f"held-out, {name}: {p.mean:.3f} [{p.low:.3f}, {p.high:.3f}]")
            )
    parts.append("</svg>")
    return Markup("\n".join(parts))


def _dot(kind: str, x: float, y: float, title: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{title}</title></circle>'
