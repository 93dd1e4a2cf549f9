"""Makes a network faster on this machine, by measurement."""

from ranp.speed.memory import keep_freed_memory, return_freed_memory
from ranp.speed.optimizing import Optimization, Trial, optimization_of, optimize

__all__ = [
    "Optimization",
    "Trial",
    "keep_freed_memory",
    "optimization_of",
    "optimize",
    "return_freed_memory",
]
