"""The geometry of charts; templates draw it as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Axes:
    """A box of `width` by `height` inside its margins, with its ticks."""

    width: float
    height: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers that cover [low, high], about as many as asked for."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _linear(low: float, high: float, length: float) -> Callable[[float], float]:
    """Return the place of a value on an axis of a length; that of an empty range is its start."""
    return lambda value: (value - low) / ((high - low) or 1) * length


# The network as a picture.

_SLOT = 30.0  # every layer has room for its numbers, however thin it is
_GAP = 12.0
_PAPER_WIDTH = 1040.0
_LEVEL_STEP = 44.0


@dataclass(frozen=True)
class Block:
    """A layer: its channels are its width, its resolution is its height."""

    number: int
    name: str
    x: float
    y: float
    width: float
    height: float
    kept_width: float
    neurons: int
    kept: int
    fixed: bool


@dataclass(frozen=True)
class Link:
    """A line from layer to layer: "next", "skip" (concatenated, or fed further) or "add"."""

    kind: str
    path: str


@dataclass(frozen=True)
class Picture:
    """Blocks and links, with the size of the whole."""

    width: float
    height: float
    blocks: list[Block]
    links: list[Link]


def network_picture(layers: Sequence[Mapping[str, Any]], topology: Mapping[str, Any]) -> Picture:
    """Lay out layers from left to right, deeper ones lower: encoder and decoder make a U.

    Layers have `name`, `neurons`, `kept` and `fixed`; the topology is as recorded.
    """
    levels = _levels(topology["space"])
    neurons = [layer["neurons"] for layer in layers]
    width = max(_PAPER_WIDTH, (_SLOT + 2) * len(layers))
    unit = _channel_width(neurons, width)
    feeds = [(i, j, _is_level(levels, i, j)) for i, j in topology["feeds"]]
    spans = [j - i for i, j, level in feeds if j > i + 1 and not level]
    spans += [j - i for i, j in topology["adds"]]
    top = 8 + (_arc_height(max(spans)) if spans else 0)
    blocks, x = [], 0.0
    for number, (layer, level) in enumerate(zip(layers, levels, strict=True)):
        size = max(unit * layer["neurons"], 4.0)
        slot = max(unit * layer["neurons"] + _GAP, _SLOT)
        blocks.append(
            Block(
                number=number,
                name=layer["name"],
                x=round(x + (slot - size) / 2, 1),
                y=top + level * _LEVEL_STEP,
                width=round(size, 1),
                height=max(96.0 - 13 * level, 22.0),
                kept_width=round(size * layer["kept"] / layer["neurons"], 1),
                neurons=layer["neurons"],
                kept=layer["kept"],
                fixed=layer["fixed"] == layer["neurons"],
            )
        )
        x += slot
    links = [_feed(blocks[i], blocks[j], j - i, level) for i, j, level in feeds]
    links += [Link("add", _arc(blocks[i], blocks[j], j - i)) for i, j in topology["adds"]]
    height = max(block.y + block.height for block in blocks) + 34
    return Picture(round(x, 1), height, blocks, links)


def _levels(spaces: Sequence[Sequence[int] | None]) -> list[int]:
    """Return how often the resolution was halved; a layer of unknown size stays with the last."""
    edges: list[float] = []
    for space in spaces:
        if space is None:
            edges.append(edges[-1] if edges else 1.0)
        else:
            edges.append(math.prod(space) ** (1 / len(space)) if space else 1.0)
    largest = max(edges)
    return [min(round(math.log2(largest / edge)), 7) for edge in edges]


def _channel_width(neurons: Sequence[int], width: float) -> float:
    """Return how wide a channel may be for all layers to fit, by bisection."""
    low, high = 0.0, width
    for _ in range(40):
        unit = (low + high) / 2
        if sum(max(unit * n + _GAP, _SLOT) for n in neurons) <= width:
            low = unit
        else:
            high = unit
    return low


def _is_level(levels: Sequence[int], i: int, j: int) -> bool:
    """Return whether a straight line between two layers passes over those in between."""
    return levels[i] == levels[j] and all(level > levels[i] for level in levels[i + 1 : j])


def _feed(a: Block, b: Block, span: int, level: bool) -> Link:
    if span == 1:
        x1, y1, x2, y2 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
        bend, rise = (x2 - x1) / 2, y2 - y1
        curve = f"c{bend:.1f} 0 {bend:.1f} {rise:.1f} {x2 - x1:.1f} {rise:.1f}"
        return Link("next", f"M{x1:.1f} {y1:.1f}{curve}")
    if level:
        return Link("skip", f"M{a.x + a.width:.1f} {a.y + a.height / 4:.1f}H{b.x:.1f}")
    return Link("skip", _arc(a, b, span))


def _arc(a: Block, b: Block, span: int) -> str:
    x1, x2 = a.x + a.width / 2, b.x + b.width / 2
    peak = min(a.y, b.y) - 4 / 3 * _arc_height(span) + 6
    return f"M{x1:.1f} {a.y:.1f}C{x1:.1f} {peak:.1f} {x2:.1f} {peak:.1f} {x2:.1f} {b.y:.1f}"


def _arc_height(span: int) -> float:
    return min(10.0 + 5 * span, 64.0)


# Lines over time.


@dataclass(frozen=True)
class Series:
    """A line: its points as an SVG path, the same closed down to the axis, and its last point."""

    name: str
    line: str
    area: str
    end: str


@dataclass(frozen=True)
class LineChart(Axes):
    """Lines with their axes."""

    series: list[Series]
    marks: list[Tick]


def line_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    width: float = 760,
    height: float = 230,
    from_zero: bool = True,
    steps: bool = False,
    marks: Iterable[tuple[float, str]] = (),
) -> LineChart:
    """Lay out lines of points over a common axis.

    With `steps` a value holds until the next point; `marks` are places on the horizontal axis with
    a word each.
    """
    points = [point for line in lines.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    counted = all(float(x).is_integer() for x, _ in points)  # check-ins, epochs: none is half
    x_ticks = [x for x in nice_ticks(x_low, x_high) if x_low <= x <= x_high]
    values = [y for _, y in points]
    y_ticks = nice_ticks(0.0 if from_zero else min(values), max(values))
    across = _linear(x_low, x_high, width)
    rise = _linear(y_ticks[0], y_ticks[-1] if len(y_ticks) > 1 else y_ticks[0] + 1, height)

    def up(y: float) -> float:
        return height - rise(y)

    series = []
    for name, line in lines.items():
        path = ""
        for x, y in line:
            if steps and path:
                path += f"H{across(x):.1f}V{up(y):.1f}"
            else:
                path += f"{'L' if path else 'M'}{across(x):.1f} {up(y):.1f}"
        closed = f"{path}V{height:.0f}H{across(line[0][0]):.1f}Z"
        x, y = line[-1]
        series.append(Series(name, path, closed, f"M{across(x):.1f} {up(y):.1f}h0"))
    return LineChart(
        width,
        height,
        [Tick(across(x), f"{x:g}") for x in x_ticks if not counted or float(x).is_integer()],
        [Tick(up(y), f"{y:,g}") for y in y_ticks],
        series,
        [Tick(across(x), label) for x, label in marks],
    )


# Accuracy against a cost.


@dataclass(frozen=True)
class Point:
    """A network: cost and accuracy, or its place; the ends of its interval; colour and shape."""

    name: str
    x: float
    y: float
    low: float
    high: float
    colour: int
    shape: int


@dataclass(frozen=True)
class Scatter(Axes):
    """Points with their axes; by colour, the frontier of its points as an SVG path."""

    points: list[Point]
    frontiers: dict[int, str]


def scatter(
    points: Sequence[Point], *, width: float = 300, height: float = 210, end: int | None = None
) -> Scatter:
    """Lay out accuracy (up) against a cost (across, logarithmic beyond a factor of 8).

    Points that would cover each other stand side by side: networks of one budget cost the same.
    `end` is the number of the point at which the frontier of every colour ends; without it there
    are no frontiers.
    """
    costs = [point.x for point in points]
    logarithmic = min(costs) > 0 and max(costs) / min(costs) > 8
    x_ticks = decades(min(costs), max(costs)) if logarithmic else nice_ticks(0, max(costs), 4)
    y_ticks = nice_ticks(min(p.low for p in points), max(p.high for p in points))
    if len(y_ticks) == 1:
        y_ticks = [y_ticks[0] - 1, y_ticks[0], y_ticks[0] + 1]
    x_low, x_high = x_ticks[0], x_ticks[-1]
    proportional, rise = _linear(x_low, x_high, width), _linear(y_ticks[0], y_ticks[-1], height)

    def across(x: float) -> float:
        if logarithmic:
            return round(math.log(x / x_low) / math.log(x_high / x_low) * width, 1)
        return round(proportional(x), 1)

    def up(y: float) -> float:
        return round(height - rise(y), 1)

    places = _side_by_side([across(x) for x in costs], width)
    shown = [
        replace(point, x=place, y=up(point.y), low=up(point.low), high=up(point.high))
        for place, point in zip(places, points, strict=True)
    ]
    return Scatter(
        width,
        height,
        [Tick(across(x), f"{x:,g}") for x in x_ticks],
        [Tick(up(y), f"{y:g}") for y in y_ticks],
        shown,
        {} if end is None else _frontiers(shown, end),
    )


def _frontiers(points: Sequence[Point], end: int) -> dict[int, str]:
    """Join the points of each colour that no cheaper one of it surpasses, up to the last one."""
    found = {}
    for colour in dict.fromkeys(point.colour for point in points):
        members = sorted(
            (p for p in points if p.colour == colour or p is points[end]), key=lambda p: p.x
        )
        best = [p for i, p in enumerate(members) if all(p.y < other.y for other in members[:i])]
        if len(best) > 1:
            found[colour] = "M" + "L".join(f"{point.x} {point.y}" for point in best)
    return found


_POINT = 6.0  # whiskers apart, dots overlapping by half: places on the axis stay nearly true


def _side_by_side(places: Sequence[float], width: float) -> list[float]:
    """Return places on an axis, moved as little as it takes for points to be told apart."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    clusters: list[list[int]] = []
    for i in order:
        clusters.append([i])
        # A cluster takes room on both sides, and may then reach the one before it.
        while len(clusters) > 1 and (
            _first(clusters[-1], places, width) - _first(clusters[-2], places, width)
            < _POINT * len(clusters[-2])
        ):
            clusters[-2:] = [clusters[-2] + clusters[-1]]
    moved = list(places)
    for cluster in clusters:
        first = _first(cluster, places, width)
        for position, i in enumerate(cluster):
            moved[i] = round(first + _POINT * position, 1)
    return moved


def _first(cluster: Sequence[int], places: Sequence[float], width: float) -> float:
    """Return the place of a cluster's first point; its middle is that of its points, if inside."""
    middle = sum(places[i] for i in cluster) / len(cluster)
    reach = _POINT * (len(cluster) - 1)
    return min(max(middle - reach / 2, 0.0), max(width - reach, 0.0))


def decades(low: float, high: float) -> list[float]:
    """Return 1, 3, 10, 30, ... that cover a range."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [float(f"{m}e{e}") for e in exponents for m in (1, 3)]
    first = max(i for i, mark in enumerate(marks) if mark <= low)
    last = min(i for i, mark in enumerate(marks) if mark >= high)
    return marks[first : last + 1]
