"""Operations that work element by element, with broadcasting, and those that create tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ranp.graph.labels import Dim, Dims
from ranp.graph.operation import Operation, carrier, rule
from ranp.graph.propagation import Propagator


def unite_dims(p: Propagator, dims: Sequence[Dim], reason: str) -> Dim:
    """Unite dimensions of equal size slot by slot; where one has no labels, all must stay."""
    labelled = [dim for dim in dims if dim is not None]
    if len(labelled) < len(dims):
        for dim in labelled:
            p.pin(dim, reason)
        return None
    for other in labelled[1:]:
        p.space.unite(labelled[0], other)
    return labelled[0] if labelled else None


def broadcast(p: Propagator, operands: Sequence[Tensor], shape: Sequence[int]) -> Dims:
    """Unite operands, aligned at their last dimension; size 1 stretches and unites nothing."""
    result: list[Dim] = []
    for position, size in enumerate(shape):
        meeting = []
        for tensor in operands:
            index = position - (len(shape) - tensor.dim())
            if index >= 0 and tensor.shape[index] == size > 1:
                meeting.append(p.dims(tensor)[index])
        result.append(unite_dims(p, meeting, "it meets a tensor of fixed size"))
    return tuple(result)


@rule("pointwise")  # stands for all operations that ATen tags as pointwise
@rule("clone", "contiguous", "detach", "alias", "lift_fresh", "to", "_to_copy", "type_as", "copy_")
@rule("dropout", "dropout_", "native_dropout", "feature_dropout", "feature_dropout_")
@rule("alpha_dropout", "feature_alpha_dropout", "bernoulli", "bernoulli_", "normal_", "uniform_")
@rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
@rule("fill_", "zero_", "masked_fill", "masked_fill_", "lerp", "nan_to_num", "_weight_norm")
@carrier
def elementwise(p: Propagator, op: Operation) -> Dims:
    """Slots at the same place belong together."""
    # In place, the result is the first operand, whatever its shape.
    result = op.inputs[0] if op.name.endswith("_") else op.output
    return broadcast(p, op.inputs, result.shape)


@rule("zeros", "ones", "full", "empty", "rand", "randn")
@rule("new_zeros", "new_ones", "new_full", "new_empty")
def uniform(p: Propagator, op: Operation) -> Dims:
    """All slots are alike, so any of them can go, as far as the code asks for fewer then."""
    return tuple(p.space.fresh(size) if size > 1 else None for size in op.output.shape)
