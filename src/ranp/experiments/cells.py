"""Training cells: one network pruned by one method to one size and trained from one seed.

Any table or comparison is made of them. Two experiments that want the same cell share it, and all
methods of a seed share its scores and its generated data, which are cells of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ranp import pipeline
from ranp.datasets import Dataset, synthesise
from ranp.datasets.cases import Cases
from ranp.datasets.loader import Loader
from ranp.display import MIB
from ranp.errors import InfeasibleError, UsageError
from ranp.files import json_sha256, write_text
from ranp.peeking import Batches
from ranp.pipeline import Scoring, Traced
from ranp.pruning import Choice, Chooser, Method, Scores
from ranp.pruning.search import meet_budget
from ranp.resources import predict_training_memory
from ranp.resources.budgets import Budget
from ranp.slimming import Plan
from ranp.training.config import Config, parse_config
from ranp.training.job import Job
from ranp.training.listeners import Listener
from ranp.training.loop import Diverged
from ranp.training.networks import Factory, build_network
from ranp.training.optim import optimizer_state
from ranp.training.preparation import make_choice, open_split, open_splits, stored_plan
from ranp.training.run import train
from ranp.trials.allocating import describe_nearest, describe_network, require_scores
from ranp.trials.store import Cell, Store

FULL = "full"
"""Name of the unpruned network among the methods."""

_STORED = {"flops": ("gflops", 1e9), "activations": ("memory", float(MIB))}
"""Names and units of resources in cells, as in the first stores; others are stored as they are."""


def store_budget(budget: Budget) -> dict[str, Any]:
    """Return an absolute budget as cells hold it."""
    name, unit = _STORED.get(budget.resource, (budget.resource, 1.0))
    return {"resource": name, "amount": budget.limit / unit}


def load_budget(stored: Mapping[str, Any]) -> Budget:
    """Return the budget of a cell."""
    resource, amount = stored["resource"], stored["amount"]
    if resource == "memory":
        return Budget("activations", amount * MIB)
    return Budget(resource, amount)


@dataclass(frozen=True)
class TrainingCell:
    """A network, data, method, size and seed to prune and train.

    Attributes:
        config: Network, data, pruning, training and seed. No pruning method means the full network.
        budget: What the slim network is to cost, in absolute figures for one sample at the
            training size; without one the sparsity of the configuration counts.
        data: Fingerprint of the cases (see `data_fingerprint`); None for generated ones, which the
            configuration describes. Where the cases lie makes no difference.
        plan: Cell that leaves a plan in its directory, to slim the network by instead of pruning.
        transfer: Whether that plan may be of a network with other inputs and classes.
    """

    config: Config
    budget: Budget | None = None
    data: str | None = None
    plan: Cell | None = None
    transfer: bool = False

    def __post_init__(self) -> None:
        """Refuse a budget for the full network."""
        if self.budget is not None and self.config.pruning.method is None:
            raise UsageError("the full network takes no budget; name a pruning method")

    @property
    def method(self) -> str:
        """Name of the pruning method, or `FULL`."""
        return self.config.pruning.method or FULL

    def to_dict(self) -> dict[str, Any]:
        """Return the cell of the store; what has no influence on the result is left out."""
        config = self.config.model_dump(mode="json")
        if not self.config.optimize:
            del config["optimize"]  # as in stores of versions without it
        if self.config.pruning.method is None:
            del config["pruning"]
        else:
            if self.config.pruning.coupling == "paper":
                del config["pruning"]["coupling"]  # as in the first stores
            if self.budget is not None:
                del config["pruning"]["sparsity"]
        cell: dict[str, Any] = {
            "kind": "training",
            "config": config,
            "budget": None if self.budget is None else store_budget(self.budget),
            "data": self.data,
        }
        if self.plan is not None:
            cell |= {"plan": dict(self.plan), "transfer": self.transfer}
        return cell

    @classmethod
    def from_dict(cls, cell: Cell) -> TrainingCell:
        """Return the inverse of `to_dict`."""
        return cls(
            parse_config(cell["config"], "cell"),
            None if cell["budget"] is None else load_budget(cell["budget"]),
            cell["data"],
            cell.get("plan"),
            cell.get("transfer", False),
        )


def data_fingerprint(config: Config, data: Path | None) -> str | None:
    """Return a hash of the cases for training and validation; None if they are generated."""
    if data is None:
        return None
    splits = open_splits(Job(config, Path(), data=data))
    return json_sha256([config.data.kind, [list(cases.ids) for cases in splits]])


def score_cases(
    traced: Traced,
    cases: Cases,
    methods: Iterable[Method],
    *,
    dataset: Dataset,
    window: int,
    workers: int = 0,
    **scoring: Any,
) -> Scores:
    """Score a network with training cases, one by one, on a GPU if there is one.

    The loss is the data set's for crops of edge `window`; `scoring` are further options of
    `ranp.pipeline.Scoring`.
    """
    task = dataset.make_task(window)
    model = traced.model.to("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(cases, 1, training=True, workers=workers)
    scores = pipeline.score(
        Traced(model, traced.graph, Batches(loader)),
        methods,
        Scoring(task.scoring_forward, **scoring),
    )
    model.to("cpu")
    return scores


class CpuClock(Listener):
    """Adds up the CPU time of a run over its interruptions, to the last whole epoch.

    Other processes of the machine do not count.

    Attributes:
        seconds: CPU time so far.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds = float(json.loads(path.read_bytes())) if path.exists() else 0.0
        self._began = time.process_time() - self.seconds

    def on_epoch_end(self, line: Mapping[str, Any]) -> None:
        """Store the time: what a kill loses is computed again, and counted then."""
        self.stop()

    def stop(self) -> None:
        """Store the time so far."""
        self.seconds = time.process_time() - self._began
        write_text(self._path, json.dumps(self.seconds))


