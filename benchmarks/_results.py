"""The results pages: fills the marked places of docs/results.md and docs/results-tables.md.

Run by `python -m benchmarks._results --store out/reproduce --seeds 3` when the cells of
`ranp reproduce NAME --scale paper --resources-only` are there; what is missing is computed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import reproduce
from ranp.experiments.reproduce import table_capability as table_2
from ranp.experiments.reproduce import table_similar_resource as table_3
from ranp.experiments.reproduce import table_single_gpu as table_5
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, PAIRS, Pair
from ranp.experiments.reproduce.study import Study
from ranp.files import write_text
from ranp.report.table import ComparisonTable
from ranp.trials.store import Cell, Store

DOCS = Path(__file__).parents[1] / "docs"
TABLES = (
    "table-capability",
    "table-vanilla",
    "table-similar-resource",
    "table-initialisation",
    "table-single-gpu",
    "table-vanilla-full",
)
# Scoring 23 layers takes longest and says the least; orthogonal weights are scored for one table.
MOST_SEEDS = {"table-single-gpu": 1, "table-initialisation": 2}
FIGURES = ("fig-overview", "fig-importance", "fig-retained", "fig-sparsity", "fig-mnmg")


def main() -> None:
    """Computes what is missing and writes the pages and pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, default=Path("out/reproduce"))
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    study = Study(Store(arguments.store / "cells"), "paper", arguments.seeds, resources_only=True)
    tables: dict[str, ComparisonTable] = {}
    for name in (*TABLES, *FIGURES):
        print(name, file=sys.stderr)
        seeds = min(arguments.seeds, MOST_SEEDS.get(name, arguments.seeds))
        command = (
            f"ranp reproduce {name} --scale paper --resources-only --seeds {seeds} "
            f"--out {arguments.store}"
        )
        tables[name], files = reproduce(
            name, replace(study, seeds=seeds), arguments.store / "paper", _tell, command
        )
        for picture in files:
            if picture.suffix == ".png":
                _shrink(picture, DOCS / "images" / picture.name)
    blocks = {name: tables[name].markdown() for name in TABLES}
    fill(DOCS / "results-tables.md", blocks)
    fill(DOCS / "results.md", {"claims": claims(study, tables)})


def _tell(cell: Cell, done: int, of: int) -> None:
    print(f"  {done}/{of} {cell['kind']} {cell.get('method', '')}", file=sys.stderr, flush=True)


def _shrink(picture: Path, target: Path) -> None:
    """Write a copy with few colours: a third of the bytes, and the same to look at."""
    from PIL import Image  # matplotlib brings it

    with Image.open(picture) as image:
        image.convert("RGB").quantize(64).save(target, optimize=True)


def fill(page: Path, blocks: dict[str, str]) -> None:
    """Replaces what stands between the marks of each block."""
    text = page.read_text()
    for name, content in blocks.items():
        mark = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        assert mark.search(text), f"{page} has no place for {name}"
        text = mark.sub(lambda m, c=content: f"{m[1]}{c}\n{m[2]}", text)  # type: ignore[misc]
    write_text(page, text)


