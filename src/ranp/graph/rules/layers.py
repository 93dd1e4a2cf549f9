"""Layers: convolutions, linear maps, matrix products, attention, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from torch import Tensor

from ranp.graph.labels import Dim, Dims, LabelArray, replace_dim, unlabelled
from ranp.graph.operation import Operation, rule
from ranp.graph.propagation import Propagator
from ranp.graph.rules.elementwise import unite_dims

_INPUT = "it meets the network's input or another fixed tensor"
_SINGLE = "it is a single channel"
_COMPUTED = "its weight is computed in a way that fixes its size"
_FIXED = "it is multiplied with a tensor of fixed size"


def _sized(dim: Dim, size: int) -> int | LabelArray:
    return size if dim is None else dim


def _neurons(p: Propagator, dim: Dim, size: int) -> LabelArray:
    """Return the labels of a weight's neurons; those that have none stay."""
    return p.space.concrete(dim, size, _SINGLE if size == 1 else _COMPUTED)


def _unite_bias(p: Propagator, out: LabelArray, bias: Tensor | None) -> None:
    if bias is not None and p.dims(bias)[0] is not None:
        unite_dims(p, [out, p.dims(bias)[0]], _SINGLE)


@rule("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution")
def convolution(p: Propagator, op: Operation) -> Dims:
    """Fresh neurons out, inputs united with what comes in; groups must stay rectangular."""
    x, weight, bias = op["input"], op["weight"], op["bias"]
    groups, transposed = op["groups"], op["transposed"]
    weight_dims = p.dims(weight)
    into, out_of = (0, 1) if transposed else (1, 0)
    channels = p.dims(x)[1]
    rows = weight_dims[into]
    p.pin_space(p.dims(x)[2:], "a convolution runs along it")

    if groups == 1:
        unite_dims(p, [channels, rows], _INPUT)
        out = _neurons(p, weight_dims[out_of], op.output.shape[1])
    elif x.shape[1] == groups:  # depthwise: every output channel follows its one input channel
        multiplier = op.output.shape[1] // groups
        if transposed:
            channels = unite_dims(p, [channels, rows], _INPUT)
            out = np.repeat(p.space.concrete(channels, groups, _INPUT), multiplier)
            p.pin(weight_dims[out_of], "the multiplier of a depthwise convolution is fixed")
        else:
            out = _neurons(p, weight_dims[out_of], op.output.shape[1])
            followers = None if channels is None else np.repeat(channels, multiplier)
            unite_dims(p, [followers, out], _INPUT)
    elif transposed:
        p.space.unite_rows(p.space.concrete(rows, x.shape[1], _INPUT), groups)
        unite_dims(p, [channels, rows], _INPUT)
        per_group = _neurons(p, weight_dims[out_of], weight.shape[out_of])
        out = np.tile(per_group, groups)
    else:
        tiled = None if rows is None else np.tile(rows, groups)
        unite_dims(p, [channels, tiled], _INPUT)
        out = _neurons(p, weight_dims[out_of], op.output.shape[1])
        p.space.unite_rows(out, groups)

    _unite_bias(p, out, bias)
    p.add_layer(weight, out, p.space.concrete(channels, x.shape[1], _INPUT), groups)
    result = (p.dims(x)[0], out, *(None,) * (x.dim() - 2))
    larger = p.extent(x) if transposed else map(_sized, result, op.output.shape)
    p.add_contraction(*larger, p.extent(weight)[1], *weight.shape[2:])
    return result


@rule("linear")
def linear(p: Propagator, op: Operation) -> Dims:
    """Neurons on the last dimension."""
    x, weight, bias = op["input"], op["weight"], op["bias"]
    rows, columns = p.dims(weight) if weight.dim() == 2 else (None, p.dims(weight)[0])
    channels = p.dims(x)[-1]
    unite_dims(p, [channels, columns], _INPUT)
    out = _neurons(p, rows, weight.shape[0])
    _unite_bias(p, out, bias)
    p.add_layer(weight, out, p.space.concrete(channels, x.shape[-1], _INPUT), 1)
    p.add_contraction(*p.extent(x), out)
    return (*p.dims(x)[:-1], out)


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
@rule("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addmv", "addr")
def matrix_product(p: Propagator, op: Operation) -> Dims:
    """Unite what is summed over; leading dimensions broadcast."""
    left, right = op.inputs[-2:]
    rows = "r" if left.dim() > 1 else ""
    columns = "c" if right.dim() > 1 else ""
    leading = "".join(chr(ord("A") + i) for i in range(max(left.dim(), right.dim()) - 2))
    terms = [
        leading[len(leading) - max(left.dim() - 2, 0) :] + rows + "k",
        leading[len(leading) - max(right.dim() - 2, 0) :] + "k" + columns,
    ]
    dims = _einsum(p, [left, right], terms, leading + rows + columns)
    if "add" in op.name:
        added: Tensor = op["self"]
        for i, dim in enumerate(p.dims(added), start=len(dims) - added.dim()):
            if added.shape[i - len(dims)] > 1:
                unite_dims(p, [dims[i], dim], _FIXED)
    return dims


