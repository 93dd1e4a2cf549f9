"""Figures by matplotlib: colour-blind safe, readable at page width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ranp.errors import import_extra
from ranp.files import atomic_write

# Okabe and Ito's palette: told apart by nearly everybody, also in grey.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelsize": 8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "grid.color": "#eeeeee",
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.hashsalt": "ranp",  # names in the file do not change from one drawing to the next
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}

Arguments = ParamSpec("Arguments")
Drawn = TypeVar("Drawn")


def pyplot_module() -> Any:
    """Return matplotlib's pyplot, drawing to files only."""
    import_extra("matplotlib", "figures need matplotlib", "plot").use("Agg")
    from matplotlib import pyplot

    return pyplot


def styled(draw: Callable[Arguments, Drawn]) -> Callable[Arguments, Drawn]:
    """Draw in the style of all figures; the user's own settings of matplotlib stay as they are."""

    @wraps(draw)
    def draw_styled(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Drawn:
        with pyplot_module().rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_styled


@styled
def save_figure(figure: Any, *paths: str | Path) -> None:
    """Write a figure atomically to files, each in the format of its suffix."""
    for path in map(Path, paths):
        kind = path.suffix[1:]
        metadata = {"Date": None} if kind == "svg" else {}  # the same figures give the same file
        with atomic_write(path) as file:
            figure.savefig(file, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    pyplot_module().close(figure)


@styled
def draw_retained(
    path: str | Path, layers: Sequence[str], full: Sequence[int], kept: Mapping[str, Sequence[int]]
) -> None:
    """Draw the neurons of every layer: the full network's in grey, each method's in front of it."""
    figure, axes = pyplot_module().subplots(figsize=(8.5, 3.6))
    layer_bars(axes, range(len(layers)), full, kept)
    axes.set_xticks(range(len(layers)), layers, rotation=45, ha="right")
    axes.set(ylabel="neurons", title="Neurons kept in every layer")
    axes.legend(ncols=len(kept) + 1, loc="lower right", bbox_to_anchor=(1, 1))
    save_figure(figure, path)


@styled
def draw_convergence(
    path: str | Path, curves: Mapping[str, Sequence[tuple[float, float]]], caption: str
) -> None:
    """Draw the loss against wall-clock time, by network: (seconds, loss) after each step."""
    figure, axes = pyplot_module().subplots(figsize=(6.4, 3.6))
    for color, (name, points) in zip(PALETTE, curves.items(), strict=False):
        seconds, losses = zip(*points, strict=True)
        label = f"{name}: {len(points)} steps"
        axes.plot(seconds, losses, "-o", color=color, label=label, markersize=4, markevery=[-1])
    axes.set(xlabel="seconds of training", ylabel="loss", title=caption)
    axes.legend()
    save_figure(figure, path)


def layer_bars(
    axes: Any, places: Sequence[int], full: Sequence[float], kept: Mapping[str, Sequence[float]]
) -> None:
    """Draw neurons per layer: the full network in grey, each method's in front of it."""
    width = 0.8 / len(kept)
    axes.bar(places, full, width=0.9, color="#e4e4e4", label="full", zorder=1)
    for i, (method, numbers) in enumerate(kept.items()):
        beside = [place - 0.4 + (i + 0.5) * width for place in places]
        axes.bar(beside, numbers, width=width, color=PALETTE[i], label=method, zorder=2)
