"""Trainings as lines of CSV files, a file for each task and budget.

Stores come and go with machines; these lines stay. Tables are made of them alone, and what is
there is not trained again.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranp.files import write_text
from ranp.report.table import csv_text

COLUMNS = (
    *("method", "seed", "outcome", "accuracy", "loss", "dice_1", "dice_2"),
    *("gflops", "parameters", "step_mb", "cpu_seconds"),
    *("winner", "race_cost", "race_cpu_seconds", "standing"),
)
"""What is kept of a training; the last ones say how a race chose the network."""

LOST = 0.3
"""A structure with a smaller Dice was not found."""


@dataclass(frozen=True)
class Trained:
    """A line.

    Attributes:
        method: Name of the method.
        seed: Seed of scores, weights and batches.
        values: The other columns, as text; empty where there is nothing to say.
    """

    method: str
    seed: int
    values: Mapping[str, str]

    @property
    def accuracy(self) -> float | None:
        """The result in per cent; None where the method cannot reach the budget."""
        return 100 * float(self.values["accuracy"]) if self.values["accuracy"] else None

    @property
    def lost_a_class(self) -> bool:
        """Whether a structure was not found."""
        found = (self.values[name] for name in ("dice_1", "dice_2"))
        return any(float(value) < LOST for value in found if value)


@dataclass(frozen=True)
class Ledger:
    """The lines of all tasks and budgets, below one directory."""

    directory: Path

    def lines(self, task: str, budget: str) -> list[Trained]:
        """Return the lines of a task at a budget such as "flops=3%"."""
        file = self._file(task, budget)
        if not file.exists():
            return []
        with file.open(newline="") as text:
            rows = list(csv.DictReader(text))
        return [Trained(row.pop("method"), int(row.pop("seed")), row) for row in rows]

    def by_seed(self, task: str, budget: str, method: str) -> dict[int, Trained]:
        """Return the lines of one method."""
        return {x.seed: x for x in self.lines(task, budget) if x.method == method}

    def add(
        self, task: str, budget: str, method: str, seed: int, result: Mapping[str, Any]
    ) -> None:
        """Add what `LoopRuns.result` returns of a training, unless its line is there."""
        lines = self.lines(task, budget)
        if any((line.method, line.seed) == (method, seed) for line in lines):
            return
        metrics = {name: each["last"] for name, each in result.get("metrics", {}).items()}
        values = {**result, **metrics, **_of_race(result.get("race"))}
        self._write(task, budget, [*lines, Trained(method, seed, values)])

    def _write(self, task: str, budget: str, lines: Iterable[Trained]) -> None:
        rows = (
            {name: ({"method": x.method, "seed": x.seed} | dict(x.values)).get(name, "")
             for name in COLUMNS}
            for x in sorted(lines, key=lambda x: (x.method, x.seed))
        )  # fmt: skip
        write_text(self._file(task, budget), csv_text(rows))

    def _file(self, task: str, budget: str) -> Path:
        return self.directory / f"{task}-{budget.replace('=', '-').rstrip('%')}.csv"


def _of_race(race: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns that say how a race went."""
    if race is None:
        return {}
    rungs = (f"{rung['check_ins']}: {' > '.join(rung['standing'])}" for rung in race["rungs"])
    return {
        "winner": race["winner"],
        "race_cost": race["spent"],
        "race_cpu_seconds": race["cpu_seconds"],
        "standing": "; ".join(rungs),
    }
