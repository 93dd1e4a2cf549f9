"""The one oracle of equivalence: a slim network equals the full one with dead channels masked.

Masked means: every weight that a removed channel goes into is zero, so that the channel itself
stays alive up to its consumers, and any way around them shows. Where channels meet without a
weight in between (attention), what the channel comes out of is zeroed as well.

Some operations mix channels, so that removing some changes what is left: group and layer norm.
There the equality is checked with the statistics frozen to those of the masked network. In norms
that are written by hand these are the means and variances that are taken over fewer slots than in
the masked network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ranp.graph import Alive, ChannelGraph, index_dims, named_tensors
from ranp.graph.operation import tensors_within
from ranp.graph.tracing import Mode
from ranp.slimming import slim_model

Moments = tuple[Tensor, Tensor]
Kept = tuple[Tensor | None, ...]

_REDUCTIONS = {
    *(torch.mean, torch.var, torch.std, torch.var_mean, torch.std_mean),
    *(Tensor.mean, Tensor.var, Tensor.std),
}


@dataclass(frozen=True)
class Comparison:
    """What the oracle saw; all differences relative to the scale of the output.

    Attributes:
        error: The largest difference between slim and masked network.
        effect: The largest difference between masked and full network: what was removed mattered.
        variation: The smallest standard deviation of an output: outputs are not constant.
    """

    error: float
    effect: float
    variation: float


class Reference:
    """Masked and full network in eval mode, in float64, to compare slim networks with.

    Args:
        model: The full network.
        graph: Its channel graph.
        alive: Which classes stay.
        inputs: Arguments of the forward.
        both_ends: Whether to mask what dead channels come out of, too.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: ChannelGraph,
        alive: Alive,
        inputs: tuple[Any, ...],
        *,
        both_ends: bool = False,
    ) -> None:
        model = model.double().eval()
        self._inputs = pytree.tree_map(
            lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, inputs
        )
        self._kept = _kept_by_reductions(graph, alive)
        reference = masked(model, graph, alive, both_ends=both_ends)
        with torch.no_grad():
            self._full = _outputs(_copy(model), self._inputs)
            with _Statistics() as self._statistics:
                self._expected = _outputs(reference, self._inputs)

    def compare(self, slim: nn.Module) -> Comparison:
        """Compares a slim network in float64, which is left in eval mode."""
        expected = self._expected
        with torch.no_grad(), _Statistics(self._statistics.moments, self._kept):
            found = _outputs(slim.eval(), self._inputs)
        assert [t.shape for t in found] == [t.shape for t in expected]
        scale = max(float(t.abs().max()) for t in expected)
        assert 0 < scale < float("inf")
        return Comparison(
            error=_largest_difference(found, expected) / scale,
            effect=_largest_difference(expected, self._full) / scale,
            variation=min(float(t.std()) for t in expected if t.numel() > 1) / scale,
        )


def compare(
    model: nn.Module,
    graph: ChannelGraph,
    alive: Alive,
    inputs: tuple[Any, ...],
    *,
    both_ends: bool = False,
) -> Comparison:
    """Compares slim, masked and full network; see `Reference`."""
    reference = Reference(model, graph, alive, inputs, both_ends=both_ends)
    return reference.compare(slim_model(model, graph, alive, init="keep"))


def _outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    torch.manual_seed(0)  # some networks draw noise
    return [t for t in tensors_within(model(*inputs)) if t.is_floating_point()]


def _largest_difference(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def random_alive(graph: ChannelGraph, share_removed: float, seed: int = 0) -> Alive:
    """Removes a share of the removable classes at random; every layer keeps a neuron."""
    random = np.random.default_rng(seed)
    removable = np.flatnonzero(graph.removable)
    alive = graph.all_alive()
    alive[random.permutation(removable)[: round(share_removed * len(removable))]] = False
    for layer in graph.layers.values():
        if not alive[layer.neurons].any():
            alive[layer.neurons[random.integers(len(layer))]] = True
    return alive


@torch.no_grad()
def randomize_(model: nn.Module, seed: int = 0) -> nn.Module:
    """Gives norms and biases values that matter: a fresh network hides mistakes in them."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in named_tensors(model):
        if not tensor.is_floating_point():
            continue
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        if name.endswith("running_var"):
            tensor.copy_(0.5 + noise)
        elif tensor.dim() <= 1 or not tensor.any():
            tensor.add_(0.5 * (noise - 0.5))
    return model


@torch.no_grad()
def masked(model: nn.Module, graph: ChannelGraph, alive: Alive, *, both_ends: bool) -> nn.Module:
    """The full network with the weights zeroed that dead channels go into."""
    result = _copy(model)
    modules = dict(result.named_modules())
    for name, tensor in result.named_parameters():
        module, parametrized, _ = name.partition(".parametrizations.")
        owner = modules[module if parametrized else name.rpartition(".")[0]]
        into = 0 if getattr(owner, "transposed", False) else 1
        for dim, slots in enumerate(graph.tensors[name]):
            is_input = tensor.dim() >= 2 and dim == into
            if slots is not None and (is_input or both_ends):
                tensor[(slice(None),) * dim + (torch.from_numpy(~alive[slots]),)] = 0
    _mask_weight_norms(result, dict(model.named_parameters()))
    return result


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy, also of a model that remembers results of an autograd graph."""
    remembered = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor)]
    return copy.deepcopy(model, {id(v): v.detach().clone() for v in remembered})


