"""All small topologies of the zoo."""

from tests.zoo import convolutions, forwards, joins, norms, reshapes  # noqa: F401
from tests.zoo.case import CASES

TOPOLOGIES = tuple(CASES.values())
