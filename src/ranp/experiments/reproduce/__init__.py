"""The paper's tables and figures: one module for each, named as the command names it.

A module has two functions: `cells(study)` says what must be computed, and `show(study)` makes the
table or picture of it. Importing this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranp.errors import UsageError, suggest

if TYPE_CHECKING:
    from ranp.experiments.reproduce.rows import Outcome
    from ranp.experiments.reproduce.study import Study
    from ranp.experiments.store import Cell


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: On the command line.
        paper: What the paper calls it.
        about: One line for people.
        trains: Whether the paper's has figures of trained networks.
    """

    name: str
    paper: str
    about: str
    trains: bool = True

    def module(self) -> Any:
        """The module of it; imports torch."""
        import importlib

        return importlib.import_module(f"{__name__}.{self.name.replace('-', '_')}")


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("table-vanilla", "Table 1", "MPMG-sum and MNMG-sum at their max sparsity"),
        Experiment("table-vanilla-full", "Table 6", "all six measures at their max sparsity"),
        Experiment("table-capability", "Table 2", "eight methods on four networks"),
        Experiment("table-similar-resource", "Table 3", "baselines at RANP-f's FLOPs or memory"),
        Experiment("table-initialisation", "Table 7", "orthogonal against Glorot", trains=False),
        Experiment("table-transfer", "Table 4", "pruned on one data set, trained on the other"),
        Experiment("table-single-gpu", "Table 5", "23 layers on a single GPU"),
        Experiment("fig-overview", "Figure 1", "all methods: accuracy against resources"),
        Experiment("fig-importance", "Figures 3, 10", "neuron importance per layer", trains=False),
        Experiment("fig-retained", "Figures 3, 11", "neurons kept in every layer", trains=False),
        Experiment("fig-sparsity", "Figure 4", "resources and accuracy against sparsity"),
        Experiment("fig-convergence", "Figure 5", "loss and accuracy against epochs and time"),
        Experiment("fig-mnmg", "Figure 9", "MNMG-sum beside MPMG-sum", trains=False),
    )
}


def find_experiment(name: str) -> Experiment:
    """The table or figure of a name, or an error that suggests the closest."""
    if name not in EXPERIMENTS:
        raise UsageError(f"unknown table or figure '{name}'.{suggest(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def reproduce(
    name: str,
    study: Study,
    out: Path,
    on_cell: Callable[[Cell, int, int], None] = lambda cell, done, of: None,
    command: str | None = None,
) -> tuple[Outcome, list[Path]]:
    """Computes what is missing of a table or figure, and writes it.

    Args:
        name: Of the table or figure.
        study: Scale, seeds, data and the store.
        out: Where Markdown, CSV, JSON, pictures and the page go.
        on_cell: Told of each cell before it is computed (see `Study.complete`).
        command: The command that makes it again; the page names it.

    Returns:
        What came out, and the files that were written.
    """
    import json

    from ranp.experiments.reproduce.page import make_page
    from ranp.experiments.reproduce.study import with_parts
    from ranp.files import ensure_directory, write_text
    from ranp.report.reproduction import write_reproduction

    module = find_experiment(name).module()
    cells = with_parts(module.cells(study))
    study.complete(cells, on_cell)
    outcome: Outcome = module.show(study)
    ensure_directory(out)
    content = {
        "name": name,
        "scale": study.scale,
        "seeds": study.seeds,
        "resources_only": study.resources_only,
        **outcome.table.to_dict(),
    }
    files = [out / f"{name}.{ending}" for ending in ("md", "csv", "json")]
    texts = (outcome.table.markdown(), outcome.table.csv(), json.dumps(content, indent=1) + "\n")
    for path, text in zip(files, texts, strict=True):
        write_text(path, text)
    pictures = []
    if outcome.picture is not None:
        pictures = [out / f"{name}.{ending}" for ending in ("png", "svg")]
        for path in pictures:
            outcome.picture(path)
    page = make_page(name, study, cells, outcome.table, pictures, command)
    return outcome, [*files, *pictures, write_reproduction(page, out / f"{name}.html")]
