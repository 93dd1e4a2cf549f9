"""The paper's figures, drawn from plain values, in the style of `ranp.report.figures`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranp.report.figures import PALETTE, clean, pyplot_module, save_figure

_PAGE = 10.0  # inches: readable at page width
_MARKERS = "osD^vPX*"
# Methods in the paper's order, the full network first, RANP-f last and most visible.
_BY_METHOD = ("#000000", "#7f7f7f", *(PALETTE[i] for i in (4, 3, 2, 5, 1, 0)))
_SMALL = 8
_HOLLOW = {"color": "#666666", "linestyle": "none", "fillstyle": "none"}
Curve = Sequence[tuple[float, float]]


def _grid(rows: int, columns: int, height: float, **options: Any) -> tuple[Any, Any]:
    """Return a figure of page width and its axes, [rows, columns]."""
    size = (options.pop("width", _PAGE), height)
    figure, grid = pyplot_module().subplots(rows, columns, figsize=size, squeeze=False, **options)
    return figure, grid


def _label(axes: Any, title: str | None = None, x: str | None = None, y: str | None = None) -> None:
    """Title and label axes; what is None stays as it is."""
    if title is not None:
        axes.set_title(title, loc="left", fontsize=9)
    if x is not None:
        axes.set_xlabel(x, fontsize=_SMALL)
    if y is not None:
        axes.set_ylabel(y, fontsize=_SMALL)
    axes.tick_params(labelsize=_SMALL)
    clean(axes)


def _save(figure: Any, axes: Any, path: str | Path) -> None:
    """Save a figure with the legend of some axes above it."""
    handles, labels = axes.get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(
        handles,
        labels,
        frameon=False,
        fontsize=_SMALL,
        ncols=min(len(labels), 5),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
    save_figure(figure, path)


def draw_importance(
    path: str | Path,
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    *,
    shared: bool = True,
) -> None:
    """Draw the importance of every neuron, and the means of layers.

    Args:
        path: Path of the picture.
        panels: By row and by column of the picture, for every layer the importance of its neurons.
        shared: Whether the panels of a row have the same axis.
    """
    columns = len(next(iter(panels.values())))
    rows = len(panels)
    figure, grid = _grid(rows, columns, 2.6 * rows, sharey="row" if shared else False)
    for row, (title, by_method) in zip(grid, panels.items(), strict=True):
        for axes, (method, layers) in zip(row, by_method.items(), strict=True):
            _importance(axes, layers)
            _label(axes, f"{title}: {method}", "layer")
        _label(row[0], y="importance / its mean")
        for axes in row:
            lowest, highest = axes.get_ylim()
            axes.set_ylim(max(lowest, 1e-10 * highest), highest)
    _save(figure, grid[0][0], path)


def _importance(axes: Any, layers: Sequence[Sequence[float]]) -> None:
    everything = [value for layer in layers for value in layer]
    mean = sum(everything) / len(everything) or 1.0
    for number, layer in enumerate(layers, 1):
        places = [number - 0.4 + 0.8 * (i + 0.5) / len(layer) for i in range(len(layer))]
        axes.plot(
            places,
            [value / mean for value in layer],
            ".",
            color=PALETTE[0],
            markersize=1.6,
            alpha=0.6,
            rasterized=True,  # thousands of points make a vector file of megabytes
            label="neuron" if number == 1 else None,
        )
    means = [sum(layer) / len(layer) / mean for layer in layers]
    axes.plot(
        range(1, len(layers) + 1),
        means,
        "o-",
        color=PALETTE[1],
        markersize=3,
        linewidth=1.2,
        label="mean of the layer",
    )
    axes.set_yscale("log")
    step = max(1, len(layers) // 8)
    axes.set_xticks(range(1, len(layers) + 1, step))


@dataclass(frozen=True)
class Retained:
    """Neurons per layer of a network.

    Attributes:
        full: Neurons of each layer of the full network.
        kept: The same by method.
    """

    full: Sequence[int]
    kept: Mapping[str, Sequence[int]]


def draw_retained_ratio(path: str | Path, panels: Mapping[str, Retained]) -> None:
    """Draw the retained ratio and number of neurons in every layer, a row per network."""
    figure, grid = _grid(len(panels), 2, 2.8 * len(panels))
    for (ratio, numbers), (title, panel) in zip(grid, panels.items(), strict=True):
        layers = range(1, len(panel.full) + 1)
        width = 0.8 / len(panel.kept)
        numbers.bar(layers, panel.full, width=0.9, color="#e4e4e4", label="full")
        for i, (method, kept) in enumerate(panel.kept.items()):
            color = PALETTE[i]
            shares = [k / n for k, n in zip(kept, panel.full, strict=True)]
            ratio.plot(layers, shares, _MARKERS[i] + "-", color=color, markersize=4, label=method)
            places = [layer - 0.4 + (i + 0.5) * width for layer in layers]
            numbers.bar(places, kept, width=width, color=color, label=method)
        _label(ratio, f"{title}: retained ratio", "layer", "retained / all")
        _label(numbers, f"{title}: neurons per layer", "layer", "neurons")
        ratio.set_ylim(0, 1.05)
        numbers.set_yscale("log", base=2)
        numbers.set_ylim(bottom=0.7)  # a single neuron is seen, too
        numbers.yaxis.set_major_formatter("{x:g}")
        for axes in (ratio, numbers):
            axes.set_xticks(list(layers)[:: max(1, len(layers) // 15)])
    _save(figure, grid[0][1], path)


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


def draw_sparsity(path: str | Path, panels: Mapping[str, Sweep]) -> None:
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
            axes.plot([], [], marker="o", markersize=9, label="the paper's", **_HOLLOW)
        axes.set_ylim(0, 105)
        if trained:
            below = grid[1][column]
            for i, (method, points) in enumerate(panel.accuracy.items()):
                _curve(below, points, PALETTE[i], "-", "o", method)
            below.set_visible(bool(panel.accuracy))
            _label(below, y=f"{panel.metric} (%)")
        for each in grid[:, column]:
            each.set_xlim(0, 1)
            _label(each, x="neuron sparsity")
        _label(axes, title)
    _label(grid[0][0], y="% of the full network")
    _save(figure, grid[0][0], path)


def _curve(axes: Any, points: Curve, color: str, line: str, marker: str, label: str) -> None:
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, line, marker=marker, color=color, markersize=3, linewidth=1.3, label=label)


@dataclass(frozen=True)
class Progress:
    """How a network learned.

    Attributes:
        epochs: Epochs.
        hours: Training time at the end of each.
        loss: Mean loss of each.
        metric: Metric of each, in per cent.
    """

    epochs: Sequence[int]
    hours: Sequence[float]
    loss: Sequence[float]
    metric: Sequence[float]


def draw_learning(path: str | Path, runs: Mapping[str, Progress], metric: str) -> None:
    """Draw loss and metric against epochs and against time, as the paper's Fig. 5."""
    figure, grid = _grid(2, 2, 5.2, width=0.8 * _PAGE)
    longest = max(run.hours[-1] for run in runs.values())
    scale, unit = (1.0, "hours") if longest >= 2 else (60.0, "minutes")
    if longest * 60 < 2:
        scale, unit = 3600.0, "seconds"
    for i, (name, run) in enumerate(runs.items()):
        times = [hours * scale for hours in run.hours]
        for row, ys in enumerate((run.loss, run.metric)):
            for axes, xs in zip(grid[row], (run.epochs, times), strict=True):
                axes.plot(xs, ys, _MARKERS[i] + "-", color=PALETTE[i], markersize=3, label=name)
    for row, label in zip(grid, ("training loss", f"{metric} (%)"), strict=True):
        for axes, xlabel in zip(row, ("epochs", f"{unit} of training"), strict=True):
            _label(axes, x=xlabel)
            axes.set_xlim(left=0)
            axes.xaxis.get_major_locator().set_params(integer=True)
        _label(row[0], y=label)
    _save(figure, grid[0][0], path)


