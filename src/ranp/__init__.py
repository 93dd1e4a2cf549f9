"""Resource aware neuron pruning at initialization, for any PyTorch model."""

from ranp._version import __version__

__all__ = ["__version__"]
