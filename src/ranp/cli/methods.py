"""`ranp methods`: the table of methods."""

from __future__ import annotations

from dataclasses import asdict

from ranp.cli._common import JsonOption, show, show_json


def command(as_json: JsonOption = False) -> None:
    """List the pruning methods: criterion, balance, resource, selection."""
    from ranp.pruning.methods import METHODS
    from ranp.report.terminal import table

    if as_json:
        show_json([asdict(method) for method in METHODS.values()])
        return
    result = table()
    for heading in ("method", "importance", "balanced", "resource", "selection", ""):
        result.add_column(heading, overflow="fold")
    for method in METHODS.values():
        mask_gradients = method.criterion in ("mpmg", "mnmg")
        importance = "" if method.criterion == "none" else method.criterion
        result.add_row(
            method.name,
            f"{importance}-{method.reduction}" if mask_gradients else importance,
            "yes" if method.balance else "",
            method.resource or "",
            method.selection,
            method.about,
        )
    show(result)
