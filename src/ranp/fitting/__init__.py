"""Fitting a network into budgets of memory, operations, parameters and time."""

from ranp.fitting.budgets import Budget
from ranp.fitting.fitted import Fitted
from ranp.fitting.pipeline import Fit, fit, fit_choice, make_fit
from ranp.fitting.search import Alternative, DoesNotFit
from ranp.fitting.training_step import TrainingStep

__all__ = [
    "Alternative",
    "Budget",
    "DoesNotFit",
    "Fit",
    "Fitted",
    "TrainingStep",
    "fit",
    "fit_choice",
    "make_fit",
]
