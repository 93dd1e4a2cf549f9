"""The paper's figures, drawn from plain values; one look with `ranp.report.figures`."""

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
Curve = Sequence[tuple[float, float]]


def draw_importance(
    path: str | Path,
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    *,
    shared: bool = True,
) -> None:
    """Importance of every neuron, and the means of layers.

    Args:
        path: Where the picture goes.
        panels: By row and by column of the picture, for every layer the importance of its neurons.
        shared: Whether the panels of a row have the same axis.
    """
    pyplot = pyplot_module()
    columns = list(next(iter(panels.values())))
    figure, grid = pyplot.subplots(
        len(panels),
        len(columns),
        figsize=(_PAGE, 2.6 * len(panels)),
        squeeze=False,
        sharey="row" if shared else False,
    )
    for row, (title, by_method) in zip(grid, panels.items(), strict=True):
        for axes, (method, layers) in zip(row, by_method.items(), strict=True):
            _importance(axes, layers)
            axes.set_title(f"{title}: {method}", loc="left", fontsize=9)
            axes.set_xlabel("layer", fontsize=_SMALL)
        row[0].set_ylabel("importance / its mean", fontsize=_SMALL)
        for axes in row:
            lowest, highest = axes.get_ylim()
            axes.set_ylim(max(lowest, 1e-10 * highest), highest)
    handles, labels = grid[0][0].get_legend_handles_labels()
    _legend_above(figure, handles, labels)
    save_figure(figure, path)


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
    axes.tick_params(labelsize=_SMALL)
    clean(axes)


@dataclass(frozen=True)
class Retained:
    """Neurons per layer of a network.

    Attributes:
        full: Of the full network.
        kept: By method.
    """

    full: Sequence[int]
    kept: Mapping[str, Sequence[int]]


