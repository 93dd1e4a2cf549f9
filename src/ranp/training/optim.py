"""Optimizers and learning rates; a rate is a function of the epoch, and has no state."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from ranp.resources.training_memory import Optimizer
from ranp.training.config import OptimizerConfig, ScheduleConfig


def make_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Build the optimizer of a configuration."""
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.momentum,
            dampening=config.dampening,
            nesterov=config.momentum > 0 and not config.dampening,
            weight_decay=config.weight_decay,
        )
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, amsgrad=config.amsgrad)


def optimizer_state(config: OptimizerConfig) -> Optimizer:
    """Return the optimizer whose state is predicted in the memory of a training step."""
    if config.name == "sgd":
        return "momentum" if config.momentum else "sgd"
    return "amsgrad" if config.amsgrad else config.name


def learning_rate(config: ScheduleConfig, base: float, epoch: int, epochs: int) -> float:
    r"""Return the learning rate of epoch e, from 1, of E, where the base rate is :math:`\eta`.

    - constant: :math:`\eta`
    - exponential: :math:`\eta \exp(-d (e - 1))` with decay d
    - multistep: :math:`\eta f^{|\{m \le e\}|}`: times the factor f from each milestone on
    - cosine: :math:`\eta (1 + \cos(\pi (e - 1) / E)) / 2`
    """
    if config.name == "exponential":
        return base * math.exp(-config.decay * (epoch - 1))
    if config.name == "multistep":
        passed = sum(milestone <= epoch for milestone in config.milestones)
        return base * float(config.factor**passed)
    if config.name == "cosine":
        return base * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
    return base