@dataclass(frozen=True)
class Point:
    """A network in the plane of resources.

    Attributes:
        gflops: Its FLOPs; where `printed` has another scale, shares of the full network.
        memory: Its memory.
        loss: Of accuracy against the full network, in points; nothing where nothing was trained.
    """

    gflops: float
    memory: float
    loss: float | None = None


@dataclass(frozen=True)
class Overview:
    """Methods on one network.

    Attributes:
        ours: Our networks, by method.
        printed: The paper's, by method.
        metric: Name of the accuracy.
    """

    ours: Mapping[str, Point]
    printed: Mapping[str, Point]
    metric: str


def draw_overview(path: str | Path, panels: Mapping[str, Overview], unit: tuple[str, str]) -> None:
    """Draw memory, and the loss of accuracy, against FLOPs: bottom left is the best.

    Args:
        path: Path of the picture.
        panels: A column for each.
        unit: Units of FLOPs and of memory.
    """
    trained = any(p.loss is not None for panel in panels.values() for p in panel.ours.values())
    figure, grid = _grid(1 + trained, len(panels), 5.4 if trained else 3.0)
    for column, (title, panel) in enumerate(panels.items()):
        for i, (method, point) in enumerate(panel.ours.items()):
            style = {"color": _BY_METHOD[i], "marker": _MARKERS[i], "linestyle": "none"}
            for points, fill in ((panel.ours, "full"), (panel.printed, "none")):
                if method not in points:
                    continue
                each = points[method]
                label = method if fill == "full" else None
                shown = {**style, "fillstyle": fill, "markersize": 6 if fill == "full" else 10}
                grid[0][column].plot(each.gflops, each.memory, label=label, **shown)
                if trained and each.loss is not None:
                    grid[1][column].plot(each.gflops, each.loss, **shown)
            if trained and point.loss is None:
                grid[1][column].set_visible(False)
        grid[0][column].plot([], [], marker="o", markersize=10, label="the paper's", **_HOLLOW)
        shown_points = [*panel.ours.values(), *panel.printed.values()]
        _logarithmic(grid[0][column], "y", [each.memory for each in shown_points])
        for axes in grid[:, column]:
            _logarithmic(axes, "x", [each.gflops for each in shown_points])
            _label(axes, x=unit[0])
        _label(grid[0][column], title)
        if trained:
            _label(grid[1][column], y=f"loss of {panel.metric} (points)")
    _label(grid[0][0], y=unit[1])
    _save(figure, grid[0][0], path)


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