def _mask_weight_norms(model: nn.Module, full: Mapping[str, Tensor]) -> None:
    """Masks what g v / |v| amounts to: zeros in v would change its norm, too."""
    parameters = dict(model.named_parameters())
    for name, v in parameters.items():
        for direction, magnitude in (("weight_v", "weight_g"), ("original1", "original0")):
            g = parameters.get(name.removesuffix(direction) + magnitude)
            if name.endswith(direction) and g is not None:
                over = [dim for dim in range(v.dim()) if g.shape[dim] == 1]
                norm = torch.linalg.vector_norm(full[name], dim=over, keepdim=True)
                weight = v * g / norm  # v is masked already
                g.copy_(torch.linalg.vector_norm(weight, dim=over, keepdim=True))
                v.copy_(torch.where(g > 0, weight, full[name]))


def _kept_by_reductions(graph: ChannelGraph, alive: Alive) -> list[Kept]:
    """What a slim network keeps of each mean and variance that its forward takes, in order."""
    names = {f"aten::{reduction.__name__}" for reduction in _REDUCTIONS}
    records = (r for r in graph.passes[Mode(False)].records if r.name in names)
    return [
        tuple(
            None if classes is None else torch.from_numpy(np.flatnonzero(alive[classes]))
            for classes in record.outputs[0][1]
        )
        for record in records
    ]


class _Statistics(TorchFunctionMode):
    """Records the statistics of norms that mix channels, or uses recorded ones.

    Args:
        recorded: The `moments` of the masked network; None to record them.
        kept: The slots of each mean and variance that stay; missing where all do.
    """

    def __init__(self, recorded: list[Any] | None = None, kept: Sequence[Kept] = ()) -> None:
        super().__init__()
        self.replay = recorded is not None
        self.moments: list[Any] = list(recorded or [])
        self._kept = iter(kept)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _REDUCTIONS:
            return self._reduction(func(*args, **(kwargs or {})), args[0])
        own = {
            F.group_norm: self._group_norm,
            F.layer_norm: self._layer_norm,
            F.rms_norm: self._rms_norm,
        }.get(func, func)
        return own(*args, **(kwargs or {}))

    def _reduction(self, own: Any, x: Tensor) -> Any:
        """A mean or variance: the recorded one where it is taken over fewer slots now."""
        results = own if isinstance(own, tuple) else (own,)
        slots = x.numel() // results[0].numel()
        if not self.replay:
            self.moments.append((slots, tuple(tensor.clone() for tensor in results)))
            return own
        (full, frozen), kept = self.moments.pop(0), next(self._kept, ())
        if slots == full:
            return own
        frozen = tuple(index_dims(tensor, kept) for tensor in frozen)
        return frozen if isinstance(own, tuple) else frozen[0]

    def _moments(self, x: Tensor, dims: list[int]) -> Moments:
        own = (x.mean(dims, keepdim=True), x.var(dims, keepdim=True, correction=0))
        if not self.replay:
            self.moments.append(own)
            return own
        frozen = self.moments.pop(0)
        # Where channels have statistics of their own, nothing is mixed: there are fewer now.
        return frozen if frozen[0].shape == own[0].shape else own

    def _group_norm(
        self,
        x: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        # With a group per channel nothing is mixed. What the full network does counts: a slim
        # one may come to have a single channel in each of its groups.
        mixes = self.moments[0] is not None if self.replay else num_groups < x.shape[1]
        if not mixes:
            self.moments = self.moments[1:] if self.replay else [*self.moments, None]
            return torch.group_norm(x, num_groups, weight, bias, eps, False)
        grouped = x.reshape(x.shape[0], num_groups, -1)
        mean, var = self._moments(grouped, [2])
        y = ((grouped - mean) / (var + eps).sqrt()).reshape(x.shape)
        affine = (1, -1, *(1,) * (x.dim() - 2))
        y = y if weight is None else y * weight.view(affine)
        return y if bias is None else y + bias.view(affine)

    def _layer_norm(
        self,
        x: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        mean, var = self._moments(x, list(range(-len(normalized_shape), 0)))
        y = (x - mean) / (var + eps).sqrt()
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def _rms_norm(
        self,
        x: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        mean, var = self._moments(x, list(range(-len(normalized_shape), 0)))
        y = x / (var + mean**2 + eps).sqrt()
        return y if weight is None else y * weight


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Asserts that nothing of a model is changed inside: tensors, modes, gradients, hooks."""
    before = _state(model)
    values = {name: tensor.clone() for name, tensor in named_tensors(model)}
    yield
    assert before == _state(model)
    for name, tensor in named_tensors(model):
        assert torch.equal(values[name], tensor), name


def _state(model: nn.Module) -> list[Any]:
    tensors = [(n, id(t), t._version, t.requires_grad, t.grad) for n, t in named_tensors(model)]
    modules = [
        (name, type(module), module.training, list(vars(module)), len(module._forward_hooks))
        for name, module in model.named_modules()
    ]
    return [tensors, modules]
