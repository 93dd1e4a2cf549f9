"""The cost model against `ranp.resources.count`, for any choice of channels."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ranp.graph import build_graph
from ranp.recording.cost_model import cost_model
from ranp.resources import count
from tests.oracle import random_alive
from tests.report.networks import NETWORKS
from tests.zoo.topologies import TOPOLOGIES


def evaluate(model, alive, rows):
    """The rules of the page, once more, in Python."""
    atom = np.repeat([a for a, _ in model["atoms"]], [n for _, n in model["atoms"]])
    living = np.bincount(atom[alive], minlength=atom.max() + 1)
    dims = [sum(times * int(living[a]) for a, times in dim) for dim in model["dims"]]

    def elements(extent):
        return extent["size"] * math.prod(dims[d] for d in extent["dims"])

    result = [[0, 0, 0] for _ in range(rows)]
    for call in model["calls"]:
        out = elements(call)
        if call["op"] == "conv":
            inputs = elements(call["inputs"])
            per_group = inputs // call["groups"] if call["groups"] else 1
            flops = out * (per_group * call["kernel"] + call["bias"])
        elif call["op"] == "linear":
            flops = out * (2 * elements(call["inputs"]) - 1 + call["bias"])
        elif call["op"] == "adaptive":
            flops = out * (elements(call["inputs"]) // max(out, 1) + 1)
        elif call["op"] == "softmax":
            flops = call["batch"] * (3 * elements(call["channels"]) - 1)
        else:
            flops = out * call["cost"]
        result[call["row"]][0] += flops
        result[call["row"]][2] += out
    for tensor in model["tensors"]:
        result[tensor["row"]][1] += elements(tensor)
    return result, [dims[d] for d in model["neurons"]]


def check(model, graph):
    full = count(model, graph)
    stored = json.loads(json.dumps(cost_model(model, graph, full)))
    for seed in (None, 0, 1):
        alive = graph.all_alive() if seed is None else random_alive(graph, 0.5, seed)
        costs = count(model, graph, alive)
        rows, neurons = evaluate(stored, alive, len(full.layers))
        assert rows == [[c.flops, c.parameters, c.activations] for c in costs.layers]
        assert neurons == [int(alive[layer.neurons].sum()) for layer in graph.layers.values()]


@pytest.mark.parametrize("name", NETWORKS)
def test_small_networks(name):
    build, shape = NETWORKS[name]
    model = build()
    check(model, build_graph(model, shape))


@pytest.mark.parametrize("case", TOPOLOGIES[::3], ids=lambda case: case.name)
def test_every_third_topology_of_the_zoo(case):
    model = case.make()
    check(model, build_graph(model, case.inputs()))
