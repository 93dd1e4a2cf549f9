"""The table of `_hippocampus`: from records, and from steps measured in processes of their own."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._step_memory import MeasuredStep, measure
from ranp.files import read_sealed_json
from ranp.training.preparation import stored_plan

Records = Mapping[tuple[str, int], Mapping[str, Any]]

_SHAPE = (2, 1, 32, 32, 32)


def table(records: Records, out: Path) -> str:
    """What the page shows of the runs, from their records.

    Args:
        records: By network and seed.
        out: Where the runs lie.
    """
    names = list(dict.fromkeys(name for name, _ in records))
    seeds = list(dict.fromkeys(seed for _, seed in records))
    rows = [
        _row(
            name,
            [records[name, seed] for seed in seeds],
            [_step(records[name, seed], out) for seed in seeds],
        )
        for name in names
    ]
    some = next(iter(records.values()))
    heading = (
        "network | Dice | anterior | posterior | GFLOPs | parameters | step memory, MiB "
        "| step, CPU s | run, CPU s | run, wall s"
    )
    lines = [
        f"Recipe `{some['recipe']}`, {some['epochs']} epochs, seeds {', '.join(map(str, seeds))}, "
        f"{_volumes(out / Path(some['run']).name)} (Medical Segmentation Decathlon, Task04), "
        "validated on whole volumes.",
        "",
        "RANP-f keeps a floor of one neuron per layer: without it, seed 1 cannot reach 80 % (its "
        "largest feasible sparsity is 0.794). Where every layer keeps a neuron anyway, the floor "
        "changes nothing.",
        "",
        heading,
        " | ".join(["---"] + ["---:"] * heading.count("|")),
        *rows,
        "",
        "- **Dice**: the mean over the last five epochs of each run; then mean ± standard "
        "deviation over the seeds.",
        "- **GFLOPs, parameters**: counted by the paper's rules for one sample at the training "
        f"size, {_SHAPE[-1]}³.",
        "- **step memory**: measured growth of the resident set in two training steps with batch "
        f"{_SHAPE[0]}, in a separate process, including the kernels' workspaces.",
        "- **times**: on one thread. A run includes validation; its CPU time includes scoring too. "
        "The machine had other work, which affects the wall time and not the CPU time.",
        "",
        "Run by run, the mean over the last five epochs ± their standard deviation:",
        "",
        "network | seed | Dice | anterior | posterior | layers left with one neuron",
        "--- | ---: | ---: | ---: | ---: | ---",
        *(_run_row(name, seed, records[name, seed], out) for name in names for seed in seeds),
        "",
        f"torch {some['versions']['torch']}, ranp {some['versions']['ranp']}.",
    ]
    return "\n".join(lines)


def _volumes(run: Path) -> str:
    cases = read_sealed_json(run / "data.json", "data")
    return (
        f"{len(cases['train'])} volumes for training and {len(cases['validation'])} for validation"
    )


def _step(record: Mapping[str, Any], out: Path) -> MeasuredStep:
    plan = out / Path(record["run"]).name / "plan.json"
    return measure("hippocampus", _SHAPE, "adam", plan if plan.exists() else None)


def _row(name: str, records: Sequence[Mapping[str, Any]], steps: Sequence[MeasuredStep]) -> str:
    costs = [record["slim"] or record["full"] for record in records]
    cpu = [record["cpu_seconds"] for record in records]
    cells = [
        name,
        *(_spread([r["metrics"][m]["mean"] for r in records], ".3f") for m in _METRICS),
        _spread([c["gflops"] for c in costs], ".3f"),
        _spread([c["param_mb"] * 2**18 for c in costs], ",.0f"),
        _spread([step.peak / 2**20 for step in steps], ".0f"),
        _spread([step.seconds for step in steps], ".2f"),
        "interrupted" if None in cpu else _spread(cpu, ".0f"),
        _spread([r["seconds"] for r in records], ".0f"),
    ]
    return " | ".join(cells)


def _run_row(name: str, seed: int, record: Mapping[str, Any], out: Path) -> str:
    """One run; the spread over seeds can hide that a run failed."""
    plan = stored_plan(out / Path(record["run"]).name)
    layers = plan.layers.items() if plan else ()
    thin = [f"`{layer}`" for layer, kept in layers if len(kept.kept) == 1]
    dices = [record["metrics"][metric] for metric in _METRICS]
    return " | ".join(
        [
            name,
            str(seed),
            *(f"{dice['mean']:.3f} ± {dice['std']:.3f}" for dice in dices),
            ", ".join(thin) or "none",
        ]
    )


_METRICS = ("dice", "dice anterior", "dice posterior")


def _spread(values: Sequence[float], form: str) -> str:
    """Mean ± standard deviation over the seeds; one number where they are all the same."""
    mean = format(statistics.fmean(values), form)
    if len(set(values)) == 1:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"
