"""Pictures of a few cases: voxel renderings, slices with labels, strips of frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.brats import MODALITIES
from ranp.datasets.frames import MEAN
from ranp.datasets.parts import category_named
from ranp.datasets.voxels import EMPTY
from ranp.errors import UsageError
from ranp.files import atomic_write

if TYPE_CHECKING:
    from ranp.datasets.cases import Cases

_STRIP = 8  # frames of a clip that are shown
# Paul Tol's bright scheme, which colour-blind people can tell apart.
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_REGION_COLOURS = {1: "#ee6677", 2: "#66ccee", 4: "#ccbb44"}

# The three faces of a voxel that an observer at (1, 1, 1) sees (y is up), as corners, with the
# brightness of each.
_FACES = (
    (((0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1)), 1.0),
    (((1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1)), 0.8),
    (((0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)), 0.62),
)


def draw_cases(kind: str, cases: Cases, indices: Sequence[int], path: Path) -> None:
    """Draws cases of an opened data set into a PNG file.

    Args:
        kind: The data set's kind, which decides how its cases are drawn.
        cases: The data set.
        indices: Which cases.
        path: The PNG file.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError('pictures need matplotlib: pip install "ranp[plot]"') from error
    matplotlib.use("agg")
    draw: dict[str, Callable[[list[Any]], Any]] = {
        "shapenet": _draw_shapes,
        "brats": _draw_volumes,
        "hippocampus": _draw_volumes,
        "ucf101": _draw_clips,
    }
    figure = draw[kind]([cases[index] for index in indices])
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=80)


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, axes


def _draw_shapes(samples: list[Any]) -> Any:
    from matplotlib.lines import Line2D

    columns = min(4, len(samples))
    figure, axes = _figure(-(-len(samples) // columns), columns, 2.6, 2.8)
    for axis, sample in zip(axes.flat, samples, strict=False):
        labels = sample["y"].numpy()
        category = category_named(sample["category"])
        _draw_voxels(axis, labels, category.first)
        axis.set_title(category.name, fontsize=10)
        handles = [
            Line2D([], [], marker="s", linestyle="", color=_COLOURS[k], label=part)
            for k, part in enumerate(category.parts)
            if (labels == category.first + k).any()
        ]
        axis.legend(
            handles=handles,
            fontsize=7,
            ncols=3,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.02),
            frameon=False,
            handletextpad=0.1,
            columnspacing=0.8,
        )
    return figure


def _draw_voxels(axis: Any, labels: NDArray[np.int64], first: int) -> None:
    """Draws occupied voxels as little cubes in a dimetric projection, the far ones first."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    cells = np.argwhere(labels != EMPTY)
    cells = cells[np.argsort(cells.sum(axis=1), kind="stable")]
    base = np.array([to_rgb(colour) for colour in _COLOURS])[labels[tuple(cells.T)] - first]
    corners = np.array([face for face, _ in _FACES])
    polygons = _project(cells[:, None, None, :] + corners[None])
    shades = np.array([brightness for _, brightness in _FACES])
    colours = base[:, None, :] * shades[None, :, None]
    axis.add_collection(
        PolyCollection(
            list(polygons.reshape(-1, 4, 2)), facecolors=colours.reshape(-1, 3), edgecolors="none"
        )
    )
    axis.autoscale_view()
    axis.set_aspect("equal")


def _project(points: NDArray[np.integer]) -> NDArray[np.float64]:
    x, y, z = points[..., 0], points[..., 1], points[..., 2]
    return np.stack([0.87 * (x - z), y - 0.45 * (x + z)], axis=-1)


def _draw_volumes(samples: list[Any]) -> Any:
    """One row per case: every modality in the slice with most labels, then the labels on it."""
    from matplotlib.colors import to_rgba

    channels = samples[0]["x"].shape[0]
    names = MODALITIES if channels == len(MODALITIES) else ("image",)
    figure, axes = _figure(len(samples), channels + 1, 1.7, 1.8)
    for axis, name in zip(axes[0], [*names, "labels"], strict=True):
        axis.set_title(name, fontsize=9)
    for row, sample in zip(axes, samples, strict=True):
        x, y = sample["x"].numpy(), sample["y"].numpy()
        level = int((y > 0).sum(axis=(0, 1)).argmax())
        overlay = np.zeros((*y.shape[:2], 4))
        for label, colour in _REGION_COLOURS.items():
            overlay[y[:, :, level] == label] = to_rgba(colour, 0.75)
        outside = (x[..., level] == 0).all(axis=0)  # padding, or no brain: black, not mean grey
        for axis, channel in zip(row, [*x, x[0]], strict=True):
            low, high = np.percentile(channel[:, :, level], (1, 99.5))
            picture = np.where(outside, low, channel[:, :, level])
            axis.imshow(picture.T, cmap="gray", origin="lower", vmin=low, vmax=high)
        row[-1].imshow(overlay.transpose(1, 0, 2), origin="lower")
    return figure


def _draw_clips(samples: list[Any]) -> Any:
    """One row per clip: evenly spaced frames."""
    figure, axes = _figure(len(samples), _STRIP, 1.1, 1.25)
    for row, sample in zip(axes, samples, strict=True):
        frames = sample["x"].numpy().transpose(1, 2, 3, 0) * 255 + MEAN
        chosen = np.linspace(0, len(frames) - 1, _STRIP).round().astype(int)
        for axis, frame in zip(row, chosen, strict=True):
            axis.imshow(frames[frame].clip(0, 255).astype(np.uint8))
        row[0].set_title(sample["id"], fontsize=7, loc="left")
    return figure
