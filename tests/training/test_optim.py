from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ranp.training.config import OptimizerConfig, ScheduleConfig
from ranp.training.optim import learning_rate, make_optimizer


def rates(schedule: ScheduleConfig, base: float, epochs: int) -> list[float]:
    return [learning_rate(schedule, base, epoch, epochs) for epoch in range(1, epochs + 1)]


def torch_rates(make, base: float, epochs: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=base)
    schedule = make(optimizer)
    result = []
    for _ in range(epochs):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return result


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (
            ScheduleConfig(name="constant"),
            lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0),
        ),
        (
            ScheduleConfig(name="exponential", decay=0.04),
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, math.exp(-0.04)),
        ),
        (
            # PyTorch counts epochs from 0.
            ScheduleConfig(name="multistep", milestones=(3, 5), factor=0.1),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4], 0.1),
        ),
        (
            ScheduleConfig(name="cosine"),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
        ),
    ],
)
def test_rates_are_those_of_torchs_schedulers(schedule, make):
    assert rates(schedule, 0.1, 8) == pytest.approx(torch_rates(make, 0.1, 8), rel=1e-12)


def test_optimizers_are_what_the_paper_uses():
    parameters = [nn.Parameter(torch.zeros(1))]
    sgd = make_optimizer(OptimizerConfig(name="sgd", lr=0.1, weight_decay=1e-4), parameters)
    assert isinstance(sgd, torch.optim.SGD)
    group = sgd.param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 1e-4)
    damped = OptimizerConfig(name="sgd", lr=0.1, dampening=0.9)  # as on UCF101
    group = make_optimizer(damped, parameters).param_groups[0]
    assert (group["momentum"], group["dampening"], group["nesterov"]) == (0.9, 0.9, False)
    adam = make_optimizer(OptimizerConfig(name="adam", lr=1e-3, amsgrad=True), parameters)
    assert type(adam) is torch.optim.Adam
    assert adam.param_groups[0]["amsgrad"] is True
    adamw = make_optimizer(OptimizerConfig(name="adamw", lr=1e-3), parameters)
    assert type(adamw) is torch.optim.AdamW


def test_how_far_a_constant_gradient_moves():
    """60 steps of a unit gradient at rate 1, momentum 0.9.

    Dampened by 0.9 the buffer is 1 from the first step on: 60. With Nesterov's, which takes steps
    of 1 + 0.9 b with b = 10 (1 - 0.9^t), it is 600 - 81 (1 - 0.9^60), 8.7 times as far.
    """
    for dampening, distance in ((0.9, 60.0), (0.0, 600 - 81 * (1 - 0.9**60))):
        parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        config = OptimizerConfig(name="sgd", lr=1.0, weight_decay=0.0, dampening=dampening)
        optimizer = make_optimizer(config, [parameter])
        for _ in range(60):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        assert parameter.item() == pytest.approx(-distance, rel=1e-9)
