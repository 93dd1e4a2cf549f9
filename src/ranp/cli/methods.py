"""`ranp methods`: the table of methods."""

from __future__ import annotations

from ranp.cli._options import JsonOption, Output


def command(as_json: JsonOption = False) -> None:
    """List the pruning methods: criterion, balance, resource, selection."""
    from ranp.pruning.methods import METHODS
    from ranp.report.terminal import folded, table

    result = table(*folded("method", "importance", "balanced", "resource", "selection", ""))
    for method in METHODS.values():
        result.add_row(
            method.name,
            method.criterion.label if method.criterion else "",
            "yes" if method.balance else "",
            method.resource or "",
            method.selection.name,
            method.about,
        )
    Output(as_json).show([method.to_dict() for method in METHODS.values()], result)