def claims(study: Study, tables: dict[str, ComparisonTable]) -> str:
    """What the paper claims and what came out: a line each, then RANP-f network by network."""
    exact, wrong = _exact(tables["table-capability"])
    networks = [_network(study, pair) for pair in FOUR]
    further = sum(each.largest[1] > each.largest[0] for each in networks)
    seeds = min(study.seeds, MOST_SEEDS["table-initialisation"])
    wins = _glorot(replace(study, seeds=seeds))
    full, slim = (_deep(study, pruned=pruned) for pruned in (False, True))
    rows = [
        (
            "Full, random and layer-wise networks cost what Table 2 prints",
            f"{exact} of {exact + wrong} figures are equal to the last digit",
            "exact" if not wrong else "differs",
        ),
        (
            f"RANP-f saves {_span([e.printed_saved['gflops'] for e in networks])} of the FLOPs and "
            f"{_span([e.printed_saved['memory_mb'] for e in networks])} of the memory",
            f"{_span([e.saved['gflops'] for e in networks])} and "
            f"{_span([e.saved['memory_mb'] for e in networks])}, at the same sparsities",
            "near",
        ),
        (
            "Reweighting lets one prune further, on 4 of 4 networks",
            f"on {further} of 4",
            "near" if further == 4 else "partly",
        ),
        (
            "Random and layer-wise pruning can be brought to RANP-f's FLOPs or memory",
            f"within {_worst(study):.2f} % of the budget, on all four networks",
            "exact",
        ),
        (
            "Scored with Glorot weights, RANP-f saves more FLOPs than with orthogonal ones, on 4 "
            "of 4 networks",
            f"on {wins} of 4",
            "near" if wins == 4 else "partly",
        ),
        (
            "23 layers take 3.9 times less memory, and train on one GPU of 16 GB",
            f"{full['costs']['memory_mb'] / slim['costs']['memory_mb']:.1f} times less; a step is "
            f"predicted to take {slim['step_gib']:.1f} GiB instead of {full['step_gib']:.1f}",
            "near",
        ),
        ("Accuracy is kept", "not shown: at its size that needs GPUs and the data sets", "open"),
    ]
    lines = ["the paper's claim | what came out here | check", "--- | --- | ---"]
    lines += [" | ".join(row) for row in rows]
    seeds = "one seed" if study.seeds == 1 else f"means over {study.seeds} seeds"
    lines += [
        "",
        f"RANP-f, network by network: the paper's, and ours ({seeds}).",
        "",
        "network | FLOPs saved | memory saved | largest sparsity, vanilla → RANP-f",
        "--- | --- | --- | ---",
    ]
    lines += [each.line() for each in networks]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Network:
    """RANP-f on a network, in per cent: what it saves, and the largest sparsities."""

    title: str
    saved: dict[str, float]
    printed_saved: dict[str, float]
    largest: tuple[float, float]
    printed_largest: tuple[float, float]

    def line(self) -> str:
        """A row of the table."""
        cells = [f"{self.printed_saved[key]:.1f} %; ours {self.saved[key]:.1f} %" for key in _SAVED]
        paper, ours = (
            f"{pair[0]:.0f} → {pair[1]:.0f} %" for pair in (self.printed_largest, self.largest)
        )
        return " | ".join([self.title, *cells, f"{paper}; ours {ours}"])


_SAVED = ("gflops", "memory_mb")


def _network(study: Study, pair: Pair) -> _Network:
    rows = capability(pair.name)
    found = [study.result(cell) for cell in table_2.make_row(study, pair, "ranp-f").cells.choices]
    largest = tuple(
        100
        * statistics.fmean(
            study.result(study.choice(pair, method, Amount(of_largest=1.0), seed))["largest"]
            for seed in study.each_seed
        )
        for method in ("vanilla", "ranp-f")
    )
    most = printed()["data_dependent"][pair.name]["max_sparsity"]
    return _Network(
        pair.title,
        {
            key: statistics.fmean(100 * (1 - r["costs"][key] / r["full"][key]) for r in found)
            for key in _SAVED
        },
        {key: 100 * (1 - rows["ranp-f"][key] / rows["full"][key]) for key in _SAVED},
        (largest[0], largest[1]),
        (100 * most["vanilla"], 100 * most["ranp-f"]),
    )


def _span(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f} %"


def _deep(study: Study, *, pruned: bool) -> dict[str, Any]:
    """The 23-layer network, of seed 0."""
    deep = PAIRS["unet3d-23-shapenet"]
    return study.result(table_5.make_row(study, "", deep, pruned=pruned).cells.choices[0])


def _exact(table: ComparisonTable) -> tuple[int, int]:
    figures = [f for row in table.rows for f in row.figures.values() if f.exact]
    right = sum(table.agrees(figure) for figure in figures)
    return right, len(figures) - right


def _glorot(study: Study) -> int:
    """On how many networks RANP-f has fewer FLOPs when scored with Glorot weights."""
    wins = 0
    for pair in FOUR:
        amount = Amount(sparsity=printed()["table-initialisation"][pair.name]["sparsity"])
        mean = {
            weights: statistics.fmean(
                study.result(study.choice(pair, "ranp-f", amount, seed, weights=weights))["costs"][
                    "gflops"
                ]
                for seed in study.each_seed
            )
            for weights in ("fresh", "orthogonal")
        }
        wins += mean["fresh"] < mean["orthogonal"]
    return wins


def _worst(study: Study) -> float:
    """The largest deviation of a baseline from its budget, in per cent."""
    return max(
        abs(100 * study.result(cell)["deviation"])
        for pair in FOUR
        for method, resource in table_3.BASELINES
        for cell in table_3.make_row(study, pair, method, resource).cells.choices
    )


if __name__ == "__main__":
    main()