@rule("einsum")
def einsum(p: Propagator, op: Operation) -> Dims:
    """Dimensions of the same letter belong together."""
    tensors: list[Tensor] = op["tensors"]
    inputs, _, output = op["equation"].replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "->" not in op["equation"]:
        letters = sorted(set(inputs) - {",", "."})
        output = ("..." if "." in inputs else "") + "".join(
            letter for letter in letters if inputs.count(letter) == 1
        )
    spare = [t.dim() - len(term.replace("...", "")) for t, term in zip(tensors, terms, strict=True)]
    dots = "".join(chr(0x100 + i) for i in range(max(spare)))
    terms = [
        term.replace("...", dots[len(dots) - count :])
        for term, count in zip(terms, spare, strict=True)
    ]
    return _einsum(p, tensors, terms, output.replace("...", dots))


def _einsum(p: Propagator, tensors: Sequence[Tensor], terms: Sequence[str], output: str) -> Dims:
    """Einstein's summation: one letter per dimension of each tensor and of the output."""
    places = [
        (letter, tensor, i)
        for tensor, term in zip(tensors, terms, strict=True)
        for i, letter in enumerate(term)
    ]
    sizes = {
        letter: max(t.shape[i] for n, t, i in places if n == letter) for letter, _, _ in places
    }
    dims = {
        letter: unite_dims(
            p, [p.dims(t)[i] for n, t, i in places if n == letter and t.shape[i] == size], _FIXED
        )
        for letter, size in sizes.items()
    }
    _add_weight_layer(p, tensors, terms, output)
    p.add_contraction(*(_sized(dims[letter], sizes[letter]) for letter in sizes))
    return tuple(dims[letter] for letter in output)


def _add_weight_layer(
    p: Propagator, tensors: Sequence[Tensor], terms: Sequence[str], output: str
) -> None:
    """Record the product of an activation with a weight as a linear layer.

    Its inputs are what the two share and sum over, its neurons what the weight alone puts out.
    """
    weights = [i for i, tensor in enumerate(tensors) if p.is_weight(tensor)]
    if len(tensors) != 2 or len(weights) != 1:
        return
    weight, mine, other = tensors[weights[0]], terms[weights[0]], terms[1 - weights[0]]
    dims = dict(zip(mine, p.dims(weight), strict=True))
    inputs = [dim for letter, dim in dims.items() if letter in other and letter not in output]
    neurons = [dim for letter, dim in dims.items() if letter not in other and letter in output]
    for inp, out in product(inputs[:1], neurons):
        if inp is not None and out is not None:
            p.add_layer(weight, out, inp, 1)


@rule("scaled_dot_product_attention")
def attention(p: Propagator, op: Operation) -> Dims:
    """softmax(q k^T / sqrt(E)) v: q and k share E, the result takes the columns of v."""
    query, key, value = op["query"], op["key"], op["value"]
    width = unite_dims(p, [p.dims(query)[-1], p.dims(key)[-1]], _INPUT)
    if op["scale"] is None:
        p.pin(width, "its size scales the attention")
    for tensor in (query, key, value):
        p.pin(p.dims(tensor)[-2], "it is the sequence of an attention")
    leading = [
        unite_dims(p, [p.dims(t)[i] for t in (query, key, value)], _INPUT)
        for i in range(query.dim() - 2)
    ]
    p.add_contraction(*p.extent(query), key.shape[-2])
    p.add_contraction(*p.extent(query)[:-1], *p.extent(value)[-2:])
    return (*leading, None, p.dims(value)[-1])


@rule("batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit")
@rule("_native_batch_norm_legit_no_training", "cudnn_batch_norm")
@rule("group_norm", "native_group_norm")
def channel_norm(p: Propagator, op: Operation) -> list[Dims]:
    """Weights and statistics go with their channel, those that come out as well.

    Where channels are normalized in groups of several, each group must lose the same ones.
    """
    x = op["input"]
    dims = p.dims(x)
    channels = dims[1]
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = op.get(name)
        if tensor is not None and tensor.dim() == 1 and tensor.shape[0] > 1:
            channels = unite_dims(p, [channels, p.dims(tensor)[0]], _INPUT)
    groups = op.get("num_groups") or op.get("group") or x.shape[1]
    if channels is not None and x.shape[1] > groups:
        p.space.unite_rows(channels, groups)
    out = [replace_dim(dims, 1, channels)]
    return out + [
        (channels,) if t.shape == x.shape[1:2] else unlabelled(t.shape) for t in op.outputs[1:]
    ]


@rule("layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(p: Propagator, op: Operation) -> Dims:
    """Mixes the last dimensions in its statistics; weights go with them."""
    x = op["input"]
    dims = list(p.dims(x))
    for tensor in (op.get("weight"), op.get("bias")):
        own = () if tensor is None else p.dims(tensor)
        for i, dim in enumerate(own, start=len(dims) - len(own)):
            if x.shape[i] > 1:
                dims[i] = unite_dims(p, [dims[i], dim], _INPUT)
    return tuple(dims)


@rule("prelu")
def prelu(p: Propagator, op: Operation) -> Dims:
    """One slope for all channels, or one for each."""
    dims = p.dims(op["self"])
    if op["weight"].numel() == 1:
        return dims
    return replace_dim(dims, 1, unite_dims(p, [dims[1], p.dims(op["weight"])[0]], _INPUT))
