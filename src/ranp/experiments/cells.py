"""Training cells: one network pruned by one method to one size and trained from one seed.

Any table or comparison is made of them. Two experiments that want the same cell share it, and all
methods of a seed share its scores and its generated data, which are cells of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ranp.datasets import find_dataset, synthesise
from ranp.datasets.loader import Loader
from ranp.errors import InfeasibleError, UsageError
from ranp.experiments.cpu_clock import CpuClock
from ranp.experiments.store import Cell, Store
from ranp.files import canonical_json, sha256
from ranp.graph import ChannelGraph, build_graph
from ranp.pipeline import make_plan
from ranp.pruning import Choice, Chooser, Method, Scores, find_method, score
from ranp.pruning.batches import no_forward
from ranp.pruning.search import DELTA, meet_budget
from ranp.resources import Costs, count, predict_training_memory
from ranp.resources import budgets as limits
from ranp.resources.training_memory import Optimizer
from ranp.slimming import Plan
from ranp.training.config import Config, OptimizerConfig, parse_config
from ranp.training.job import Job
from ranp.training.listeners import Listener, Listeners
from ranp.training.loop import Diverged
from ranp.training.networks import Factory, build_network
from ranp.training.preparation import open_split, open_splits, stored_plan
from ranp.training.run import train

Resource = Literal["gflops", "memory", "params"]

COSTS: Mapping[str, Callable[[Costs], float]] = {
    "gflops": lambda costs: costs.gflops,
    "memory": lambda costs: costs.memory_mb,
    "params": lambda costs: float(costs.parameters),
}
"""What can be budgeted: GFLOPs, activation memory in MB, and number of parameters, as counted."""

_MIB = 2**20


def as_limit(resource: str, amount: float) -> limits.Budget:
    """A stored budget: there "memory" is that of activations, in MB."""
    if resource == "memory":
        return limits.Budget("activations", amount * _MIB)
    return limits.Budget(resource, amount)


@dataclass(frozen=True)
class Budget:
    """What a slim network may cost, in absolute figures at the training size, one sample.

    Attributes:
        resource: "gflops", "memory" (in MB) or "params" (their number).
        amount: How much of it.
    """

    resource: Resource
    amount: float


@dataclass(frozen=True)
class TrainingCell:
    """A network, data, method, size and seed: what is pruned and trained.

    Attributes:
        config: Everything about network, data, pruning, training and the seed. No pruning method
            means the full network.
        budget: What the slim network is to cost; without one the configuration's sparsity counts.
        data: Which cases there are (see `data_fingerprint`); none for generated ones, of which
            the configuration says all. Where the cases lie makes no difference.
        plan: A cell that leaves a plan in its place, to slim the network by it instead of pruning
            here.
        transfer: Whether that plan may be of a network with other inputs and classes.
    """

    config: Config
    budget: Budget | None = None
    data: str | None = None
    plan: Cell | None = None
    transfer: bool = False

    def __post_init__(self) -> None:
        """Refuses a budget for the full network."""
        if self.budget is not None and self.config.pruning.method is None:
            raise UsageError("the full network costs what it costs: it takes no budget")

    @property
    def method(self) -> str:
        """Of pruning, or "full"."""
        return self.config.pruning.method or "full"

    def to_dict(self) -> dict[str, Any]:
        """As a cell of the store; what has no influence on the result is left out."""
        config = self.config.model_dump(mode="json")
        if not self.config.optimize:
            del config["optimize"]  # as in stores that were begun before one could ask for it
        if self.config.pruning.method is None:
            del config["pruning"]
        else:
            if self.config.pruning.coupling == "paper":
                del config["pruning"]["coupling"]  # likewise
            if self.budget is not None:
                del config["pruning"]["sparsity"]
        cell: dict[str, Any] = {
            "kind": "training",
            "config": config,
            "budget": None if self.budget is None else asdict(self.budget),
            "data": self.data,
        }
        if self.plan is not None:
            cell |= {"plan": dict(self.plan), "transfer": self.transfer}
        return cell

    @classmethod
    def from_dict(cls, cell: Cell) -> TrainingCell:
        """The inverse of `to_dict`."""
        budget = None if cell["budget"] is None else Budget(**cell["budget"])
        return cls(
            parse_config(cell["config"], "cell"),
            budget,
            cell["data"],
            cell.get("plan"),
            cell.get("transfer", False),
        )


def data_fingerprint(config: Config, data: Path | None) -> str | None:
    """Which cases a data set holds for training and validation; none where it is generated."""
    if data is None:
        return None
    splits = open_splits(Job(config, Path(), data=data))
    return sha256(canonical_json([config.data.kind, [list(cases.ids) for cases in splits]]))


@dataclass(frozen=True)
class TrainingCells:
    """Computes training cells in a store; is the `Compute` of it.

    Attributes:
        store: Keeps the cells, and beside them scores and generated data that they share.
        data: The data set's directory; without one the data is generated.
        factory: The user's own network.
        listener: Told how training goes.
    """

    store: Store
    data: Path | None = None
    factory: Factory | None = None
    listener: Listener | None = None

    def __call__(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Prunes to the budget, trains and evaluates; interrupted, it goes on where it was.

        Returns:
            A flat result. Its `outcome` is "trained"; "unreachable", with the nearest network's
            costs, where the method cannot come down to the budget or sparsity; or "diverged".
        """
        wanted = TrainingCell.from_dict(cell)
        data = self.data_directory(wanted.config)
        home = place if wanted.plan is None else self.store.place(wanted.plan)
        plan = stored_plan(home)
        full = build_network(wanted.config.network, self.factory)
        shape = input_shape(wanted.config, data)
        if plan is None and wanted.config.pruning.method is not None:
            chooser = self.chooser(wanted.config, data, full, shape)
            try:
                plan = _planned(chooser, wanted)
            except InfeasibleError as error:
                return _unreachable(wanted, chooser, str(error))
            plan.save(place / "plan.json")
        described = _described(wanted, full, shape, plan)
        job = Job(
            wanted.config,
            place / "run",
            data=data,
            plan=None if plan is None else home / "plan.json",
            transfer=wanted.transfer,
            factory=self.factory,
        )
        clock = CpuClock(place / "cpu.json")
        listeners = [clock] if self.listener is None else [clock, self.listener]
        try:
            with clock:
                record = train(job, resume=True, listener=Listeners(*listeners))
        except Diverged as error:
            return {**described, "outcome": "diverged", "reason": str(error)}
        return {
            **described,
            "outcome": "trained",
            "goal": record["goal"],
            "accuracy": record["metrics"][record["goal"]]["last"],
            "metrics": record["metrics"],
            "best": record["best"],
            "epochs": record["epochs"],
            "seconds": record["seconds"],
            "cpu_seconds": clock.seconds,
            "device": record["device"],
        }

    def chooser(
        self, config: Config, data: Path, full: nn.Module, shape: tuple[int, ...]
    ) -> Chooser:
        """What chooses neurons at any sparsity, by the method of a configuration.

        Args:
            config: Of the cell.
            data: Where the training data lies.
            full: The full network.
            shape: A single training input; costs are counted at this size.
        """
        pruning = config.pruning
        assert pruning.method is not None
        method = find_method(pruning.method)
        graph = build_graph(full, shape)
        return Chooser(
            full,
            graph,
            Choice.make(
                method,
                lam=pruning.lam,
                coupling=pruning.coupling,
                floor=pruning.floor,
                seed=config.seed,
            ),
            self._scores(config, method, data, full, graph) if method.needs_scores else None,
        )

    def _scores(
        self, config: Config, method: Method, data: Path, full: nn.Module, graph: ChannelGraph
    ) -> Scores:
        """Scores the network, or reads the scores that another method left in the store."""
        wanted = {
            "kind": "scores",
            "network": config.network.model_dump(mode="json"),
            "statistics": sorted(statistic.name for statistic in method.statistics),
            "seed": config.seed,
            "data": None,
        }
        if method.needs_data:
            size = config.pruning.size or config.data.size
            wanted["data"] = {
                "cases": data_fingerprint(config, self.data),
                "settings": config.data.model_dump(mode="json"),
                "task": config.task,
                "size": size,
                "batches": config.pruning.batches,
            }

        def compute(cell: Cell, place: Path) -> dict[str, Any]:
            began = time.process_time()
            scores = _scored(config, method, data, full, graph)
            scores.save(place / "scores.safetensors")
            return {"batches": scores.batches, "cpu_seconds": time.process_time() - began}

        self.store.require(wanted, compute)
        return Scores.load(self.store.place(wanted) / "scores.safetensors")

    def data_directory(self, config: Config) -> Path:
        """Where the data lies: what was given, or a set in the store, generated once for all."""
        if self.data is not None:
            return self.data
        wanted = {
            "kind": "generated data",
            "data": config.data.kind,
            "cases": config.data.cases,
            "size": config.data.generated_size,
            "classes": config.data.classes,
        }

        def compute(cell: Cell, place: Path) -> dict[str, Any]:
            attempt = 0  # what a killed process left half-written is not built upon
            while (place / f"data-{attempt}").exists():
                attempt += 1
            synthesise(
                config.data.kind,
                place / f"data-{attempt}",
                cases=config.data.cases,
                size=config.data.generated_size,
                seed=0,
                classes=config.data.classes,
            )
            return {"directory": f"data-{attempt}"}

        result = self.store.require(wanted, compute)
        return self.store.place(wanted) / str(result["directory"])


