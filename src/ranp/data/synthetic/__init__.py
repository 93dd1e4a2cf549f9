"""Structured synthetic data: in memory, for scoring without files, or as real files."""

from ranp.data.synthetic.hippocampi import synthetic_hippocampi
from ranp.data.synthetic.motion import synthetic_motion
from ranp.data.synthetic.shapes import synthetic_parts
from ranp.data.synthetic.tumours import synthetic_tumours

__all__ = ["synthetic_hippocampi", "synthetic_motion", "synthetic_parts", "synthetic_tumours"]
