"""All small topologies of the zoo."""

from tests.zoo import convolutions, forwards, joins, norms, reshapes, statistics  # noqa: F401
from tests.zoo.case import CASES

TOPOLOGIES = tuple(CASES.values())
