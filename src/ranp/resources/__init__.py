"""What a layer and a network cost. Knows the channel graph, nothing of pruning."""

from ranp.resources.counting import (
    CONVENTIONS,
    Convention,
    Costs,
    LayerCost,
    count,
    count_choices,
)
from ranp.resources.training_memory import TrainingMemory, predict_training_memory

__all__ = [
    "CONVENTIONS",
    "Convention",
    "Costs",
    "LayerCost",
    "TrainingMemory",
    "count",
    "count_choices",
    "predict_training_memory",
]
