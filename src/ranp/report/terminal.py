"""Tables and bars in the terminal: 80 columns are enough, colour is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from ranp.display import MIB, digits_for
from ranp.report.table import ComparisonTable

Totals = Mapping[str, float]

_COLUMNS = (
    ("gflops", "GFLOPs", 2),
    ("param_mb", "params MB", 2),
    ("memory_mb", "memory MB", 2),
    ("neurons", "neurons", 0),
)


class _Table(Table):
    """A table whose title and caption stay in one line: rich breaks them to the table's width."""

    heading: str | None = None
    remark: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading is not None:
            yield Text(self.heading, style="bold")
        yield from super().__rich_console__(console, options)
        if self.remark is not None:
            yield Text(self.remark, style="dim")


def table(*columns: str | Column, title: str | None = None, caption: str | None = None) -> Table:
    """Return an empty table in the style of all tables."""
    result = _Table(*columns, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    result.heading, result.remark = title, caption
    return result


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers, aligned to the right."""
    return [Column(heading, justify="right") for heading in headings]


def folded(*headings: str) -> list[Column]:
    """Return columns of long texts, which are broken rather than cut off."""
    return [Column(heading, overflow="fold") for heading in headings]


def totals_table(rows: Mapping[str, Totals], title: str | None = None) -> Table:
    """Return networks side by side; all but the first with their shares of the first.

    Where the first one's figure is small, as on the page, there are more digits.
    """
    result = table(
        "", title=title, caption="Counted at the traced input size, by the paper's rules."
    )
    for _, heading, _ in _COLUMNS:
        result.add_column(heading, justify="right")
        if len(rows) > 1:
            result.add_column("", justify="right", style="dim")
    reference = next(iter(rows.values()))
    for name, totals in rows.items():
        cells: list[str] = []
        for key, _, least in _COLUMNS:
            value, digits = totals[key], digits_for(reference[key], least) if least else 0
            cells.append(format(value, f".{digits}f") if digits else f"{int(value):,}")
            if len(rows) > 1:
                left = percent(value, reference[key], 1) if reference[key] else "100.0 %"
                cells.append("" if totals is reference else left)
        result.add_row(Text(name), *cells)
    return result


def percent(part: float, whole: float, digits: int = 0) -> str:
    """Format a part in per cent of the whole, as the pages do too."""
    return f"{100 * part / whole:.{digits}f} %"


@dataclass(frozen=True)
class Bar:
    """A bar for a share between 0 and 1, as wide as there is room; in ASCII where need be."""

    share: float
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield full blocks for the share, light ones for the rest."""
        width = min(self.width, options.max_width)
        filled = min(max(round(self.share * width), self.share > 0), width)
        block, light = "#." if options.ascii_only else "█░"
        yield Text(block * filled, style="cyan") + Text(light * (width - filled), style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least and the full width."""
        return Measurement(min(8, self.width), min(self.width, options.max_width))


def plan_summary(
    method: str, costs: Mapping[str, Totals], layers: Mapping[str, Any]
) -> RenderableType:
    """Return the kept neurons of a plan's layers, and its costs, if known, full against slim."""
    rows = [(name, layer.neurons, len(layer.kept)) for name, layer in layers.items()]
    if not costs:
        return retained_table(rows)
    totals = {"full": costs["full"], method: costs["slim"]}
    return Group(retained_table(rows), "", totals_table(totals))


def costs_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    """Return the neurons and costs of every leaf module, as `ranp profile --json` has them."""
    columns = {"neurons": ",", "gflops": ".3f", "param_mb": ".3f", "memory_mb": ".2f"}
    headings = numbers("neurons", "GFLOPs", "params MB", "memory MB")
    result = table(*folded("layer"), "kind", *headings)
    for layer in layers:
        result.add_row(
            Text(layer["name"] or "(the network)"),  # a name is no markup, whatever is in it
            Text(layer["kind"]),
            *(format(layer[key], form) if layer[key] else "" for key, form in columns.items()),
        )
    return result


def memory_table(sizes: Mapping[str, int], optimizer: str) -> Table:
    """Return what a training step takes, in MiB."""
    result = table(
        "",
        *numbers("MiB"),
        title="A training step, predicted",
        caption="At the peak, kernels' workspaces too.",
    )
    for name, size in sizes.items():
        label = f"state of {optimizer}" if name == "optimizer" else name
        result.add_row(label, f"{size / MIB:,.1f}")
    return result


def retained_table(layers: Sequence[tuple[str, int, int]], title: str | None = None) -> Table:
    """Return the kept neurons of each layer (name, neurons, kept), as numbers and bars."""
    share_column = Column("", justify="right", style="dim")
    result = table(*folded("layer"), *numbers("kept", "of"), "", share_column, title=title)
    for name, neurons, kept in layers:
        cells = (f"{kept:,}", f"{neurons:,}", Bar(kept / neurons), percent(kept, neurons))
        result.add_row(Text(name), *cells)
    return result


def comparison_tables(comparison: ComparisonTable) -> RenderableType:
    """Return a table for every group of rows, our figures beside the paper's."""
    parts: list[RenderableType] = []
    for group in comparison.groups():
        result = table(
            "",
            *numbers(*(column.title for column in group.columns)),
            "",
            title=f"{comparison.title}: {group.title}",
            caption="ours / paper's (difference)",
        )
        for row in group.rows:
            cells = [comparison.cell(row, column) for column in group.columns]
            result.add_row(row.label.replace("`", ""), *cells, comparison.verdict(row))
        parts += [result, ""]
    return Group(*parts)
