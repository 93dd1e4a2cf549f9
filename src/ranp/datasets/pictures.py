"""Drawing tools of the data sets: voxel renderings, slices with labels, strips of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.frames import DIVISOR, MEAN

_STRIP = 8  # frames of a clip that are shown
# Paul Tol's bright scheme, which colour-blind people can tell apart.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_LABEL_COLOURS = ("#ee6677", "#66ccee", "#228833", "#ccbb44", "#4477aa", "#aa3377")

# The three faces of a voxel that an observer at (1, 1, 1) sees (y is up), as corners, with the
# brightness of each.
_FACES = (
    (((0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1)), 1.0),
    (((1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1)), 0.8),
    (((0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)), 0.62),
)


def make_figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and its axes [rows, columns], each `width` x `height` inches, unframed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, axes


def make_grid(count: int) -> tuple[Any, list[Any]]:
    """Return a figure and an axis for each of some pictures, four to a row."""
    columns = min(4, count)
    figure, axes = make_figure(-(-count // columns), columns, 2.6, 2.8)
    return figure, list(axes.flat)[:count]


def draw_voxels(axis: Any, colour_indices: NDArray[np.integer]) -> None:
    """Draw voxels as little cubes in a dimetric projection, the far ones first.

    `colour_indices` [X, Y, Z] are indices into `COLOURS`; -1 where there is nothing.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    cells = np.argwhere(colour_indices >= 0)
    cells = cells[np.argsort(cells.sum(axis=1), kind="stable")]
    base = np.array([to_rgb(colour) for colour in COLOURS])[colour_indices[tuple(cells.T)]]
    corners = np.array([face for face, _ in _FACES])
    x, y, z = np.moveaxis(cells[:, None, None, :] + corners[None], -1, 0)
    polygons = np.stack([0.87 * (x - z), y - 0.45 * (x + z)], axis=-1)
    shades = np.array([brightness for _, brightness in _FACES])
    colours = base[:, None, :] * shades[None, :, None]
    axis.add_collection(
        PolyCollection(
            list(polygons.reshape(-1, 4, 2)), facecolors=colours.reshape(-1, 3), edgecolors="none"
        )
    )
    axis.autoscale_view()
    axis.set_aspect("equal")


def draw_volumes(samples: Sequence[Mapping[str, Any]], channels: Sequence[str] = ()) -> Any:
    """Draw one row per case: every channel in the slice with most labels, then the labels on it."""
    from matplotlib.colors import to_rgba

    count = samples[0]["x"].shape[0]
    names = channels or (["image"] if count == 1 else [f"channel {c}" for c in range(count)])
    figure, axes = make_figure(len(samples), count + 1, 1.7, 1.8)
    for axis, name in zip(axes[0], [*names, "labels"], strict=True):
        axis.set_title(name, fontsize=9)
    for row, sample in zip(axes, samples, strict=True):
        x, y = sample["x"].numpy(), sample["y"].numpy()
        level = int((y > 0).sum(axis=(0, 1)).argmax())
        overlay = np.zeros((*y.shape[:2], 4))
        for label in np.unique(y[y > 0]):
            colour = _LABEL_COLOURS[(int(label) - 1) % len(_LABEL_COLOURS)]
            overlay[y[:, :, level] == label] = to_rgba(colour, 0.75)
        outside = (x[..., level] == 0).all(axis=0)  # padding, or no brain: black, not mean grey
        for axis, channel in zip(row, [*x, x[0]], strict=True):
            low, high = np.percentile(channel[:, :, level], (1, 99.5))
            picture = np.where(outside, low, channel[:, :, level])
            axis.imshow(picture.T, cmap="gray", origin="lower", vmin=low, vmax=high)
        row[-1].imshow(overlay.transpose(1, 0, 2), origin="lower")
    return figure


def draw_clips(samples: Sequence[Mapping[str, Any]], divisor: float = DIVISOR) -> Any:
    """Draw one row per clip: evenly spaced frames."""
    figure, axes = make_figure(len(samples), _STRIP, 1.1, 1.25)
    for row, sample in zip(axes, samples, strict=True):
        frames = sample["x"].numpy().transpose(1, 2, 3, 0) * divisor + MEAN
        chosen = np.linspace(0, len(frames) - 1, _STRIP).round().astype(int)
        for axis, frame in zip(row, chosen, strict=True):
            axis.imshow(frames[frame].clip(0, 255).astype(np.uint8))
        row[0].set_title(sample["id"], fontsize=7, loc="left")
    return figure
