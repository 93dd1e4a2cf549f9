"""Figures by matplotlib: colour-blind safe, readable at page width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ranp.errors import import_extra
from ranp.files import atomic_write

# Okabe and Ito's palette: told apart by nearly everybody, also in grey.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def pyplot_module() -> Any:
    """Return matplotlib's pyplot, drawing to files only."""
    import_extra("matplotlib", "figures need matplotlib", "plot").use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: Any, *paths: str | Path) -> None:
    """Write a figure atomically to files, each in the format of its suffix."""
    for path in map(Path, paths):
        kind = path.suffix[1:]
        # The same figures give the same file: no date, and names that do not change.
        metadata = {"Date": None} if kind == "svg" else {}
        with atomic_write(path) as file, pyplot_module().rc_context({"svg.hashsalt": "ranp"}):
            figure.savefig(file, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
    pyplot_module().close(figure)


def draw_retained(
    path: str | Path, layers: Sequence[str], full: Sequence[int], kept: Mapping[str, Sequence[int]]
) -> None:
    """Draw the neurons of every layer: the full network's in grey, each method's in front of it."""
    figure, axes = pyplot_module().subplots(figsize=(8.5, 3.6))
    layer_bars(axes, range(len(layers)), full, kept)
    axes.set_xticks(range(len(layers)), layers, rotation=45, ha="right", fontsize=8)
    axes.set_ylabel("neurons")
    axes.set_title("Neurons kept in every layer", loc="left", fontsize=11)
    clean(axes)
    axes.legend(
        frameon=False, fontsize=8, ncols=len(kept) + 1, loc="lower right", bbox_to_anchor=(1, 1)
    )
    save_figure(figure, path)


def draw_convergence(
    path: str | Path, curves: Mapping[str, Sequence[tuple[float, float]]], caption: str
) -> None:
    """Draw the loss against wall-clock time, by network: (seconds, loss) after each step."""
    figure, axes = pyplot_module().subplots(figsize=(6.4, 3.6))
    for i, (name, points) in enumerate(curves.items()):
        seconds, losses = zip(*points, strict=True)
        label = f"{name}: {len(points)} steps"
        axes.plot(seconds, losses, color=PALETTE[i], label=label, linewidth=1.6)
        axes.plot(seconds[-1], losses[-1], "o", color=PALETTE[i], markersize=4)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("loss")
    axes.set_title(caption, loc="left", fontsize=10)
    clean(axes)
    axes.legend(frameon=False, fontsize=8)
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


def clean(axes: Any) -> None:
    """Give axes the style of all figures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", zorder=0)
    axes.set_axisbelow(True)
