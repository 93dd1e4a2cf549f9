"""`ranp reproduce`: the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ranp.cli._cells import CellOptions, cell_progress
from ranp.cli._common import command_line
from ranp.cli._options import Output, grouped
from ranp.errors import UsageError


@grouped
def command(
    cells: CellOptions,
    output: Output,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A table or figure; see --list.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the data sets, each in a directory of its name; networks whose data "
            "is missing are left out. Without it, generated data."
        ),
    ] = None,
    scale: Annotated[
        Literal["paper", "small", "smoke"],
        typer.Option(help="The paper's size, CPU minutes, or at most a minute."),
    ] = "smoke",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, which count from 0.")] = 1,
    resources_only: Annotated[
        bool, typer.Option("--resources-only", help="Score and count; train nothing.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Directory for tables, pages, pictures and the store.")
    ] = Path("out/reproduce"),
    listed: Annotated[
        bool, typer.Option("--list", help="List all tables and figures, and exit.")
    ] = False,
) -> None:
    """Reproduce a table or figure of the paper, next to the paper's own figures."""
    from ranp.experiments.reproduce import EXPERIMENTS, find_experiment
    from ranp.experiments.reproduce.scales import find_data_sets

    if listed:
        _list(output)
        return
    if name is None:
        raise UsageError(f"say which: {', '.join(EXPERIMENTS)}; ranp reproduce --list says more")
    experiment = find_experiment(name)
    data_sets = {} if data is None else find_data_sets(data)

    from ranp.experiments.reproduce import reproduce
    from ranp.experiments.reproduce.study import Study
    from ranp.report.terminal import comparison_tables

    jobs = cells.parse_jobs()
    store = cells.open_store(out / "cells", Study)
    study = Study(store, scale, seeds, resources_only, data_sets, jobs=jobs)
    output.say(f"{experiment.paper}, {experiment.about}: scale {scale}, in {out}")
    with cell_progress(output, "cells", _describe) as on_cell:
        table, files = reproduce(name, study, out / scale, on_cell, command_line())
    record = {"files": [str(path) for path in files], **table.to_dict()}
    output.show(record, comparison_tables(table))
    output.say(f"Written: {files[0]} and {', '.join(path.suffix for path in files[1:])}")
    given = "" if data is None else f" --data {data}"
    further = f"{name} --scale paper{given}" if scale != "paper" else "--list"
    output.say(f"Next: open {files[-1]} in a browser, or ranp reproduce {further}")


def _list(output: Output) -> None:
    from ranp.experiments.reproduce import EXPERIMENTS
    from ranp.report.terminal import table

    headings = ("name", "in the paper", "what it shows", "trains")
    result = table(*headings, title="Tables and figures of the paper")
    for e in EXPERIMENTS.values():
        result.add_row(e.name, e.paper, e.about, "yes" if e.trains else "no")
    rows = [asdict(e) for e in EXPERIMENTS.values()]
    output.show([{key: row[key] for key in row if key != "module"} for row in rows], result)


def _describe(cell: Mapping[str, Any], done: int, total: int) -> tuple[str, str | None]:
    """Return a cell in a few words, and a line if it takes long."""
    if cell["kind"] == "training":
        config = cell["config"]
        method = cell["plan"]["method"] if "plan" in cell else "full"
        about = f"training {config['recipe']}, {method}, seed {config['seed']}"
    elif cell["kind"] == "scores of samples":
        network = f"{cell['network']['name']} on {cell['data']}"
        about = f"scoring {network}, {cell['weights']}, seed {cell['seed']}"
    else:
        network = cell["network"]["name"]
        return f"{cell['kind']} of {network}, {cell.get('method', 'ranp-f')}", None
    return about, f"  {done}/{total} cells done; now {about}"
