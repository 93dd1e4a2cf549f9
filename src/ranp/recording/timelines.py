"""The memory of a training step over its course, small enough for a page."""

from __future__ import annotations

from typing import Any

from ranp.errors import TraceError
from ranp.graph import slim_meta_copy
from ranp.pruning import Chooser
from ranp.resources import predict_training_memory
from ranp.resources.training_memory import TrainingMemory
from ranp.slimming import Plan

_MOST_POINTS = 400
_HOLDERS = 8


def predict_timelines(chooser: Chooser, plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the timelines of full and slim network, at the size that the graph was traced at.

    There are none for a network that cannot be trained at that size, such as one with batch norm
    over a single voxel: it can be pruned, and trained at another.
    """
    graph = chooser.graph
    inputs = graph.inputs
    slim = slim_meta_copy(chooser.model, graph, plan.alive(graph))
    example: Any = inputs.kwargs or inputs.args
    try:
        memories = {
            name: predict_training_memory(network, example, device="cpu")
            for name, network in (("full", chooser.model), ("slim", slim))
        }
    except (TraceError, RuntimeError, ValueError):
        return {}
    return {name: timeline_of(memory) for name, memory in memories.items()}


def timeline_of(memory: TrainingMemory) -> dict[str, Any]:
    """Return a timeline as plain values.

    Returns:
        `bytes`: bytes alive over the step; of several operations next to each other the most.
        `backward` and `step`: where the backward pass and the optimizer's step begin in it.
        `peak`: most bytes alive, `phase`: when that is, `holders`: the layers that hold them;
        `allowance`: what is added to it for what no tensor, or no known loss, accounts for.
    """
    line = memory.timeline
    every = -(-len(line.bytes) // _MOST_POINTS)
    return {
        "bytes": [max(line.bytes[i : i + every]) for i in range(0, len(line.bytes), every)],
        "backward": line.backward // every,
        "step": line.step // every,
        "peak": max(line.bytes),
        "allowance": memory.peak - max(line.bytes),
        "phase": line.peak_phase,
        "holders": [[holder.module, holder.bytes] for holder in memory.holders[:_HOLDERS]],
    }
