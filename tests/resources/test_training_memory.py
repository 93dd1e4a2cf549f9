"""Predicted training memory, against what autograd really keeps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ranp.errors import UsageError
from ranp.resources import predict_training_memory
from tests.pruning.nets import given_back
from tests.zoo.case import Net


def network():
    """Convolutions, batch norm, in-place ReLU, a pool, a skip, a head."""

    def run(net, x):
        one = net.first(x)
        two = net.second(net.pool(one))
        up = F.interpolate(two, scale_factor=2)
        return net.head(torch.cat([one, up], 1))

    def block(inputs, outputs):
        return nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm3d(outputs),
            nn.ReLU(inplace=True),
        )

    torch.manual_seed(0)
    return Net(
        run, first=block(2, 6), second=block(6, 8), pool=nn.MaxPool3d(2), head=nn.Conv3d(14, 3, 1)
    )


SHAPE = (2, 2, 8, 8, 8)


def saved_bytes(model, x):
    """Unique storages that autograd keeps for the backward pass, besides the model's and inputs."""
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), x]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).mean()
    held = sum(kept.values())
    assert loss.requires_grad
    return held


def test_parameters_gradients_and_optimizer_are_exact():
    model = network()
    for parameter in model.second.parameters():
        parameter.requires_grad_(False)
    learnt = sum(p.numel() for p in model.parameters() if p.requires_grad) * 4
    everything = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    for optimizer, states in (("sgd", 0), ("momentum", 1), ("adam", 2), ("amsgrad", 3)):
        memory = predict_training_memory(model, SHAPE, optimizer=optimizer)
        assert memory.parameters == everything
        assert memory.gradients == learnt
        assert memory.optimizer == states * learnt


def test_optimizer_states_are_those_of_torch():
    model = network()
    for name, make in (
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adam", lambda p: torch.optim.Adam(p)),
        ("amsgrad", lambda p: torch.optim.Adam(p, amsgrad=True)),
    ):
        optimizer = make(model.parameters())
        model(torch.randn(SHAPE)).mean().backward()
        optimizer.step()
        held = sum(
            t.numel() * t.element_size()
            for state in optimizer.state.values()
            for t in state.values()
            if isinstance(t, torch.Tensor) and t.dim() > 0
        )
        assert predict_training_memory(model, SHAPE, optimizer=name).optimizer == held


def test_activations_are_what_autograd_keeps_and_the_outputs():
    model = network().train()
    predicted = predict_training_memory(model, SHAPE).activations
    x = torch.randn(SHAPE)
    kept = saved_bytes(model, x) + model(x).nbytes  # the mean does not keep what it is taken of
    assert predicted == pytest.approx(kept, rel=0.01)


def test_activations_grow_with_the_batch_and_parameters_do_not():
    model = network()
    one = predict_training_memory(model, (1, *SHAPE[1:]))
    four = predict_training_memory(model, (4, *SHAPE[1:]))
    assert four.activations == pytest.approx(4 * one.activations, rel=0.01)
    assert four.parameters == one.parameters


def test_the_peak_holds_everything():
    memory = predict_training_memory(network(), SHAPE, optimizer="adam")
    inputs = 4 * torch.Size(SHAPE).numel()
    assert memory.peak >= memory.parameters + memory.activations + memory.optimizer + inputs
    assert memory.peak <= (
        memory.parameters + memory.gradients + memory.optimizer + 3 * memory.activations + inputs
    )


def test_in_place_activations_share_their_memory():
    def chain(inplace):
        return nn.Sequential(
            *(m for _ in range(4) for m in (nn.Conv2d(4, 4, 1), nn.ReLU(inplace=inplace)))
        )

    shared = predict_training_memory(chain(True), (1, 4, 32, 32)).activations
    apart = predict_training_memory(chain(False), (1, 4, 32, 32)).activations
    one = 4 * 32 * 32 * 4
    assert shared == pytest.approx(4 * one, rel=0.01)
    assert apart == pytest.approx(shared, rel=0.01)  # a convolution's output is freed after ReLU


def test_a_loss_takes_part():
    model = network()
    plain = predict_training_memory(model, SHAPE)
    with_loss = predict_training_memory(
        model, SHAPE, loss=lambda out: F.cross_entropy(out, torch.zeros(2, 8, 8, 8).long())
    )
    # Cross-entropy keeps the log-probabilities: 3 classes of 2 x 512 voxels.
    assert with_loss.activations - plain.activations >= 3 * 2 * 512 * 4


def test_nothing_is_allocated_and_the_model_is_untouched():
    model = network()
    with given_back(model):
        memory = predict_training_memory(model, (1, 2, 512, 512, 512))
    assert memory.peak > 8 * 2**30


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(UsageError, match="got 'lion'"):
        predict_training_memory(network(), SHAPE, optimizer="lion")
