"""`ranp doctor`: what slows this machine down."""

from __future__ import annotations

from ranp.cli._common import say, show, show_json
from ranp.cli._options import JsonOption, QuietOption


def command(as_json: JsonOption = False, quiet: QuietOption = False) -> None:
    """Explain the machine: device, threads, known traps with their measured cost, what to do."""
    from rich.console import Group
    from rich.text import Text

    from ranp.report.terminal import table
    from ranp.speed.doctor import diagnose

    found = diagnose()
    if as_json:
        show_json(found.to_dict())
        return
    about = table("This machine")
    about.add_column("")
    about.add_column("")
    for name, value in found.machine.items():
        is_size = name.endswith("_bytes") and value is not None
        shown = f"{value / 2**30:.1f} GiB" if is_size else str(value)
        about.add_row(name.removesuffix("_bytes"), Text(shown))
    traps = [finding for finding in found.findings if finding.is_trap]
    lines: list[Text] = []
    for finding in sorted(traps, key=lambda each: -(each.factor or 0.0)):
        cost = f" ({finding.factor:.1f} x)" if finding.factor else ""
        lines += [
            Text(f"! {finding.name}{cost}", style="bold"),
            Text(f"  {finding.measured}"),
            Text(f"  do: {finding.advice}"),
        ]
    fine = [Text(f"- {each.name}: {each.measured}") for each in found.findings if not each.is_trap]
    show(
        Group(about, "", Text("Traps", style="bold"), *lines, "", Text("Fine", style="bold"), *fine)
    )
    say(quiet, "Next: ranp bench NET --optimize shows what the way round is worth.")
