"""Structured synthetic data: in memory, for scoring without files, or as real files."""

from ranp.datasets.synthetic.hippocampi import synthetic_hippocampi
from ranp.datasets.synthetic.motion import synthetic_motion
from ranp.datasets.synthetic.shapes import synthetic_parts
from ranp.datasets.synthetic.tumours import synthetic_tumours

__all__ = ["synthetic_hippocampi", "synthetic_motion", "synthetic_parts", "synthetic_tumours"]
