"""Which channels of a network belong together. Knows torch, nothing of pruning."""

from ranp.graph.batching import describe_batch, split_batch, with_batch
from ranp.graph.build import (
    build_graph,
    check_values,
    protect_patterns,
    rebuild_slim,
    slim_meta_copy,
    unwrap,
)
from ranp.graph.channel_graph import Alive, ChannelGraph, ClassArray, Count, Layer, measure
from ranp.graph.inputs import ExampleInput, Inputs, TensorShape
from ranp.graph.operation import carrier, picker, rule
from ranp.graph.propagation import IS_OUTPUT, ModuleCall
from ranp.graph.replay import Divergence, check
from ranp.graph.surgery import (
    index_dims,
    named_tensors,
    shape_difference,
    shapes_fingerprint,
    tensor_shapes,
)

__all__ = [
    "IS_OUTPUT",
    "Alive",
    "ChannelGraph",
    "ClassArray",
    "Count",
    "Divergence",
    "ExampleInput",
    "Inputs",
    "Layer",
    "ModuleCall",
    "TensorShape",
    "build_graph",
    "carrier",
    "check",
    "check_values",
    "describe_batch",
    "index_dims",
    "measure",
    "named_tensors",
    "picker",
    "protect_patterns",
    "rebuild_slim",
    "rule",
    "shape_difference",
    "shapes_fingerprint",
    "slim_meta_copy",
    "split_batch",
    "tensor_shapes",
    "unwrap",
    "with_batch",
]
