"""What each operation does to labels. Importing this package fills the registry of rules."""

from ranp.graph.rules import elementwise, indexing, layers, reductions, reshaping, spatial

__all__ = ["elementwise", "indexing", "layers", "reductions", "reshaping", "spatial"]
