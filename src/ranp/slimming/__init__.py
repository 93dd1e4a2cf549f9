"""Plan + model -> slim model."""

from ranp.slimming.plan import KeptLayer, Plan
from ranp.slimming.slim import Init, check_init, slim_model
from ranp.slimming.weights import check_marks, copy_tensors, load_weights, mark, marks, save_weights

__all__ = [
    "Init",
    "KeptLayer",
    "Plan",
    "check_init",
    "check_marks",
    "copy_tensors",
    "load_weights",
    "mark",
    "marks",
    "save_weights",
    "slim_model",
]