def input_shape(config: Config, data: Path) -> tuple[int, ...]:
    """A single training input; costs are counted at this size."""
    cases = open_split(Job(config, Path(), data=data), "train", config.data.size)
    return (1, *cases[0]["x"].shape)


def _scored(
    config: Config, method: Method, data: Path, full: nn.Module, graph: ChannelGraph
) -> Scores:
    """Scores a network for a method, one sample at a time, on a GPU where there is one."""
    if not method.needs_data:
        return score(full, graph, None, no_forward, methods=[method], seed=config.seed)
    size = config.pruning.size or config.data.size
    cases = open_split(Job(config, Path(), data=data), "train", size)
    task = find_dataset(config.data.kind).make_task(config.data.size)
    scores = score(
        full.to("cuda" if torch.cuda.is_available() else "cpu"),
        graph,
        Loader(cases, 1, training=True, workers=config.data.workers),
        lambda model, batch: task.loss(model(batch["x"]), batch),
        methods=[method],
        batches=config.pruning.batches,
        seed=config.seed,
    )
    full.to("cpu")
    return scores


def _planned(chooser: Chooser, wanted: TrainingCell) -> Plan:
    """What is kept: at the sparsity that is given, or as near to the budget as one can come.

    Raises:
        InfeasibleError: The method cannot be brought there.
    """
    if wanted.budget is None:
        return make_plan(chooser, wanted.config.pruning.sparsity)
    # Methods are compared, so each keeps to its own ranking, also where a budget is missed by it.
    sparsity, alive = meet_budget(
        chooser, as_limit(wanted.budget.resource, wanted.budget.amount), window=DELTA
    )
    return make_plan(chooser, sparsity, alive=alive, budget=asdict(wanted.budget))