@dataclass(frozen=True)
class TrainingCells:
    """Computes training cells in a store; is the `Compute` of it.

    Scores and generated data that cells share lie beside them. Without a directory of `data` it is
    generated; `factory` builds the user's own network.
    """

    store: Store
    data: Path | None = None
    factory: Factory | None = None

    def __call__(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Prune to the budget, train and evaluate; what was interrupted is resumed.

        Returns:
            A flat result. Its `outcome` is "trained"; "unreachable", with the nearest network's
            costs, if the method cannot reach the budget or sparsity; or "diverged".
        """
        wanted = TrainingCell.from_dict(cell)
        traced = self.trace(wanted.config)
        home = place if wanted.plan is None else self.store.complete_place(wanted.plan)
        plan = stored_plan(home)
        if plan is not None and wanted.plan is None:
            # Those of earlier versions do not say where they belong.
            owner = plan.settings.get("cell", place.name)
            self.store.check_owner(cell, owner, place / "plan.json")
        if plan is None and wanted.config.pruning.method is not None:
            chooser = self.chooser(wanted.config, traced)
            try:
                plan = _make_plan(chooser, wanted, place.name)
            except InfeasibleError as error:
                nearest = describe_nearest(chooser, wanted.budget)
                return {"outcome": "unreachable", "reason": str(error), **nearest}
            plan.save(place / "plan.json")
        described = _describe(wanted, traced, plan)
        job = Job(
            wanted.config,
            place / "run",
            data=self.data_directory(wanted.config),
            plan=None if plan is None else home / "plan.json",
            transfer=wanted.transfer,
            factory=self.factory,
        )
        clock = CpuClock(place / "cpu.json")
        try:
            record = train(job, resume=True, listener=clock)
        except Diverged as error:
            return {**described, "outcome": "diverged", "reason": str(error)}
        finally:
            clock.stop()
        return {
            **described,
            "outcome": "trained",
            "accuracy": record["metrics"][record["goal"]]["last"],
            **{key: record[key] for key in ("goal", "metrics", "best", "epochs", "seconds")},
            "cpu_seconds": clock.seconds,
            "device": record["device"],
        }

    def trace(self, config: Config) -> Traced:
        """Return the full network, traced with a single training input."""
        cases = self._cases(config, config.data.size)
        full = build_network(config.network, self.factory)
        return pipeline.trace(full, example_input=(1, *cases[0]["x"].shape))

    def chooser(self, config: Config, traced: Traced) -> Chooser:
        """Return the chooser of a configuration's pruning method."""
        choice = make_choice(config)
        needs_scores = choice.method.needs_scores
        scores = self._scores(config, choice.method, traced) if needs_scores else None
        return Chooser(traced.model, traced.graph, choice, scores)

    def _scores(self, config: Config, method: Method, traced: Traced) -> Scores:
        """Score the network, or load the scores that another method left in the store."""
        wanted = {
            "kind": "scores",
            "network": config.network.model_dump(mode="json"),
            "statistics": sorted(statistic.name for statistic in method.statistics),
            "seed": config.seed,
            "data": None,
        }
        if method.needs_data:
            wanted["data"] = {
                "cases": data_fingerprint(config, self.data),
                "settings": config.data.model_dump(mode="json"),
                "task": config.task,
                "size": config.scoring_size,
                "batches": config.pruning.batches,
            }

        def score() -> Scores:
            if not method.needs_data:
                return pipeline.score(traced, [method], Scoring(seed=config.seed))
            return score_cases(
                traced,
                self._cases(config, config.scoring_size),
                [method],
                dataset=config.data.dataset,
                window=config.data.size,
                workers=config.data.workers,
                batches=config.pruning.batches,
                seed=config.seed,
            )

        return require_scores(self.store, wanted, score)

    def _cases(self, config: Config, size: int) -> Cases:
        job = Job(config, Path(), data=self.data_directory(config))
        return open_split(job, "train", size)

    def data_directory(self, config: Config) -> Path:
        """Return the directory of the data: the given one, or a set that is generated once."""
        if self.data is not None:
            return self.data
        settings: dict[str, Any] = {
            "cases": config.data.cases,
            "size": config.data.generated_size,
            "classes": config.data.classes,
        }
        wanted = {"kind": "generated data", "data": config.data.kind, **settings}

        def compute(cell: Cell, place: Path) -> dict[str, Any]:
            attempt = 0  # what a killed process left half-written is not built upon
            while (place / f"data-{attempt}").exists():
                attempt += 1
            synthesise(config.data.kind, place / f"data-{attempt}", seed=0, **settings)
            return {"directory": f"data-{attempt}"}

        result = self.store.require(wanted, compute)
        return self.store.place(wanted) / str(result["directory"])


def _make_plan(chooser: Chooser, wanted: TrainingCell, cell: str) -> Plan:
    """Return the plan at the given sparsity, or as near to the budget as the method comes.

    Raises:
        InfeasibleError: The method cannot be brought there.
    """
    if wanted.budget is None:
        return pipeline.make_plan(chooser, wanted.config.pruning.sparsity, cell=cell)
    sparsity, alive = meet_budget(chooser, [wanted.budget])
    budget = store_budget(wanted.budget)
    return pipeline.make_plan(chooser, sparsity, alive=alive, budget=budget, cell=cell)


def _describe(wanted: TrainingCell, traced: Traced, plan: Plan | None) -> dict[str, Any]:
    """Return what is known of a network before it is trained."""
    slim, graph = traced.model, traced.graph
    alive, sparsity = graph.all_alive(), None
    if plan is not None:
        alive, sparsity = plan.alive(graph, transfer=wanted.transfer), plan.settings["sparsity"]
        slim = plan.apply(slim, init="keep", transfer=wanted.transfer, graph=graph)
    (shape,) = graph.inputs.shapes
    batch = (wanted.config.batch, *shape[1:])
    optimizer = optimizer_state(wanted.config.optimizer)
    memory = predict_training_memory(slim, batch, optimizer=optimizer)
    chooser = traced.chooser(Choice.make("thin"))
    described = describe_network(chooser, alive, sparsity, wanted.budget)
    return {**described, "step_mb": memory.peak / MIB}
