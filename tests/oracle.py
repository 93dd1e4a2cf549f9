"""The one oracle of equivalence: a slim network equals the full one with dead channels masked.

Masked means: every weight that a removed channel goes into is zero, so that the channel itself
stays alive up to its consumers. Where channels meet without a weight in between (attention), what
the channel comes out of is zeroed as well.

Group and layer norm mix channels in their statistics, so removing channels changes the function.
There the equality is checked with the statistics frozen to those of the masked network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ranp.graph import Alive, ChannelGraph, named_tensors
from ranp.graph.operation import tensors_in
from ranp.slimming import slim_model


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


class _Statistics(TorchFunctionMode):
    """Records the statistics of mixing norms, or uses recorded ones."""

    def __init__(self, recorded: list[tuple[Tensor, Tensor]] | None = None) -> None:
        super().__init__()
        self.replay = recorded is not None
        self.values = list(recorded or [])

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.group_norm:
            return self._group_norm(*args, **kwargs)
        if func is F.layer_norm:
            return self._layer_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _moments(self, x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
        if self.replay:
            return self.values.pop(0)
        moments = (x.mean(dims, keepdim=True), x.var(dims, keepdim=True, correction=0))
        self.values.append(moments)
        return moments

    def _group_norm(
        self,
        x: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if num_groups == x.shape[1]:  # nothing is mixed
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
        elif tensor.dim() <= 1:
            tensor.add_(0.5 * (noise - 0.5))
    return model


@torch.no_grad()
def masked(model: nn.Module, graph: ChannelGraph, alive: Alive, *, both_ends: bool) -> nn.Module:
    """The full network with the weights zeroed that dead channels go into."""
    result = copy.deepcopy(model)
    modules = dict(result.named_modules())
    for name, tensor in named_tensors(result):
        owner = modules[
            name.split(".parametrizations.")[0]
            if ".parametrizations." in name
            else name.rpartition(".")[0]
        ]
        transposed = getattr(owner, "transposed", False)
        for dim, classes in enumerate(graph.tensors[name]):
            is_input = tensor.dim() >= 2 and dim == (0 if transposed else 1)
            if classes is None or not tensor.is_floating_point():
                continue
            if is_input or (both_ends and not name.endswith("running_var")):
                tensor[(slice(None),) * dim + (torch.from_numpy(~alive[classes]),)] = 0
    return result


def largest_difference(
    model: nn.Module,
    graph: ChannelGraph,
    alive: Alive,
    inputs: tuple[Tensor, ...],
    *,
    both_ends: bool = False,
) -> float:
    """The largest difference between slim and masked network over all outputs, in float64."""
    model = model.double().eval()
    inputs = tuple(t.double() if t.is_floating_point() else t for t in inputs)
    slim = slim_model(model, graph, alive, init="keep")
    reference = masked(model, graph, alive, both_ends=both_ends)
    with torch.no_grad():
        with _Statistics() as statistics:
            expected = list(tensors_in(reference(*inputs)))
        with _Statistics(statistics.values):
            found = list(tensors_in(slim(*inputs)))
    assert [t.shape for t in found] == [t.shape for t in expected]
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Asserts that a model's tensors, modes and gradients are not changed inside."""
    before = {name: tensor.clone() for name, tensor in named_tensors(model)}
    modes = [m.training for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    yield
    assert modes == [m.training for m in model.modules()]
    assert wanted == [p.requires_grad for p in model.parameters()]
    for name, tensor in named_tensors(model):
        assert torch.equal(before[name], tensor), name
