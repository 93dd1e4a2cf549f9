"""Every small topology: what can be removed, and that the slim network is the masked one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ranp.graph import ChannelGraph, index_dims
from ranp.graph.operation import tensors_within
from ranp.graph.tracing import Mode
from ranp.slimming import slim_model
from tests.oracle import Reference, compare, random_alive, randomize_, unchanged
from tests.zoo.case import Case, graph_of
from tests.zoo.topologies import TOPOLOGIES

each_topology = pytest.mark.parametrize("case", TOPOLOGIES, ids=lambda case: case.name)


def prepare(case: Case) -> tuple[nn.Module, ChannelGraph]:
    return randomize_(case.make()), graph_of(case)


def test_there_are_enough() -> None:
    assert len(TOPOLOGIES) >= 40


@each_topology
def test_what_can_be_removed(case: Case) -> None:
    graph = graph_of(case)
    removable = {n: int(graph.removable[layer.neurons].sum()) for n, layer in graph.layers.items()}
    assert (sum(removable.values()), int(graph.removable.sum())) == (case.neurons, case.classes), (
        removable,
        set(graph.pinned.values()),
        graph.notes,
    )


@each_topology
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_slim_equals_masked(case: Case, share: float) -> None:
    model, graph = prepare(case)
    alive = random_alive(graph, share)
    model.double().eval()
    with unchanged(model):
        result = compare(model, graph, alive, case.inputs(), both_ends=case.both_ends)
    assert result.error <= 1e-10
    assert result.variation > 1e-6
    assert not graph.removable.any() or result.effect > 1e-6


@each_topology
def test_slim_model_is_sound(case: Case) -> None:
    """It trains, every layer matters, and what modules say about themselves is true."""
    model, graph = prepare(case)
    slim = slim_model(model.train(), graph, random_alive(graph, 0.5))
    outputs = [t for t in tensors_within(slim(*case.inputs())) if t.is_floating_point()]
    torch.stack([(t * torch.rand_like(t)).sum() for t in outputs]).sum().backward()
    weights = {n: p for n, p in slim.named_parameters(remove_duplicate=False) if p.dim() > 1}
    for name in {name.partition("#")[0] for name in graph.layers}:
        own = [p.grad for n, p in weights.items() if _belongs(n, name)]
        assert any(gradient is not None and gradient.any() for gradient in own), name
    for name, module in slim.named_modules():
        check_attributes(name, module)


def _belongs(parameter: str, layer: str) -> bool:
    return parameter == layer or parameter.startswith(f"{layer}.")


def check_attributes(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.modules.conv._ConvNd):
        inputs, outputs = module.in_channels, module.out_channels
        wide = (inputs, outputs // module.groups)
        shape = wide if module.transposed else (outputs, inputs // module.groups)
        assert tuple(module.weight.shape[:2]) == shape, name
        assert inputs % module.groups == outputs % module.groups == 0, name
        assert module.bias is None or module.bias.shape == (outputs,), name
    elif isinstance(module, nn.Linear):
        assert module.weight.shape == (module.out_features, module.in_features), name
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
            assert tensor is None or tensor.shape == (module.num_features,), name
    elif isinstance(module, nn.GroupNorm):
        assert module.weight is None or module.weight.shape == (module.num_channels,), name
        assert module.num_channels % module.num_groups == 0, name
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        shape = module.normalized_shape
        assert module.weight is None or tuple(module.weight.shape) == tuple(shape), name
    elif isinstance(module, nn.PReLU):
        assert module.weight.shape == (module.num_parameters,), name
    elif isinstance(module, nn.Embedding):
        assert module.weight.shape == (module.num_embeddings, module.embedding_dim), name


@each_topology
def test_the_oracle_notices_a_shifted_slot(case: Case) -> None:
    """Takes the wrong slots of one weight after the other: the oracle must object each time."""
    model, graph = prepare(case)
    model.double().eval()
    alive = random_alive(graph, 0.5)
    slim = slim_model(model, graph, alive)
    reference = Reference(model, graph, alive, case.inputs(), both_ends=case.both_ends)
    evaluated = {call.name for call in graph.passes[Mode(False)].layers}
    tried = 0
    for name, full in model.named_parameters():
        if full.dim() < 2 or not any(_belongs(name, layer) for layer in evaluated):
            continue
        for dim, classes in enumerate(graph.tensors[name]):
            kept = None if classes is None else np.flatnonzero(alive[classes])
            if kept is None or len(kept) == len(classes) or not graph.removable[classes].any():
                continue
            keep = [None if c is None else np.flatnonzero(alive[c]) for c in graph.tensors[name]]
            keep[dim] = (kept + 1) % len(classes)
            wrong = index_dims(full, tuple(k if k is None else torch.from_numpy(k) for k in keep))
            assert differs(reference, slim, name, wrong), (name, dim)
            tried += 1
    assert tried or not graph.removable.any()


def differs(reference: Reference, slim: nn.Module, name: str, wrong: Tensor) -> bool:
    tensor = slim.get_parameter(name)
    right = tensor.detach().clone()
    with torch.no_grad():
        tensor.copy_(wrong)
        error = reference.compare(slim).error
        tensor.copy_(right)
    return error > 1e-7
