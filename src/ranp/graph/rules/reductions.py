"""Operations that mix the slots of a dimension: sums, means, maxima, softmax, sorting."""

from __future__ import annotations

from ranp.graph.labels import Dims, replace_dim, unlabelled
from ranp.graph.operation import Operation, carrier, rule
from ranp.graph.propagation import Propagator
from ranp.graph.rules.elementwise import broadcast

# A removed channel counts as zero: it adds nothing to these, but takes part in all others.
_BLIND_TO_ZERO = {"aten::sum", "aten::linalg_vector_norm", "aten::norm"}
# What norms divide by and subtract.
_STATISTICS = {f"aten::{name}" for name in ("mean", "var", "std", "var_mean", "std_mean")}


@rule("sum", "mean", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean", "prod")
@rule("norm", "linalg_vector_norm", "logsumexp", "any", "all", "argmax", "argmin", "median")
@rule("nansum", "nanmean", "aminmax", "count_nonzero")
@carrier
def reduce(p: Propagator, op: Operation) -> Dims:
    """Drop the dimensions that are reduced."""
    if op.get("other") is not None:  # max(a, b) is not a reduction
        return broadcast(p, op.inputs, op.output.shape)
    dims = p.dims(op["self"])
    reduced = op.get("dim")
    if reduced is None or reduced == []:
        reduced = range(len(dims))
    reduced = {i % len(dims) for i in ([reduced] if isinstance(reduced, int) else reduced)}
    for i in reduced:
        reason = f"{op.short_name} is taken over it"
        if op.name in _STATISTICS:
            p.statistic(op, dims[i], reason)
        elif op.name not in _BLIND_TO_ZERO:
            p.pin(dims[i], reason)
    if op.output.dim() == len(dims):
        return tuple(None if i in reduced else dim for i, dim in enumerate(dims))
    return tuple(dim for i, dim in enumerate(dims) if i not in reduced)


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss")
@rule("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy_loss")
@rule("nll_loss", "nll_loss_nd", "nll_loss2d", "cosine_embedding_loss")
def loss(p: Propagator, op: Operation) -> Dims:
    """A loss that a network computes by itself is taken over all that it compares."""
    p.pin_tensors(op.inputs, f"{op.short_name} is taken over it")
    return unlabelled(op.output.shape)


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp")
@rule("sort", "argsort", "topk")
def mix(p: Propagator, op: Operation) -> Dims:
    """Every slot of the dimension depends on all of them: none can go."""
    dims = p.dims(op["self"])
    if not dims:
        return dims
    p.pin(dims[op["dim"]], f"{op.short_name} is taken over it")
    return replace_dim(dims, op["dim"], None)[: op.output.dim()]
