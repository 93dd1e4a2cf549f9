"""What is known of a pruned network before it is trained, in cells.

- `scores`: one pass over the data, of one network, initialisation and seed. All methods and
  sparsities share it.
- `importance`: the importance of every neuron by one method.
- `choice`: the neurons that a method keeps, the plan and what the slim network costs.
- `transfer`: what a plan costs in a network with other inputs and classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ranp.datasets import find_dataset, open_cases, synthetic_cases
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.experiments.cells import COSTS, as_limit
from ranp.experiments.store import Cell, Store
from ranp.files import canonical_json
from ranp.graph import Alive, ChannelGraph, build_graph
from ranp.pruning import METHODS, Choice, Chooser, Scores, find_method, score
from ranp.pruning.search import meet_budget
from ranp.resources import count, predict_training_memory
from ranp.slimming import Plan
from ranp.training.config import NetworkConfig
from ranp.training.networks import build_network

SCORES = "scores.safetensors"
PLAN = "plan.json"

STATISTICS = ("abs", "signed")
"""Gathered beyond the usual for the four pairs: what SNIP and the maxima of Table 6 need."""

_GIB = 2**30


@dataclass(frozen=True)
class Amount:
    """How much is pruned; one of its attributes is set.

    Attributes:
        sparsity: The share of neurons (of weights, for SNIP).
        of_largest: A share of the largest feasible sparsity.
        resource: What is budgeted: "gflops" or "memory" (see `ranp.experiments.cells.COSTS`).
        budget: Of the resource; where it is not given, what RANP-f costs at `ranp_f`.
        ranp_f: The sparsity of RANP-f whose cost is the budget, and its lambda.
    """

    sparsity: float | None = None
    of_largest: float | None = None
    resource: str | None = None
    budget: float | None = None
    ranp_f: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes that are set, as plain values."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Choices:
    """Computes these cells.

    Attributes:
        store: Keeps the cells that others are made of.
        data: Directories of data sets by name; what is not there is generated.
        workers: Processes that read data ahead.
    """

    store: Store
    data: Mapping[str, Path]
    workers: int = 0

    def compute(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Compute a cell in its directory; the cells that it is made of are complete."""
        kinds = {
            "scores of samples": self.score,
            "importance": self.weigh,
            "choice": self.choose,
            "transfer": self.transfer,
        }
        return kinds[cell["kind"]](cell, place)

    def score(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Scores a network, on a GPU where there is one."""
        config = NetworkConfig(**cell["network"])
        model = build_network(config).to("cuda" if torch.cuda.is_available() else "cpu")
        cases = self._cases(cell, config)
        task = find_dataset(cell["data"]).make_task(cell["size"])
        scores = score(
            model,
            build_graph(model, (1, *cases[0]["x"].shape)),
            Loader(cases, 1, training=True, workers=self.workers),
            lambda network, batch: task.loss(network(batch["x"]), batch),
            methods=[
                method
                for method in METHODS.values()
                if any(each.name in cell["statistics"] for each in method.statistics)
            ],
            weights=cell["weights"],
            batches=cell["samples"],
            seed=cell["seed"],
        )
        scores.save(place / SCORES)
        return {"batches": scores.batches}

    def _cases(self, cell: Cell, network: NetworkConfig) -> Cases:
        kind, size, seed = cell["data"], cell["size"], cell["seed"]
        if cell["cases"] is not None:
            return open_cases(
                kind, self.data[kind], "train", size=size, fold=cell["fold"], seed=seed
            )
        classes = int(network.options["classes"])
        return synthetic_cases(kind, size=size, samples=cell["samples"], seed=seed, classes=classes)

    def weigh(self, cell: Cell, place: Path) -> dict[str, Any]:
        """The importance of every neuron, by layer."""
        chooser = self._chooser(cell, *_traced(cell))
        return {
            "layers": list(chooser.importance),
            "importance": [values.tolist() for values in chooser.importance.values()],
        }

    def choose(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Chooses neurons, keeps the plan, and counts what the slim network costs.

        A layer that would lose all its neurons keeps one: so every row of a table is of a network
        that can be trained. The result says which layers these are.
        """
        model, graph = _traced(cell)
        full = count(model, graph)
        if cell["method"] == "full":
            return {
                "costs": full.totals(),
                "full": full.totals(),
                "layers": list(graph.layers),
                "neurons": [len(layer) for layer in graph.layers.values()],
                **_training_memory(model, cell),
            }
        chooser = self._chooser(cell, model, graph)
        sparsity, alive, found = self._chosen(cell, chooser, model, graph)
        costs = count(model, graph, alive)
        plan = Plan.make(
            graph,
            alive,
            method=cell["method"],
            settings={**cell, "sparsity": sparsity},
            costs={"full": full.totals(), "slim": costs.totals()},
        )
        plan.save(place / PLAN)
        return {
            "sparsity": sparsity,
            **found,
            "emptied": graph.empty_layers(chooser.choose(sparsity)),
            "costs": costs.totals(),
            "full": full.totals(),
            "layers": list(graph.layers),
            "neurons": [len(layer) for layer in graph.layers.values()],
            "kept": [len(kept) for kept in graph.kept(alive).values()],
            **(_training_memory(plan.apply(model, init="keep"), cell) if cell["batch"] else {}),
        }

    def transfer(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Counts what a network costs that was pruned for another data set."""
        model, graph = _traced(cell)
        plan = Plan.load(self.store.place(cell["plan"]) / PLAN)
        return {
            "sparsity": plan.settings["sparsity"],
            "costs": count(model, graph, plan.alive(graph, transfer=True)).totals(),
            "full": count(model, graph).totals(),
        }

    def _chosen(
        self, cell: Cell, chooser: Chooser, model: nn.Module, graph: ChannelGraph
    ) -> tuple[float, Alive, dict[str, Any]]:
        """Sparsity, living channels, and what else was found on the way."""
        amount, floored = cell["amount"], _floored(chooser)
        if "sparsity" in amount:
            return amount["sparsity"], floored.choose(amount["sparsity"]), {}
        if "of_largest" in amount:
            largest = chooser.max_sparsity("paper")
            sparsity = amount["of_largest"] * largest
            return sparsity, floored.choose(sparsity), {"largest": largest}
        cost = COSTS[amount["resource"]]
        budget = amount.get("budget")
        if budget is None:
            sparsity, lam = amount["ranp_f"]
            choice = Choice.make("ranp-f", lam=lam)
            reference = Chooser(model, graph, choice, self._scores(cell))
            budget = cost(count(model, graph, _floored(reference).choose(sparsity)))
        sparsity, alive = meet_budget(floored, as_limit(amount["resource"], budget))
        deviation = cost(count(model, graph, alive)) / budget - 1
        return sparsity, alive, {"budget": budget, "deviation": deviation}

    def _chooser(self, cell: Cell, model: nn.Module, graph: ChannelGraph) -> Chooser:
        method = find_method(cell["method"])
        scores = self._scores(cell) if method.needs_scores else None
        lam = cell["lam"] or 0.0
        choice = Choice.make(method, lam=lam, seed=cell.get("seed") or 0)
        return Chooser(model, graph, choice, scores)

    def _scores(self, cell: Cell) -> Scores:
        return _load_scores(self.store.place(cell["scores"]) / SCORES)


def _floored(chooser: Chooser) -> Chooser:
    return replace(chooser, choice=replace(chooser.choice, floor=1))


def _traced(cell: Cell) -> tuple[nn.Module, ChannelGraph]:
    return _trace(canonical_json(cell["network"]), tuple(cell["shape"]))


@lru_cache(maxsize=1)  # cells of a network come one after the other
def _trace(network: str, shape: tuple[int, ...]) -> tuple[nn.Module, ChannelGraph]:
    model = build_network(NetworkConfig(**json.loads(network)))
    return model, build_graph(model, shape)


@lru_cache(maxsize=1)
def _load_scores(path: Path) -> Scores:
    return Scores.load(path)


def _training_memory(model: nn.Module, cell: Cell) -> dict[str, float]:
    """What a training step with SGD and momentum takes, predicted."""
    if cell["batch"] is None:
        return {}
    shape = (cell["batch"], *cell["shape"][1:])
    peak = predict_training_memory(model, shape, optimizer="momentum").peak
    return {"step_gib": peak / _GIB}
