"""Resource aware neuron pruning at initialization, for any PyTorch model.

result = ranp.prune(model, loader, loss, flops="10%")
result.model                               # the slim network, ready to train
result.plan.save("plan.json")              # portable, no pickle
ranp.Plan.load("plan.json").apply(MyNet()) # rebuild it anywhere
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ranp._version import __version__

if TYPE_CHECKING:
    from ranp.api import Fit, Result, fit, plan, prune, score, search, trace
    from ranp.errors import (
        InfeasibleError,
        IntegrityError,
        RanpError,
        TraceError,
        UsageError,
    )
    from ranp.experiments.loop_runs import LoopComparison, compare
    from ranp.exporting import Exported, export
    from ranp.graph import ChannelGraph
    from ranp.pruning import METHODS, Scores, register_method
    from ranp.resources import Costs, count, predict_training_memory
    from ranp.resources.budgets import register_resource
    from ranp.slimming import Plan, load_weights, save_weights
    from ranp.speed import optimize
    from ranp.trials.race import RaceResult, race
    from ranp.trials.reporting import reporting

# What is exported is imported when first asked for: importing torch takes seconds, and
# `ranp --help` should not.
_HOMES = {
    "ranp.api": ("Fit", "Result", "fit", "plan", "prune", "score", "search", "trace"),
    "ranp.errors": ("InfeasibleError", "IntegrityError", "RanpError", "TraceError", "UsageError"),
    "ranp.experiments.loop_runs": ("LoopComparison", "compare"),
    "ranp.trials.race": ("RaceResult", "race"),
    "ranp.trials.reporting": ("reporting",),
    "ranp.exporting": ("Exported", "export"),
    "ranp.graph": ("ChannelGraph",),
    "ranp.pruning": ("METHODS", "Scores", "register_method"),
    "ranp.resources": ("Costs", "count", "predict_training_memory"),
    "ranp.resources.budgets": ("register_resource",),
    "ranp.slimming": ("Plan", "load_weights", "save_weights"),
    "ranp.speed": ("optimize",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "METHODS",
    "ChannelGraph",
    "Costs",
    "Exported",
    "Fit",
    "InfeasibleError",
    "IntegrityError",
    "LoopComparison",
    "Plan",
    "RaceResult",
    "RanpError",
    "Result",
    "Scores",
    "TraceError",
    "UsageError",
    "__version__",
    "compare",
    "count",
    "export",
    "fit",
    "load_weights",
    "optimize",
    "plan",
    "predict_training_memory",
    "prune",
    "race",
    "register_method",
    "register_resource",
    "reporting",
    "save_weights",
    "score",
    "search",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ranp' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
