"""The cells of the paper's networks at one scale, and what computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranp.errors import UsageError
from ranp.experiments.cells import TrainingCell, TrainingCells, data_fingerprint
from ranp.experiments.jobs import Jobs, complete_cells
from ranp.experiments.matching import distinct
from ranp.experiments.paper import printed
from ranp.experiments.reproduce.choices import STATISTICS, Amount, Choices
from ranp.experiments.reproduce.scales import FOUR, Pair, Scale, input_shape
from ranp.pruning import METHODS
from ranp.pruning.selection import RANDOM
from ranp.schemas import read_epochs
from ranp.training.config import Config
from ranp.trials.store import Cell, OnCell, Store

_SNIP_SPARSITY = 0.9  # of weights, where the paper's own does not apply
_STAGES = ("scores of samples", "choice", "importance", "transfer", "training")
_PARTS = ("scores", "plan")


@dataclass(frozen=True)
class Study:
    """The cells of a scale, in a store.

    Cells are asked for by pair (network and data set), seed (of weights, data and random selection)
    and weights (initialization of the network that is scored: "fresh", Glorot's, or "orthogonal").

    Attributes:
        store: Keeps the cells.
        scale: Name of the scale: "paper", "small" or "smoke".
        seeds: Number of seeds, which count from 0.
        resources_only: Whether nothing is trained.
        data: Directories of data sets by name; empty to generate data.
        jobs: Processes that compute cells.
    """

    store: Store
    scale: Scale
    seeds: int = 1
    resources_only: bool = False
    data: Mapping[str, Path] = field(default_factory=dict)
    jobs: Jobs = 1
    _fingerprints: dict[str, str | None] = field(default_factory=dict, compare=False)

    @property
    def each_seed(self) -> range:
        """The seeds."""
        return range(self.seeds)

    @property
    def at_paper_size(self) -> bool:
        """Whether figures can be compared with the paper's one by one."""
        return self.scale == "paper"

    def pairs(self, wanted: Iterable[Pair]) -> list[Pair]:
        """Return the pairs for which there is data.

        Raises:
            UsageError: There is data for none of them.
        """
        wanted = list(wanted)
        found = [pair for pair in wanted if not self.data or pair.dataset in self.data]
        if not found:
            names = " or ".join(dict.fromkeys(pair.dataset for pair in wanted))
            raise UsageError(
                f"--data holds none of what this needs: put the data set in its directory {names}"
            )
        return found

    def require_all(self, wanted: Iterable[Pair]) -> None:
        """Check that there is data for every pair.

        Raises:
            UsageError: Names the data set that is missing.
        """
        for pair in wanted:
            if self.data and pair.dataset not in self.data:
                raise UsageError(
                    f"this needs {pair.dataset} too: --data has no directory '{pair.dataset}'"
                )

    def trains(self, pair: Pair) -> bool:
        """Return whether networks of a pair are trained at this scale."""
        return not self.resources_only and pair.settings[self.scale].trains

    def config(self, pair: Pair, **changes: Any) -> Config:
        """Return the configuration of a pair at this scale."""
        return pair.config(self.scale, **changes)

    def sparsity(self, pair: Pair, method: str = "ranp-f") -> float:
        """Return the sparsity of a table: the paper's, or that of the scaled recipe."""
        paper = printed()["data_dependent"].get(pair.name)
        if METHODS[method].selection.of_weights:
            return float(paper["snip_param_sparsity"]) if self.at_paper_size else _SNIP_SPARSITY
        return float(self.config(pair).pruning.sparsity)

    def scores(self, pair: Pair, seed: int, weights: str = "fresh") -> dict[str, Any]:
        """Return the cell of a network's scores."""
        config, cases = self.config(pair), self._cases(pair)
        options = {"options": config.data.options} if config.data.options else {}
        all_methods = pair in FOUR and weights == "fresh"
        generated = pair.settings[self.scale].samples
        return {
            "kind": "scores of samples",
            "network": config.network.model_dump(mode="json"),
            "task": config.task,
            "data": config.data.kind,
            **options,
            "size": config.scoring_size,
            "cases": cases,
            "fold": None if cases is None else config.data.fold,
            "samples": generated if cases is None else config.pruning.batches,
            "weights": weights,
            "statistics": list(STATISTICS) if all_methods else [],
            "seed": seed,
        }

    def full(self, pair: Pair, batch: int | None = None) -> dict[str, Any]:
        """Return the cell of the full network's resources."""
        return self.choice(pair, "full", Amount(), 0, batch=batch)

    def choice(
        self,
        pair: Pair,
        method: str,
        amount: Amount,
        seed: int,
        *,
        weights: str = "fresh",
        batch: int | None = None,
    ) -> dict[str, Any]:
        """Return the cell of a network pruned by a method, or of the "full" one.

        With a batch size, the memory of a training step is predicted too.
        """
        row = METHODS.get(method)
        needs_scores = (row is not None and row.needs_scores) or amount.ranp_f is not None
        return {
            "kind": "choice",
            **_traced(self.config(pair)),
            "scores": self.scores(pair, seed, weights) if needs_scores else None,
            "method": method,
            "lam": self._lam(pair, method),
            "amount": amount.to_dict(),
            "seed": seed if row is not None and row.selection is RANDOM else None,
            "batch": batch,
        }

    def importance(self, pair: Pair, method: str) -> dict[str, Any]:
        """Return the cell of every neuron's importance, with seed 0."""
        return {
            "kind": "importance",
            **_traced(self.config(pair)),
            "scores": self.scores(pair, seed=0),
            "method": method,
            "lam": self._lam(pair, method),
        }

    def transfer(self, pair: Pair, plan: Cell, **changes: Any) -> dict[str, Any]:
        """Return the cell of the costs of a choice's plan in the network of another pair.

        Changes to the recipe are those of `Pair.config`.
        """
        return {"kind": "transfer", **_traced(self.config(pair, **changes)), "plan": dict(plan)}

    def training(
        self, pair: Pair, plan: Cell | None, seed: int, *, transfer: bool = False, **changes: Any
    ) -> dict[str, Any]:
        """Return the cell of a trained network, slimmed by a choice's plan if there is one.

        With `transfer`, the choice was made for another pair. Changes to the recipe are those of
        `Pair.config`.
        """
        config = self.config(pair, seed=seed, **changes)
        cases = self._cases(pair)
        return TrainingCell(config, data=cases, plan=plan, transfer=transfer).to_dict()

    def _lam(self, pair: Pair, method: str) -> float | None:
        """Return lambda of Eq. 10 if the method reweights."""
        row = METHODS.get(method)
        return self.config(pair).pruning.lam if row is not None and row.resource else None

    def _cases(self, pair: Pair) -> str | None:
        """Return which cases there are; read once, since all of a data set may be looked at."""
        if pair.dataset not in self._fingerprints:
            where = self.data.get(pair.dataset)
            self._fingerprints[pair.dataset] = data_fingerprint(self.config(pair), where)
        return self._fingerprints[pair.dataset]

    def result(self, cell: Cell) -> dict[str, Any]:
        """Return the result of a complete cell."""
        result = self.store.result(cell)
        assert result is not None, f"cell {self.store.place(cell).name} is not complete"
        return result

    def versions(self, cells: Iterable[Cell]) -> dict[str, str]:
        """Return the software that computed complete cells; several versions where they differ."""
        found: dict[str, dict[str, None]] = {}
        for cell in cells:
            record = self.store.record(cell)
            assert record is not None, f"cell {self.store.place(cell).name} is not complete"
            for name, version in record["versions"].items():
                found.setdefault(name, {})[version] = None
        return {name: ", ".join(sorted(versions)) for name, versions in found.items()}

    def history(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the epochs of a trained network."""
        return read_epochs(self.store.place(cell) / "run")

    def complete(self, cells: Sequence[Cell], on_cell: OnCell) -> int:
        """Compute what is missing of cells and their parts (see `complete_cells`)."""
        return complete_cells(self.store, with_parts(cells), self.compute, on_cell, self.jobs)

    def compute(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Compute a cell in its directory, and what it is made of if that is missing."""
        for part in _parts(cell):
            self.store.require(part, self.compute)
        if cell["kind"] == "training":
            data = self.data.get(cell["config"]["data"]["kind"])
            return TrainingCells(self.store, data)(cell, place)
        return Choices(self.store, self.data).compute(cell, place)


def _traced(config: Config) -> dict[str, Any]:
    """Return the network of a cell, and the input at which it is traced and counted."""
    network = config.network.model_dump(mode="json")
    return {"network": network, "shape": list(input_shape(config))}


def _parts(cell: Cell) -> list[Cell]:
    return [cell[name] for name in _PARTS if cell.get(name) is not None]


def with_parts(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells and those that they are made of, each once, parts first."""

    def whole(cell: Cell) -> Iterator[Cell]:
        for part in _parts(cell):
            yield from whole(part)
        yield cell

    found = distinct(each for cell in cells for each in whole(cell))
    return sorted(found, key=lambda cell: _STAGES.index(cell["kind"]))
