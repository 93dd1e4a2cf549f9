"""A method of one's own, with a new criterion: the sum of squared mask gradients."""

from ranp import register_method
from ranp.pruning import Criterion, Method, PerGradient

_squares = PerGradient("squares", lambda g: (g * g).sum(1))
_criterion = Criterion("squares", lambda scores: scores.average("squares"), (_squares,))

register_method(Method("squared", "squared mask gradients by energy", _criterion, True, "energy"))
