"""A network as one file that runs without its code: ONNX, or a program of torch.export."""

from ranp.exporting.exporting import TOLERANCE, Exported, export
from ranp.exporting.formats import FORMATS, Format, find_format, load_exported
from ranp.exporting.timing import time_exported

__all__ = [
    "FORMATS",
    "TOLERANCE",
    "Exported",
    "Format",
    "export",
    "find_format",
    "load_exported",
    "time_exported",
]
