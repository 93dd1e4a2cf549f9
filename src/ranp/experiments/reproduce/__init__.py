"""The paper's tables and figures: a module for each, or for two that differ in their methods.

Its `declare(study, name)` returns the rows, from which follow the cells to be computed, the table
and the page. Importing this package does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ranp.errors import lookup
from ranp.trials.store import OnCell, ignore_cell

if TYPE_CHECKING:
    from ranp.experiments.reproduce.study import Study
    from ranp.experiments.reproduce.tables import Exhibit
    from ranp.report.table import ComparisonTable


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, by its name on the command line and its number in the paper.

    `trains` says whether it shows figures of trained networks; `module` declares it, by default
    that of its name.
    """

    name: str
    paper: str
    about: str
    trains: bool = True
    module: str | None = None

    def declare(self, study: Study) -> Exhibit:
        """Return its cells and what is made of them; imports torch."""
        import importlib

        module = importlib.import_module(f"{__name__}.{self.module or self.name.replace('-', '_')}")
        exhibit: Exhibit = module.declare(study, self.name)
        return exhibit


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("table-vanilla", "Table 1", "MPMG-sum and MNMG-sum at their max sparsity"),
        Experiment(
            "table-vanilla-full",
            "Table 6",
            "all six measures at their max sparsity",
            module="table_vanilla",
        ),
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
        Experiment(
            "fig-mnmg",
            "Figure 9",
            "MNMG-sum and MPMG-sum",
            trains=False,
            module="fig_importance",
        ),
    )
}


def find_experiment(name: str) -> Experiment:
    """Return the table or figure of a name, or raise an error that suggests the closest."""
    return lookup(EXPERIMENTS, name, "table or figure")


def reproduce(
    name: str, study: Study, out: Path, on_cell: OnCell = ignore_cell, command: str | None = None
) -> tuple[ComparisonTable, list[Path]]:
    """Compute the missing cells of a table or figure, write it, and return it with its files.

    The page shows the command that makes it again.
    """
    import json

    from ranp.experiments.reproduce.page import make_page
    from ranp.experiments.reproduce.study import with_parts
    from ranp.files import ensure_directory, write_text
    from ranp.report.figures import save_figure
    from ranp.report.reproduction import render_reproduction

    exhibit = find_experiment(name).declare(study)
    cells = with_parts(exhibit.cells)
    study.complete(cells, on_cell)
    table = exhibit.table()
    if outdated := sum(map(study.store.is_outdated, cells)):
        mark = (
            f"{outdated} of {len(cells)} cells were computed by another version of the code; "
            "--recompute computes them again."
        )
        table = replace(table, about=(*table.about, mark))
    ensure_directory(out)
    content = {
        "name": name,
        "scale": study.scale,
        "seeds": study.seeds,
        "resources_only": study.resources_only,
        **table.to_dict(),
    }
    texts = {"md": table.markdown(), "csv": table.csv(), "json": json.dumps(content, indent=1)}
    files = [out / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(files, texts.values(), strict=True):
        write_text(path, text if text.endswith("\n") else f"{text}\n")
    pictures = []
    if exhibit.draw is not None:
        pictures = [out / f"{name}.{suffix}" for suffix in ("png", "svg")]
        save_figure(exhibit.draw(table), *pictures)
    page = render_reproduction(make_page(name, study, cells, table, pictures, command))
    return table, [*files, *pictures, write_text(out / f"{name}.html", page)]
