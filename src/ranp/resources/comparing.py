"""How far the results of two ways to compute the same lie apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def largest_difference(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, as a share of the largest expected value of its tensor.

    It is infinite where shapes differ or a result is not finite.
    """
    if not _same_shapes(results, expected) or not all(bool(r.isfinite().all()) for r in results):
        return math.inf
    pairs = ((r.double(), e.double()) for r, e in zip(results, expected, strict=True) if e.numel())
    return max((_share((r - e).abs().max(), e.abs().max()) for r, e in pairs), default=0.0)


def norm_difference(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the norm of all differences, as a share of the norm of all that was expected.

    It is infinite where shapes differ, and NaN where values are not finite.
    """
    if not _same_shapes(results, expected):
        return math.inf
    pairs = zip(results, expected, strict=True)
    return _share(_norm([r.double() - e.double() for r, e in pairs]), _norm(expected))


def _same_shapes(results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return [r.shape for r in results] == [e.shape for e in expected]


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(t.double()).cpu() for t in tensors]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _share(part: Tensor, whole: Tensor) -> float:
    return (part / whole if whole else part).item()
