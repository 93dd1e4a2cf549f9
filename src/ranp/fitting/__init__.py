"""Fitting a network into budgets of memory, operations, parameters and time."""

from ranp.fitting.fit import Fit, choice_for, choices_to_try, fit_network, prune_network
from ranp.fitting.fitted import Fitted
from ranp.fitting.search import Alternative, DoesNotFit, Tried
from ranp.fitting.target import loss_by_output
from ranp.fitting.training_step import TrainingStep

__all__ = [
    "Alternative",
    "DoesNotFit",
    "Fit",
    "Fitted",
    "TrainingStep",
    "Tried",
    "choice_for",
    "choices_to_try",
    "fit_network",
    "loss_by_output",
    "prune_network",
]
