"""The results pages: fills the marked places of docs/results.md and docs/results-tables.md.

Run by `python -m benchmarks._results --store out/reproduce --seeds 3` when the cells of
`ranp reproduce NAME --scale paper --resources-only` are there; what is missing is computed.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from pathlib import Path

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import reproduce
from ranp.experiments.reproduce import table_capability as table_2
from ranp.experiments.reproduce import table_similar_resource as table_3
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell, Store
from ranp.files import write_text
from ranp.report.beside import Beside

DOCS = Path(__file__).parents[1] / "docs"
TABLES = (
    "table-capability",
    "table-vanilla",
    "table-similar-resource",
    "table-initialisation",
    "table-single-gpu",
    "table-vanilla-full",
)
FIGURES = ("fig-overview", "fig-importance", "fig-retained", "fig-sparsity", "fig-mnmg")


def main() -> None:
    """Computes what is missing and writes the pages and pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, default=Path("out/reproduce"))
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    study = Study(Store(arguments.store / "cells"), "paper", arguments.seeds, resources_only=True)
    tables: dict[str, Beside] = {}
    for name in (*TABLES, *FIGURES):
        print(name, file=sys.stderr)
        outcome, _ = reproduce(name, study, arguments.store / "paper", _tell)
        tables[name] = outcome.table
        if outcome.picture is not None:
            outcome.picture(DOCS / "images" / f"{name}.png")
            _shrink(DOCS / "images" / f"{name}.png")
    blocks = {name: tables[name].markdown(level=2) for name in TABLES}
    _fill(DOCS / "results-tables.md", blocks)
    _fill(DOCS / "results.md", {"claims": claims(study, tables)})


def _tell(cell: Cell, done: int, of: int) -> None:
    print(f"  {done}/{of} {cell['kind']} {cell.get('method', '')}", file=sys.stderr, flush=True)


def _shrink(picture: Path) -> None:
    """Few colours: a third of the bytes, and the same to look at."""
    from PIL import Image  # matplotlib brings it

    with Image.open(picture) as image:
        image.convert("RGB").quantize(64).save(picture, optimize=True)


def _fill(page: Path, blocks: dict[str, str]) -> None:
    """Replaces what stands between the marks of each block."""
    text = page.read_text()
    for name, content in blocks.items():
        mark = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        assert mark.search(text), f"{page} has no place for {name}"
        text = mark.sub(lambda m, c=content: f"{m[1]}{c}\n{m[2]}", text)  # type: ignore[misc]
    write_text(page, text)


def claims(study: Study, tables: dict[str, Beside]) -> str:
    """What the paper claims, and what came out, a line each."""
    lines = ["the paper says | paper | here | ", "--- | --- | --- | ---"]
    exact, wrong = _exact(tables["table-capability"])
    lines.append(
        "what full, random and layer-wise networks cost | 12 rows, 36 figures | "
        f"{exact} of {exact + wrong} figures equal to the last digit | exact"
    )
    for key, what in (("gflops", "FLOPs"), ("memory_mb", "memory")):
        paper, ours = _reductions(study, key)
        lines.append(f"RANP-f saves {what} | {paper} | {ours} | near")
    paper, ours = _largest(study)
    lines.append(f"reweighting lets one prune further | {paper} | {ours} | near")
    lines.append(
        f"Glorot beats orthogonal weights in FLOPs | 4 of 4 | {_glorot(study)} of 4 | near"
    )
    lines.append(
        "baselines can be brought to RANP-f's cost | about equal | "
        f"within {_worst(study):.2f} % | exact"
    )
    lines.append(
        "accuracy is kept | −0.7, −2.2, −1.2, +2.7 points | not run here: needs GPUs and the data "
        "sets | open"
    )
    order = ", ".join(pair.title for pair in FOUR)
    return "\n".join(lines) + f"\n\nFour figures are of {order}, in this order.\n"


def _exact(table: Beside) -> tuple[int, int]:
    figures = [f for row in table.rows for f in row.figures.values() if f.exact]
    right = sum(table.agrees(figure) for figure in figures)
    return right, len(figures) - right


def _reductions(study: Study, key: str) -> tuple[str, str]:
    """How much RANP-f saves at the paper's sparsity, in per cent."""
    paper, ours = [], []
    for pair in FOUR:
        rows = capability(pair.name)
        paper.append(100 * (1 - rows["ranp-f"][key] / rows["full"][key]))
        cells = table_2.made(study, pair, "ranp-f").choices
        found = [study.result(cell) for cell in cells]
        ours.append(statistics.fmean(100 * (1 - r["costs"][key] / r["full"][key]) for r in found))
    return tuple(", ".join(f"{v:.1f}" for v in values) + " %" for values in (paper, ours))  # type: ignore[return-value]


def _largest(study: Study) -> tuple[str, str]:
    """Largest sparsity without and with reweighting, in per cent."""
    paper, ours = [], []
    for pair in FOUR:
        most = printed()["data_dependent"][pair.name]["max_sparsity"]
        paper.append(f"{100 * most['vanilla']:.0f} → {100 * most['ranp-f']:.0f}")
        found = [
            statistics.fmean(
                study.result(study.choice(pair, method, Amount(of_largest=1.0), seed))["largest"]
                for seed in study.each_seed
            )
            for method in ("vanilla", "ranp-f")
        ]
        ours.append(f"{100 * found[0]:.0f} → {100 * found[1]:.0f}")
    return ", ".join(paper) + " %", ", ".join(ours) + " %"


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
        for method, resource in table_3._ROWS
        for cell in table_3.made(study, pair, method, resource).choices
    )


if __name__ == "__main__":
    main()
