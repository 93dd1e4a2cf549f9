"""`ranp doctor`: what slows this machine down."""

from __future__ import annotations

from typing import Annotated

import typer

from ranp.cli._options import Device, Output, grouped
from ranp.errors import lookup


@grouped
def command(
    output: Output,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Check predicted against measured memory, for `ranp fit`."),
    ] = False,
    network: Annotated[
        list[str] | None, typer.Option(help="With --memory: only this network; may be repeated.")
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="With --memory: device; by default cuda if available.")
    ] = None,
) -> None:
    """Show device, threads, and known traps with their measured cost and what to do."""
    if memory:
        _check_memory(device, network, output)
    else:
        _explain(output)


def _check_memory(device: Device | None, networks: list[str] | None, output: Output) -> None:
    """Print a table that can be pasted into an issue, and keep the correction."""
    from ranp._version import __version__
    from ranp.fitting.machine import default_device
    from ranp.integrations.memory_check import NETWORKS, compare_memory, keep_correction
    from ranp.resources.budgets import describe

    for name in networks or ():
        lookup(NETWORKS, name, "network")
    where = device or default_device()
    output.say("Training each network for a step in a separate process; this takes minutes.")
    rows = []
    for row in compare_memory(where, networks):
        rows.append(row)
        error = row.measured.failure if row.error is None else f"{100 * row.error:+.1f} %"
        output.say(f"{row.network}, {row.optimizer}, {row.precision}: {error}")
    correction = keep_correction(where, rows)
    record = {**vars(correction), "version": __version__, "rows": [r.to_dict() for r in rows]}
    lines = [
        f"ranp {__version__}, {correction.device}, {correction.date}\n",
        "| network | input | optimizer | precision | predicted | measured | error |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        shape = "x".join(map(str, row.shape))
        cells = [row.network, shape, row.optimizer, row.precision]
        cells += [describe("memory", row.predicted) if row.predicted else ""]
        allocated = row.measured.allocated
        besides = "" if allocated is None else f" ({describe('memory', allocated)} allocated)"
        measured = f"{describe('memory', row.measured.peak)}{besides}"
        cells += [row.measured.failure or measured]
        cells += ["" if row.error is None else f"{100 * row.error:+.1f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    factors = ", ".join(f"{name}: {factor:.3f}" for name, factor in correction.factors.items())
    output.show(record, "\n".join([*lines, f"\nCorrection by precision: {factors}"]))
    output.say("From now on, `ranp fit` multiplies its predictions for this device by it.")


def _explain(output: Output) -> None:
    from rich.console import Group
    from rich.text import Text

    from ranp.report.terminal import table
    from ranp.speed.doctor import diagnose

    diagnosis = diagnose()
    about = table("", "", title="This machine")
    for name, value in diagnosis.machine.items():
        is_size = name.endswith("_bytes") and value is not None
        shown = f"{value / 2**30:.1f} GiB" if is_size else str(value)
        about.add_row(name.removesuffix("_bytes"), Text(shown))
    traps = [finding for finding in diagnosis.findings if finding.is_trap]
    lines: list[Text] = []
    for finding in sorted(traps, key=lambda trap: -(trap.factor or 0.0)):
        cost = f" ({finding.factor:.1f} x)" if finding.factor else ""
        lines += [
            Text(f"! {finding.name}{cost}", style="bold"),
            Text(f"  {finding.measured}"),
            Text(f"  do: {finding.advice}"),
        ]
    fine = [
        Text(f"- {finding.name}: {finding.measured}")
        for finding in diagnosis.findings
        if not finding.is_trap
    ]
    headings = [Text(heading, style="bold") for heading in ("Traps", "Fine")]
    parts = Group(about, "", headings[0], *lines, "", headings[1], *fine)
    output.show(diagnosis.to_dict(), parts)
    output.say("Next: ranp bench NET --optimize measures what the advice gains.")
