"""The paper: from batches to living channels. One equation, one function, one home."""

from ranp.pruning.batches import Forward, LossFunction, make_forward
from ranp.pruning.choice import Choice
from ranp.pruning.choose import Chooser, Feasibility
from ranp.pruning.coupling import Coupling, Floor
from ranp.pruning.criteria import Criterion
from ranp.pruning.early_stop import StabilityStop
from ranp.pruning.methods import METHODS, Method, find_method, register_method, resource_variants
from ranp.pruning.score import Per, Scoring, ScoringWeights, score
from ranp.pruning.scores import Scores, fingerprint
from ranp.pruning.search import meet_budget
from ranp.pruning.selection import Selection
from ranp.pruning.statistics import Once, PerBatch, PerGradient

__all__ = [
    "METHODS",
    "Choice",
    "Chooser",
    "Coupling",
    "Criterion",
    "Feasibility",
    "Floor",
    "Forward",
    "LossFunction",
    "Method",
    "Once",
    "Per",
    "PerBatch",
    "PerGradient",
    "Scores",
    "Scoring",
    "ScoringWeights",
    "Selection",
    "StabilityStop",
    "find_method",
    "fingerprint",
    "make_forward",
    "meet_budget",
    "register_method",
    "resource_variants",
    "score",
]
