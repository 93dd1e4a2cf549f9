"""Operations on space: pooling, interpolation, padding, sampling. Channels pass through."""

from __future__ import annotations

import numpy as np

from ranp.graph.labels import Dims, replace_dim, unlabelled
from ranp.graph.operation import Operation, rule
from ranp.graph.propagation import Propagator

_KINDS = {
    **{f"{kind}_pool{n}d": n for kind in ("max", "avg", "lp") for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": n for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": n for kind in ("max", "avg") for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": n for n in (2, 3)},
    **{f"fractional_max_pool{n}d": n for n in (2, 3)},
    **{f"max_unpool{n}d": n for n in (2, 3)},
    **{f"{kind}_pad{n}d": n for kind in ("reflection", "replication") for n in (1, 2, 3)},
    **{f"upsample_nearest{n}d": n for n in (1, 2, 3)},
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_trilinear3d": 3,
    "upsample_bicubic2d": 2,
    **{f"_upsample_nearest_exact{n}d": n for n in (1, 2, 3)},
    **{f"_upsample_{kind}2d_aa": 2 for kind in ("bilinear", "bicubic")},
}


@rule(*_KINDS)
def spatial(p: Propagator, op: Operation) -> Dims:
    """The last one, two or three dimensions are space; what stands before them passes through."""
    dims = p.dims(op.inputs[0])
    count = _KINDS[op.name.removeprefix("aten::")]
    p.pin_space(dims[-count:], "it is a dimension of space")
    return (*dims[:-count], *(None,) * count)


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sample(p: Propagator, op: Operation) -> Dims:
    """Sample every channel of the input at the same points."""
    volume, grid = op.inputs[:2]
    p.pin_tensors([grid], "it holds coordinates")
    return (*p.dims(volume)[:2], *(None,) * (op.output.dim() - 2))


@rule("affine_grid_generator")
def affine_grid(p: Propagator, op: Operation) -> Dims:
    """Coordinates from matrices."""
    p.pin_tensors([op["theta"]], "it holds coordinates")
    return unlabelled(op.output.shape)


@rule("im2col")
def im2col(p: Propagator, op: Operation) -> Dims:
    """Each channel becomes one per place in the window."""
    dims = p.dims(op["self"])
    channels = dims[-3]
    repeated = None if channels is None else np.repeat(channels, int(np.prod(op["kernel_size"])))
    return (*dims[:-3], repeated, None)


@rule("unfold")
def unfold(p: Propagator, op: Operation) -> Dims:
    """Windows along one dimension, as a new last dimension."""
    dims, dim = p.dims(op["self"]), op["dimension"]
    p.pin(dims[dim], "it is cut into windows")
    return (*replace_dim(dims, dim, None), None)
