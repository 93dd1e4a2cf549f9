"""One run of `ranp reproduce`: which cells there are at its scale, and what computes them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranp.errors import UsageError
from ranp.experiments.cells import TrainingCell, TrainingCells, data_fingerprint
from ranp.experiments.paper import printed
from ranp.experiments.reproduce.choices import (
    STATISTICS,
    Amount,
    Choices,
    choice_cell,
    importance_cell,
    scores_cell,
)
from ranp.experiments.reproduce.scales import FOUR, Pair, Scale, input_shape
from ranp.experiments.store import Cell, Store
from ranp.training.config import Config
from ranp.training.listeners import Listener

_SNIP_SPARSITY = 0.9  # of weights, where the paper's own does not apply
_POLL_SECONDS = 1.0
_STAGES = ("scores of samples", "choice", "importance", "transfer", "training")


@dataclass(frozen=True)
class Study:
    """The cells of a scale, in a store.

    Attributes:
        store: Keeps them.
        scale: "paper", "small" or "smoke".
        seeds: How many; they count from 0.
        resources_only: Whether nothing is trained.
        data: Where data sets lie, by kind; empty where data is generated.
        listener: Told how training goes.
    """

    store: Store
    scale: Scale
    seeds: int = 1
    resources_only: bool = False
    data: Mapping[str, Path] = field(default_factory=dict)
    listener: Listener | None = None
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
        """Those of the pairs for which there is data.

        Raises:
            UsageError: There is data for none of them.
        """
        wanted = list(wanted)
        found = [pair for pair in wanted if not self.data or pair.dataset in self.data]
        if not found:
            kinds = " or ".join(dict.fromkeys(pair.dataset for pair in wanted))
            raise UsageError(
                f"--data holds none of what this needs: put the data set in its directory {kinds}"
            )
        return found

    def require_all(self, wanted: Iterable[Pair]) -> None:
        """Makes sure that there is data for every one of the pairs.

        Raises:
            UsageError: Names the data set that is missing.
        """
        for pair in wanted:
            if self.data and pair.dataset not in self.data:
                raise UsageError(
                    f"this needs {pair.dataset} too: --data has no directory '{pair.dataset}'"
                )

    def trains(self, pair: Pair) -> bool:
        """Whether networks of a pair are trained at this scale."""
        return not self.resources_only and pair.settings[self.scale].trains

    def config(self, pair: Pair, **changes: Any) -> Config:
        """The configuration of a pair at this scale."""
        return pair.config(self.scale, **changes)

    def sparsity(self, pair: Pair, method: str = "ranp-f") -> float:
        """How much a table prunes: as in the paper, or as the scaled recipe says."""
        paper = printed()["data_dependent"].get(pair.name)
        if method == "snip":
            return float(paper["snip_param_sparsity"]) if self.at_paper_size else _SNIP_SPARSITY
        return float(self.config(pair).pruning.sparsity)

    def scores(self, pair: Pair, seed: int, weights: str = "fresh") -> dict[str, Any]:
        """The cell of a network's scores."""
        all_methods = pair in FOUR and weights == "fresh"
        return scores_cell(
            self.config(pair),
            samples=pair.settings[self.scale].samples,
            cases=self._cases(pair),
            weights=weights,
            statistics=STATISTICS if all_methods else (),
            seed=seed,
        )

    def full(self, pair: Pair, batch: int | None = None) -> dict[str, Any]:
        """The cell of the full network's resources."""
        config = self.config(pair)
        shape = input_shape(config)
        return choice_cell(config, shape, None, "full", Amount(), batch=batch)

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
        """The cell of a pruned network."""
        config = self.config(pair)
        needs_scores = method not in ("random", "layerwise") or amount.ranp_f is not None
        scores = self.scores(pair, seed, weights) if needs_scores else None
        shape = input_shape(config)
        return choice_cell(config, shape, scores, method, amount, seed=seed, batch=batch)

    def importance(self, pair: Pair, method: str, seed: int = 0) -> dict[str, Any]:
        """The cell of every neuron's importance."""
        config = self.config(pair)
        return importance_cell(config, input_shape(config), self.scores(pair, seed), method)

    def training(
        self,
        pair: Pair,
        plan: Cell | None,
        seed: int,
        *,
        transfer: bool = False,
        **changes: Any,
    ) -> dict[str, Any]:
        """The cell of a trained network.

        Args:
            pair: What is trained on what.
            plan: The cell of its choice of neurons; none for the full network.
            seed: Of the run.
            transfer: Whether the choice was made for another data set.
            changes: Of the recipe, as for `Pair.config`.
        """
        config = self.config(pair, seed=seed, **changes)
        cases = self._cases(pair)
        return TrainingCell(config, data=cases, plan=plan, transfer=transfer).to_dict()

    def _cases(self, pair: Pair) -> str | None:
        """Which cases there are; read once, since all of a data set may have to be looked at."""
        if pair.dataset not in self._fingerprints:
            where = self.data.get(pair.dataset)
            self._fingerprints[pair.dataset] = data_fingerprint(self.config(pair), where)
        return self._fingerprints[pair.dataset]

    def result(self, cell: Cell) -> dict[str, Any]:
        """What a cell came to, which is complete."""
        result = self.store.result(cell)
        assert result is not None, f"cell {self.store.place(cell).name} is not complete"
        return result

    def versions(self, cells: Iterable[Cell]) -> dict[str, str]:
        """The software that computed complete cells; several versions where they differ."""
        found: dict[str, dict[str, None]] = {}
        for cell in cells:
            record = self.store.record(cell)
            assert record is not None, f"cell {self.store.place(cell).name} is not complete"
            for name, version in record["versions"].items():
                found.setdefault(name, {})[version] = None
        return {name: ", ".join(sorted(versions)) for name, versions in found.items()}

    def history(self, cell: Cell) -> list[dict[str, Any]]:
        """Epoch by epoch, how a trained network came about."""
        lines = (self.store.place(cell) / "run" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def complete(self, cells: Sequence[Cell], on_cell: Callable[[Cell, int, int], None]) -> int:
        """Computes what is missing of cells and of all that they are made of.

        Several processes may do so with the same store: each takes what no other is at, and all
        of them end when everything is there.

        Args:
            cells: What is wanted.
            on_cell: Told of each cell before it is computed, how many are complete, and of how
                many.

        Returns:
            How many cells were computed here.
        """
        wanted = with_parts(cells)
        computed = 0
        while True:
            computed += self.store.complete(
                wanted, self._compute, lambda cell, done: on_cell(cell, done, len(wanted))
            )
            if not self.store.missing(wanted):
                return computed
            time.sleep(_POLL_SECONDS)  # another process is at the rest

    def _compute(self, cell: Cell, place: Path) -> dict[str, Any]:
        choices = Choices(self.store, self.data)
        if cell["kind"] == "scores of samples":
            return choices.score(cell, place)
        if cell["kind"] == "importance":
            return choices.weigh(cell, place)
        if cell["kind"] == "choice":
            return choices.choose(cell, place)
        if cell["kind"] == "transfer":
            return choices.transfer(cell, place)
        data = self.data.get(cell["config"]["data"]["kind"])
        return TrainingCells(self.store, data, listener=self.listener)(cell, place)


def with_parts(cells: Sequence[Cell]) -> list[Cell]:
    """The cells and those that they are made of, each once, parts first."""
    found: dict[str, Cell] = {}

    def add(cell: Cell) -> None:
        for part in (cell.get("scores"), cell.get("plan")):
            if part is not None:
                add(part)
        found.setdefault(repr(cell), cell)

    for cell in cells:
        add(cell)
    return sorted(found.values(), key=lambda cell: _STAGES.index(cell["kind"]))