def _described(
    wanted: TrainingCell, full: nn.Module, shape: tuple[int, ...], plan: Plan | None
) -> dict[str, Any]:
    """What is known of a network before it is trained."""
    graph = build_graph(full, shape)
    full_costs = count(full, graph)
    slim, costs = full, full_costs
    if plan is not None:
        alive = plan.alive(graph, transfer=wanted.transfer)
        slim = plan.apply(full, init="keep", transfer=wanted.transfer)
        costs = count(full, graph, alive)
    batch = (wanted.config.batch, *shape[1:])
    memory = predict_training_memory(slim, batch, optimizer=_optimizer(wanted.config.optimizer))
    layers = {} if plan is None else plan.layers
    return {
        **_costs(wanted, costs),
        "sparsity": None if plan is None else plan.settings["sparsity"],
        "step_mb": memory.peak / _MIB,
        "one_neuron": [n for n, each in layers.items() if len(each.kept) == 1 < each.neurons],
        "full": _totals(full_costs),
    }


def _unreachable(wanted: TrainingCell, chooser: Chooser, reason: str) -> dict[str, Any]:
    """The nearest that a method comes to what it cannot reach."""
    sparsity = chooser.max_sparsity()
    nearest = count(chooser.model, chooser.graph, chooser.choose(sparsity))
    return {
        "outcome": "unreachable",
        "reason": reason,
        **_costs(wanted, nearest),
        "sparsity": sparsity,
        "full": _totals(count(chooser.model, chooser.graph)),
    }


def _costs(wanted: TrainingCell, costs: Costs) -> dict[str, Any]:
    budget = wanted.budget
    deviation = None if budget is None else COSTS[budget.resource](costs) / budget.amount - 1
    return {**_totals(costs), "deviation": deviation}


def _totals(costs: Costs) -> dict[str, float]:
    return {**costs.totals(), "parameters": costs.parameters}


def _optimizer(config: OptimizerConfig) -> Optimizer:
    """What the optimizer keeps beside the parameters."""
    if config.name == "sgd":
        return "momentum" if config.momentum else "sgd"
    return "amsgrad" if config.amsgrad else "adam"
