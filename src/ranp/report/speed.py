"""Tables and figure of what `ranp bench` and `ranp export --time` record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ranp.display import MIB
from ranp.report.figures import PALETTE, pyplot_module, save_figure, styled
from ranp.report.terminal import numbers, table

Comparison = Mapping[str, Any]


def bench_table(comparisons: Sequence[Comparison], title: str) -> Table:
    """Return a row per batch and mode: seconds, speed-up, and its share of the theoretical one."""
    result = table(
        "what",
        "input",
        *numbers("full s", "slim s", "±", "x", "of", "realised", "full MiB", "slim MiB"),
        title=title,
        caption="Median of alternating runs; ± is the median distance from it. "
        "Memory: peak of one run on top of parameters and batch.",
    )
    for row in comparisons:
        full, slim = row["full"], row["slim"]
        result.add_row(
            str(row["mode"]),
            "x".join(map(str, row["shape"])),
            f"{full['seconds']:.3f}",
            f"{slim['seconds']:.3f}",
            f"{100 * max(full['spread'], slim['spread']):.0f} %",
            f"{row['speedup']:.1f}",
            f"{row['theoretical']:.1f}",
            f"{100 * row['realised']:.0f} %",
            f"{full['peak_bytes'] / MIB:,.0f}",
            f"{slim['peak_bytes'] / MIB:,.0f}",
        )
    return result


def times_table(times: Mapping[str, Any]) -> Table:
    """Return a row per runtime of what `ranp export --time` records, relative to the first."""
    machine, runs = times["machine"], times["runs"]
    result = table(
        "",
        *numbers("ms", "±", "x as fast"),
        title=f"Inference at {' x '.join(map(str, times['shape']))} on {machine['device']}, "
        f"threads: {machine['threads']}, load {times['load']:.1f}",
        caption="Median of alternating runs; ± is the median distance from it.",
    )
    reference = next(iter(runs.values()))["seconds"]
    for name, run in runs.items():
        seconds, spread = run["seconds"], run["spread"]
        speed = f"{reference / seconds:.2f}"
        result.add_row(name, f"{1e3 * seconds:.1f}", f"{100 * spread:.0f} %", speed)
    return result


@styled
def draw_bench(path: str | Path, comparisons: Sequence[Comparison], caption: str) -> None:
    """Draw bars of the measured speed-up, with a line at the one that FLOPs promise."""
    figure, axes = pyplot_module().subplots(figsize=(6.4, 1.2 + 0.42 * len(comparisons)))
    colours = {"train": PALETTE[0], "inference": PALETTE[1]}
    for place, row in enumerate(comparisons):
        axes.barh(place, row["speedup"], color=colours[row["mode"]], height=0.62, zorder=2)
        axes.plot([row["theoretical"]] * 2, [place - 0.4, place + 0.4], color="#444444", zorder=3)
        label = f"{row['speedup']:.1f} x, {100 * row['realised']:.0f} %"
        axes.text(row["speedup"], place, f" {label}", va="center", fontsize=8, zorder=4)
    labels = [f"{row['mode']} {'x'.join(map(str, row['shape']))}" for row in comparisons]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(max(r["theoretical"], r["speedup"]) for r in comparisons))
    axes.set(xlabel="times as fast as the full network (line: FLOPs)", title=caption)
    save_figure(figure, path)
