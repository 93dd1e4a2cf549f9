"""The paper's figures, drawn from plain values, in the style of `ranp.report.figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ranp.report.figures import PALETTE, layer_bars, pyplot_module, styled
from ranp.report.table import ComparisonTable, Figure, Group, Row

_PAGE = 10.0  # inches: readable at page width
_MARKERS = "osD^vPX*"
# Methods in the paper's order, the full network first, RANP-f last and most visible.
_BY_METHOD = ("#000000", "#7f7f7f", *(PALETTE[i] for i in (4, 3, 2, 5, 1, 0)))
_OUTLINE = {"color": "#666666", "linestyle": "none", "fillstyle": "none"}
Curve = Sequence[tuple[float, float]]


def _grid(rows: int, columns: int, height: float, width: float = _PAGE, **options: Any) -> Any:
    """Return a figure and its axes, [rows, columns]."""
    size = (width, height)
    return pyplot_module().subplots(rows, columns, figsize=size, squeeze=False, **options)


def _with_legend(figure: Any, axes: Any) -> Any:
    """Return a figure with the legend of some axes above it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.tight_layout()
    columns = min(len(labels), 5)
    figure.legend(handles, labels, ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


@styled
def draw_importance(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    *,
    shared: bool = True,
) -> Any:
    """Draw the importance of every neuron, and the means of layers, a row per network.

    A panel holds, for every layer, the importance of its neurons. With `shared`, the panels of a
    row have the same axis.
    """
    columns = len(next(iter(panels.values())))
    rows = len(panels)
    figure, grid = _grid(rows, columns, 2.6 * rows, sharey="row" if shared else False)
    for row, (title, by_method) in zip(grid, panels.items(), strict=True):
        for axes, (method, layers) in zip(row, by_method.items(), strict=True):
            _importance(axes, layers)
            axes.set(title=f"{title}: {method}", xlabel="layer")
        row[0].set_ylabel("importance / its mean")
        for axes in row:
            lowest, highest = axes.get_ylim()
            axes.set_ylim(max(lowest, 1e-10 * highest), highest)
    return _with_legend(figure, grid[0][0])


def _importance(axes: Any, layers: Sequence[Sequence[float]]) -> None:
    everything = [value for layer in layers for value in layer]
    mean = sum(everything) / len(everything) or 1.0
    places = [
        number - 0.4 + 0.8 * (i + 0.5) / len(layer)
        for number, layer in enumerate(layers, 1)
        for i in range(len(layer))
    ]
    # All in one, and as pixels: thousands of points make a vector file of megabytes.
    style = {"color": PALETTE[0], "markersize": 1.6, "alpha": 0.6, "rasterized": True}
    axes.plot(places, [value / mean for value in everything], ".", label="neuron", **style)
    means = [sum(layer) / len(layer) / mean for layer in layers]
    style = {"color": PALETTE[1], "markersize": 3, "linewidth": 1.2}
    axes.plot(range(1, len(layers) + 1), means, "o-", label="mean of the layer", **style)
    axes.set_yscale("log")
    step = max(1, len(layers) // 8)
    axes.set_xticks(range(1, len(layers) + 1, step))


@styled
def draw_retained_ratio(table: ComparisonTable) -> Any:
    """Draw the retained ratio and number of neurons in every layer, a row per network.

    The first column of the table is of the full network, the others are of a method each.
    """
    groups = table.groups()
    figure, grid = _grid(len(groups), 2, 2.8 * len(groups))
    for (ratio, numbers), group in zip(grid, groups, strict=True):
        neurons = {
            column.title: [row.figures[column.key].ours[0] for row in group.rows]
            for column in group.columns
        }
        full = neurons.pop(group.columns[0].title)
        layers = range(1, len(full) + 1)
        layer_bars(numbers, layers, full, neurons)
        for i, (method, kept) in enumerate(neurons.items()):
            shares = [k / n for k, n in zip(kept, full, strict=True)]
            style = {"color": PALETTE[i], "markersize": 4, "label": method}
            ratio.plot(layers, shares, _MARKERS[i] + "-", **style)
        ratio.set(title=f"{group.title}: retained ratio", ylabel="retained / all", ylim=(0, 1.05))
        numbers.set(title=f"{group.title}: neurons per layer", ylabel="neurons")
        numbers.set_yscale("log", base=2)
        numbers.set_ylim(bottom=0.7)  # a single neuron is seen, too
        numbers.yaxis.set_major_formatter("{x:g}")
        for axes in (ratio, numbers):
            axes.set(xlabel="layer", xticks=layers[:: max(1, len(layers) // 15)])
    return _with_legend(figure, grid[0][1])


@dataclass(frozen=True)
class Sweep:
    """Resources and accuracy of a network against sparsity.

    Attributes:
        resources: By method and resource, (sparsity, per cent of the full network).
        printed: The same of single points that the paper prints.
        accuracy: By method, (sparsity, per cent); empty where nothing was trained.
        metric: Name of the accuracy.
    """

    resources: Mapping[str, Mapping[str, Curve]]
    printed: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    accuracy: Mapping[str, Curve] = field(default_factory=dict)
    metric: str = "accuracy"


@styled
def draw_sparsity(panels: Mapping[str, Sweep]) -> Any:
    """Draw resources above, accuracy below, against sparsity, a column per network."""
    trained = any(panel.accuracy for panel in panels.values())
    figure, grid = _grid(1 + trained, len(panels), 5.2 if trained else 2.8)
    for column, (title, panel) in enumerate(panels.items()):
        axes = grid[0][column]
        for i, (method, by_resource) in enumerate(panel.resources.items()):
            for j, (resource, points) in enumerate(by_resource.items()):
                label = f"{resource}, {method}"
                _curve(axes, points, PALETTE[i], "-" if j == 0 else "--", _MARKERS[j], label)
                for x, y in panel.printed.get(method, {}).get(resource, ()):
                    axes.plot(x, y, _MARKERS[j], color=PALETTE[i], markersize=9, fillstyle="none")
        if panel.printed:
            axes.plot([], [], marker="o", markersize=9, label="the paper's", **_OUTLINE)
        axes.set_ylim(0, 105)
        if trained:
            below = grid[1][column]
            for i, (method, points) in enumerate(panel.accuracy.items()):
                _curve(below, points, PALETTE[i], "-", "o", method)
            below.set_visible(bool(panel.accuracy))
            below.set_ylabel(f"{panel.metric} (%)")
        for each in grid[:, column]:
            each.set(xlim=(0, 1), xlabel="neuron sparsity")
        axes.set_title(title)
    grid[0][0].set_ylabel("% of the full network")
    return _with_legend(figure, grid[0][0])


def _curve(axes: Any, points: Curve, color: str, line: str, marker: str, label: str) -> None:
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, line, marker=marker, color=color, markersize=3, linewidth=1.3, label=label)


@styled
def draw_learning(
    runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    metric: str,
    name: str,
) -> Any:
    """Draw loss and metric against epochs and against time, as the paper's Fig. 5.

    Every run is a curve, from the lines that its epochs have stored; epochs without the metric are
    not drawn.
    """
    figure, grid = _grid(2, 2, 5.2, width=0.8 * _PAGE)
    measured = [
        (i, label if j == 0 else None, [epoch for epoch in epochs if "metrics" in epoch])
        for i, (label, curves) in enumerate(runs.items())
        for j, epochs in enumerate(curves)
    ]
    longest = max(epochs[-1]["seconds"] for *_, epochs in measured)
    unit, seconds = "hours", 3600.0
    if longest < 2 * 3600:
        unit, seconds = ("minutes", 60.0) if longest >= 2 * 60 else ("seconds", 1.0)
    for i, label, epochs in measured:
        numbers = [epoch["epoch"] for epoch in epochs]
        times = [epoch["seconds"] / seconds for epoch in epochs]
        losses = [epoch["loss"] for epoch in epochs]
        reached = [100 * epoch["metrics"][metric] for epoch in epochs]
        for row, ys in zip(grid, (losses, reached), strict=True):
            for axes, xs in zip(row, (numbers, times), strict=True):
                axes.plot(xs, ys, _MARKERS[i] + "-", color=PALETTE[i], markersize=3, label=label)
    for row, ylabel in zip(grid, ("training loss", f"{name} (%)"), strict=True):
        for axes, xlabel in zip(row, ("epochs", f"{unit} of training"), strict=True):
            axes.set_xlabel(xlabel)
            axes.set_xlim(left=0)
            axes.xaxis.get_major_locator().set_params(integer=True)
        row[0].set_ylabel(ylabel)
    return _with_legend(figure, grid[0][0])


@styled
def draw_overview(panels: Sequence[tuple[Group, str, str]], units: Mapping[str, str]) -> Any:
    """Draw memory, and the loss of accuracy, against FLOPs: bottom left is the best.

    A panel has a row per method, the full network first, and key and name of the accuracy; `units`
    are the keys of FLOPs and of memory with their headings.
    """
    trained = any(_loss(group, metric, 0)[0] is not None for group, metric, _ in panels)
    figure, grid = _grid(1 + trained, len(panels), 5.4 if trained else 3.0)
    (gflops, across), (memory, up) = units.items()
    for column, (group, metric, name) in enumerate(panels):
        above, below = grid[0][column], grid[1][column] if trained else None
        for i, row in enumerate(group.rows):
            losses = _loss(group, metric, i)
            points = zip(_both(row, gflops), _both(row, memory), losses, strict=True)
            for (x, y, loss), ours in zip(points, (True, False), strict=True):
                _point(above, x, y, i, ours, row.label if ours else None)
                if below is not None and loss is not None:
                    _point(below, x, loss, i, ours)
            if below is not None and losses[0] is None:
                below.set_visible(False)
        above.plot([], [], marker="o", markersize=10, label="the paper's", **_OUTLINE)
        _logarithmic(above, "y", [each for row in group.rows for each in _both(row, memory)])
        for axes in grid[:, column]:
            _logarithmic(axes, "x", [each for row in group.rows for each in _both(row, gflops)])
            axes.set_xlabel(across)
        above.set_title(group.title)
        if below is not None:
            below.set_ylabel(f"loss of {name} (points)")
    grid[0][0].set_ylabel(up)
    return _with_legend(figure, grid[0][0])


def _both(row: Row, key: str) -> tuple[float, float]:
    """Return our figure and the printed one."""
    return row.figures[key].mean or 0.0, row.figures[key].printed or 0.0


def _loss(group: Group, metric: str, row: int) -> tuple[float | None, float | None]:
    """Return what our network and the printed one lose against the full one, in points."""
    full, own = (group.rows[i].figures.get(metric, Figure()) for i in (0, row))
    pairs = ((full.mean, own.mean), (full.printed, own.printed))
    ours, printed = (None if a is None or b is None else a - b for a, b in pairs)
    return ours, printed


def _point(
    axes: Any, x: float, y: float, method: int, ours: bool, label: str | None = None
) -> None:
    """Draw a network: ours filled, the paper's as an outline."""
    style = {"color": _BY_METHOD[method], "marker": _MARKERS[method], "linestyle": "none"}
    fill, size = ("full", 6) if ours else ("none", 10)
    axes.plot(x, y, fillstyle=fill, markersize=size, label=label, **style)


def _logarithmic(axes: Any, which: str, values: Sequence[float]) -> None:
    """Make an axis logarithmic, with a few round numbers whatever its range."""
    low, high = 0.85 * min(values), 1.18 * max(values)
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6)):
        ticks = [d * 10.0**e for e in exponents for d in digits if low <= d * 10.0**e <= high]
        if len(ticks) >= 3:
            break
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(pyplot_module().FixedLocator(ticks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(pyplot_module().NullLocator())
