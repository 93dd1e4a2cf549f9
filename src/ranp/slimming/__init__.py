"""Plan + model -> slim model."""

from ranp.slimming.slim import Init, slim_model

__all__ = ["Init", "slim_model"]
