"""Cells of a pruned network before it is trained.

- `scores of samples`: one pass over the data, of one network, initialization and seed. All methods
  and sparsities share it.
- `importance`: the importance of every neuron by one method.
- `choice`: the neurons that a method keeps, the plan and the costs of the slim network.
- `transfer`: the costs of a plan in a network with other inputs and classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from ranp.datasets import find_dataset, open_cases, synthetic_cases
from ranp.datasets.cases import Cases
from ranp.experiments.cells import load_budget, score_cases
from ranp.files import canonical_json
from ranp.graph import Alive
from ranp.pipeline import Traced, trace
from ranp.pruning import METHODS, Choice, Chooser, Scores
from ranp.pruning.search import meet_budget
from ranp.resources import count, predict_training_memory
from ranp.slimming import Plan
from ranp.training.config import NetworkConfig
from ranp.training.networks import build_network
from ranp.trials.store import Cell, Store

SCORES = "scores.safetensors"
PLAN = "plan.json"

STATISTICS = ("abs", "signed")
"""Gathered beyond the usual for the four pairs: what SNIP and the maxima of Table 6 need."""

_GIB = 2**30


@dataclass(frozen=True)
class Amount:
    """How much is pruned; one of its attributes is set.

    Attributes:
        sparsity: Share of neurons (of weights, for SNIP).
        of_largest: Share of the largest feasible sparsity.
        resource: Resource of a budget as cells name it, "gflops" or "memory".
        budget: Amount of the resource; if not given, what RANP-f costs at `ranp_f`.
        ranp_f: Sparsity of RANP-f whose cost is the budget, and its lambda.
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
    """Computes these cells; `store` keeps those that others are made of.

    Data sets that have no directory in `data`, by name, are generated.
    """

    store: Store
    data: Mapping[str, Path]

    def compute(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Compute a cell in its directory; the cells that it is made of are complete."""
        kinds = {
            "scores of samples": self.score,
            "importance": self.rank,
            "choice": self.choose,
            "transfer": self.transfer,
        }
        return kinds[cell["kind"]](cell, place)

    def score(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Score a network."""
        config = NetworkConfig(**cell["network"])
        cases = self._cases(cell, config)
        methods = [
            method
            for method in METHODS.values()
            if any(each.name in cell["statistics"] for each in method.statistics)
        ]
        scores = score_cases(
            trace(build_network(config), example_input=(1, *cases[0]["x"].shape)),
            cases,
            methods or [METHODS["ranp-f"]],
            dataset=find_dataset(cell["data"]).configured(cell.get("options", {})),
            window=cell["size"],
            weights=cell["weights"],
            batches=cell["samples"],
            seed=cell["seed"],
        )
        scores.save(place / SCORES)
        return {"batches": scores.batches}

    def _cases(self, cell: Cell, network: NetworkConfig) -> Cases:
        name: str = cell["data"]
        options = {"size": cell["size"], "seed": cell["seed"], "options": cell.get("options", {})}
        if cell["cases"] is not None:
            return open_cases(name, self.data[name], "train", fold=cell["fold"], **options)
        classes = int(network.options["classes"])
        return synthetic_cases(name, samples=cell["samples"], classes=classes, **options)

    def rank(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Compute the importance of every neuron, by layer."""
        chooser = self._chooser(cell)
        return {
            "layers": list(chooser.importance),
            "importance": [values.tolist() for values in chooser.importance.values()],
        }

    def choose(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Choose neurons, keep the plan, and count the costs of the slim network.

        A layer that would lose all its neurons keeps one, so that every row of a table is of a
        network that can be trained. The result names these layers.
        """
        graph = _traced(cell).graph
        layers = {
            "layers": list(graph.layers),
            "neurons": [len(layer) for layer in graph.layers.values()],
        }
        if cell["method"] == "full":
            model = _traced(cell).model
            full = count(model, graph).totals()
            return {"costs": full, "full": full, **layers, **_training_memory(model, cell)}
        chooser = self._chooser(cell)
        sparsity, alive, found = self._chosen(cell, chooser)
        costs = {"full": chooser.costs().totals(), "slim": chooser.costs(alive).totals()}
        settings = {**cell, "sparsity": sparsity}
        plan = Plan.make(graph, alive, method=cell["method"], settings=settings, costs=costs)
        plan.save(place / PLAN)
        memory = {}
        if cell["batch"] is not None:
            memory = _training_memory(plan.apply(chooser.model, init="keep", graph=graph), cell)
        return {
            "sparsity": sparsity,
            **found,
            "emptied": graph.empty_layers(chooser.choose(sparsity)),
            "costs": costs["slim"],
            "full": costs["full"],
            **layers,
            "kept": [len(kept) for kept in graph.kept(alive).values()],
            **memory,
        }

    def transfer(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Count the costs of a network that was pruned for another data set."""
        model, graph = _traced(cell).model, _traced(cell).graph
        plan = Plan.load(self.store.complete_place(cell["plan"]) / PLAN)
        return {
            "sparsity": plan.settings["sparsity"],
            "costs": count(model, graph, plan.alive(graph, transfer=True)).totals(),
            "full": count(model, graph).totals(),
        }

    def _chosen(self, cell: Cell, chooser: Chooser) -> tuple[float, Alive, dict[str, Any]]:
        """Return sparsity, living channels, and what else was found on the way."""
        amount = cell["amount"]
        floored = replace(chooser, choice=replace(chooser.choice, floor=1))
        if "sparsity" in amount:
            return amount["sparsity"], floored.choose(amount["sparsity"]), {}
        if "of_largest" in amount:
            largest = chooser.max_sparsity("paper")
            sparsity = amount["of_largest"] * largest
            return sparsity, floored.choose(sparsity), {"largest": largest}
        stored = {"resource": amount["resource"], "amount": amount.get("budget", 1.0)}
        budget = load_budget(stored)
        if "budget" not in amount:
            sparsity, lam = amount["ranp_f"]
            ranp_f = replace(
                floored, choice=Choice.make("ranp-f", lam=lam, floor=1), scores=self._scores(cell)
            )
            cost = budget.total(ranp_f.costs(ranp_f.choose(sparsity)))
            stored["amount"] = cost / budget.limit  # in units of a budget of 1
            budget = replace(budget, limit=cost)
        sparsity, alive = meet_budget(floored, [budget])
        deviation = budget.total(chooser.costs(alive)) / budget.limit - 1
        return sparsity, alive, {"budget": stored["amount"], "deviation": deviation}

    def _chooser(self, cell: Cell) -> Chooser:
        choice = Choice.make(cell["method"], lam=cell["lam"] or 0.0, seed=cell.get("seed") or 0)
        scores = self._scores(cell) if choice.method.needs_scores else None
        traced = _traced(cell)
        return Chooser(traced.model, traced.graph, choice, scores)

    def _scores(self, cell: Cell) -> Scores:
        return _load_scores(self.store.complete_place(cell["scores"]) / SCORES)


def _traced(cell: Cell) -> Traced:
    return _trace(canonical_json(cell["network"]), tuple(cell["shape"]))


@lru_cache(maxsize=1)  # cells of a network come one after the other
def _trace(network: str, shape: tuple[int, ...]) -> Traced:
    return trace(build_network(NetworkConfig(**json.loads(network))), example_input=shape)


@lru_cache(maxsize=1)
def _load_scores(path: Path) -> Scores:
    return Scores.load(path)


def _training_memory(model: nn.Module, cell: Cell) -> dict[str, float]:
    """Predict the memory of a training step with SGD and momentum, if that is asked for."""
    if cell["batch"] is None:
        return {}
    shape = (cell["batch"], *cell["shape"][1:])
    peak = predict_training_memory(model, shape, optimizer="momentum").peak
    return {"step_gib": peak / _GIB}