def draw_retained_ratio(path: str | Path, panels: Mapping[str, Retained]) -> None:
    """Retained ratio and number of neurons in every layer, a row per network."""
    pyplot = pyplot_module()
    figure, grid = pyplot.subplots(
        len(panels), 2, figsize=(_PAGE, 2.8 * len(panels)), squeeze=False
    )
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
        ratio.set_title(f"{title}: retained ratio", loc="left", fontsize=9)
        numbers.set_title(f"{title}: neurons per layer", loc="left", fontsize=9)
        ratio.set_ylim(0, 1.05)
        ratio.set_ylabel("retained / all", fontsize=_SMALL)
        numbers.set_ylabel("neurons", fontsize=_SMALL)
        numbers.set_yscale("log", base=2)
        numbers.set_ylim(bottom=0.7)  # a single neuron is seen, too
        numbers.yaxis.set_major_formatter("{x:g}")
        for axes in (ratio, numbers):
            axes.set_xticks(list(layers)[:: max(1, len(layers) // 15)])
            axes.set_xlabel("layer", fontsize=_SMALL)
            axes.tick_params(labelsize=_SMALL)
            clean(axes)
    handles, labels = grid[0][1].get_legend_handles_labels()
    _legend_above(figure, handles, labels)
    save_figure(figure, path)


@dataclass(frozen=True)
class Sweep:
    """Resources and accuracy of a network against sparsity.

    Attributes:
        resources: By method and resource, (sparsity, per cent of the full network).
        printed: The same of single points that the paper prints.
        accuracy: By method, (sparsity, per cent); empty where nothing was trained.
        metric: What accuracy is.
    """

    resources: Mapping[str, Mapping[str, Curve]]
    printed: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    accuracy: Mapping[str, Curve] = field(default_factory=dict)
    metric: str = "accuracy"


def draw_sparsity(path: str | Path, panels: Mapping[str, Sweep]) -> None:
    """Resources above, accuracy below, against sparsity, a column per network."""
    pyplot = pyplot_module()
    trained = any(panel.accuracy for panel in panels.values())
    figure, grid = pyplot.subplots(
        2 if trained else 1,
        len(panels),
        figsize=(_PAGE, 5.2 if trained else 2.8),
        squeeze=False,
    )
    for column, (title, panel) in enumerate(panels.items()):
        axes = grid[0][column]
        for i, (method, by_resource) in enumerate(panel.resources.items()):
            for j, (resource, points) in enumerate(by_resource.items()):
                label = f"{resource}, {method}"
                _curve(axes, points, PALETTE[i], "-" if j == 0 else "--", _MARKERS[j], label)
                for x, y in panel.printed.get(method, {}).get(resource, ()):
                    axes.plot(x, y, _MARKERS[j], color=PALETTE[i], markersize=9, fillstyle="none")
        if panel.printed:
            axes.plot([], [], "o", color="#666666", ms=9, fillstyle="none", label="the paper's")
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_ylim(0, 105)
        if trained:
            below = grid[1][column]
            for i, (method, points) in enumerate(panel.accuracy.items()):
                _curve(below, points, PALETTE[i], "-", "o", method)
            if panel.accuracy:
                below.set_ylabel(f"{panel.metric} (%)", fontsize=_SMALL)
            else:
                below.set_visible(False)
        for each in grid[:, column]:
            each.set_xlim(0, 1)
            each.set_xlabel("neuron sparsity", fontsize=_SMALL)
            each.tick_params(labelsize=_SMALL)
            clean(each)
    grid[0][0].set_ylabel("% of the full network", fontsize=_SMALL)
    handles, labels = grid[0][0].get_legend_handles_labels()
    _legend_above(figure, handles, labels)
    save_figure(figure, path)


def _curve(axes: Any, points: Curve, color: str, line: str, marker: str, label: str) -> None:
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, line, marker=marker, color=color, markersize=3, linewidth=1.3, label=label)


@dataclass(frozen=True)
class Progress:
    """How a network learned.

    Attributes:
        epochs: Numbers of epochs.
        hours: Training time at their ends.
        loss: Mean of each.
        metric: Of each, in per cent.
    """

    epochs: Sequence[int]
    hours: Sequence[float]
    loss: Sequence[float]
    metric: Sequence[float]


def draw_learning(path: str | Path, runs: Mapping[str, Progress], metric: str) -> None:
    """Loss and metric against epochs and against time, as the paper's Fig. 5."""
    pyplot = pyplot_module()
    figure, grid = pyplot.subplots(2, 2, figsize=(_PAGE * 0.8, 5.2))
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
        row[0].set_ylabel(label, fontsize=_SMALL)
        for axes, xlabel in zip(row, ("epochs", f"{unit} of training"), strict=True):
            axes.set_xlabel(xlabel, fontsize=_SMALL)
            axes.set_xlim(left=0)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.tick_params(labelsize=_SMALL)
            clean(axes)
    handles, labels = grid[0][0].get_legend_handles_labels()
    _legend_above(figure, handles, labels)
    save_figure(figure, path)


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
        ours: By method.
        printed: The paper's, by method.
        metric: What accuracy is.
    """

    ours: Mapping[str, Point]
    printed: Mapping[str, Point]
    metric: str


def draw_overview(path: str | Path, panels: Mapping[str, Overview], unit: tuple[str, str]) -> None:
    """Memory, and the loss of accuracy, against FLOPs: bottom left is the best.

    Args:
        path: Where the picture goes.
        panels: A column for each.
        unit: Of FLOPs and of memory.
    """
    pyplot = pyplot_module()
    trained = any(p.loss is not None for panel in panels.values() for p in panel.ours.values())
    figure, grid = pyplot.subplots(
        2 if trained else 1,
        len(panels),
        figsize=(_PAGE, 5.4 if trained else 3.0),
        squeeze=False,
    )
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
        hollow = {"color": "#666666", "linestyle": "none", "fillstyle": "none", "markersize": 10}
        grid[0][column].plot([], [], marker="o", label="the paper's", **hollow)
        grid[0][column].set_title(title, loc="left", fontsize=9)
        shown_points = [*panel.ours.values(), *panel.printed.values()]
        _logarithmic(grid[0][column], "y", [each.memory for each in shown_points])
        if trained:
            grid[1][column].set_ylabel(f"loss of {panel.metric} (points)", fontsize=_SMALL)
        for axes in grid[:, column]:
            _logarithmic(axes, "x", [each.gflops for each in shown_points])
            axes.set_xlabel(unit[0], fontsize=_SMALL)
            axes.tick_params(labelsize=_SMALL)
            clean(axes)
    grid[0][0].set_ylabel(unit[1], fontsize=_SMALL)
    handles, labels = grid[0][0].get_legend_handles_labels()
    _legend_above(figure, handles, labels)
    save_figure(figure, path)


def _logarithmic(axes: Any, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis with a few round numbers, whatever its range."""
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


def _legend_above(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
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
