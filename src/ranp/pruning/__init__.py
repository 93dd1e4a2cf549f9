"""The paper: from batches to living channels. One equation, one function, one home."""

from ranp.pruning.batches import Forward, LossFunction, make_forward
from ranp.pruning.choose import Chooser
from ranp.pruning.coupling import Coupling
from ranp.pruning.early_stop import Settled
from ranp.pruning.identity import fingerprint
from ranp.pruning.methods import DEFAULT_LAMBDA, METHODS, Method, Resource, find_method
from ranp.pruning.score import Per, score
from ranp.pruning.scores import Scores
from ranp.pruning.state import ScoringWeights

__all__ = [
    "DEFAULT_LAMBDA",
    "METHODS",
    "Chooser",
    "Coupling",
    "Forward",
    "LossFunction",
    "Method",
    "Per",
    "Resource",
    "Scores",
    "ScoringWeights",
    "Settled",
    "find_method",
    "fingerprint",
    "make_forward",
    "score",
]
