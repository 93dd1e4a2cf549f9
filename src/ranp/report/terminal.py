"""One look for all tables and bars in the terminal: 80 columns are enough, colour is a bonus."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Totals = Mapping[str, float]

_COLUMNS = (
    ("gflops", "GFLOPs", ".2f"),
    ("param_mb", "params MB", ".2f"),
    ("memory_mb", "memory MB", ".2f"),
    ("neurons", "neurons", ",d"),
)


def plain(renderable: RenderableType, width: int = 80) -> str:
    """A renderable as text without colour, and without spaces at the ends of lines."""
    output = io.StringIO()
    Console(file=output, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def table(title: str | None = None, caption: str | None = None) -> Table:
    """An empty table in the house style."""
    return Table(
        title=title,
        caption=caption,
        box=None,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
        header_style="bold",
        padding=(0, 2, 0, 0),
    )


def totals_table(rows: Mapping[str, Totals], title: str | None = None) -> Table:
    """Networks side by side; every row but the first also says what share is left of the first."""
    result = table(title, caption="Counted at the traced input size, by the paper's rules.")
    result.add_column("")
    for _, heading, _ in _COLUMNS:
        result.add_column(heading, justify="right")
        if len(rows) > 1:
            result.add_column("", justify="right", style="dim")
    reference = next(iter(rows.values()))
    for name, totals in rows.items():
        cells: list[str] = []
        for key, _, form in _COLUMNS:
            value = totals[key]
            cells.append(format(int(value) if form == ",d" else value, form))
            if len(rows) > 1:
                share = value / reference[key] if reference[key] else 1.0
                cells.append("" if totals is reference else f"{100 * share:.1f} %")
        result.add_row(Text(name), *cells)
    return result


@dataclass(frozen=True)
class Bar:
    """A bar of a share of 1: as wide as there is room, readable without colour and in ASCII."""

    share: float
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Full blocks for the share, light ones for the rest."""
        width = min(self.width, options.max_width)
        filled = min(max(round(self.share * width), self.share > 0), width)
        block, light = "#." if options.ascii_only else "█░"
        yield Text(block * filled, style="cyan") + Text(light * (width - filled), style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From a stub to the full width."""
        return Measurement(min(8, self.width), min(self.width, options.max_width))


def bar(share: float, width: int = 24) -> Bar:
    """A bar of a share of 1."""
    return Bar(share, width)


class Cost(Protocol):
    """What a leaf module costs."""

    @property
    def name(self) -> str:
        """Of the module."""

    @property
    def kind(self) -> str:
        """Its class."""

    @property
    def neurons(self) -> int:
        """Output channels; 0 where there are none."""

    @property
    def flops(self) -> int:
        """Operations."""

    @property
    def parameters(self) -> int:
        """Their number."""

    @property
    def activations(self) -> int:
        """Output elements."""


class Kept(Protocol):
    """A layer of a plan."""

    @property
    def neurons(self) -> int:
        """Of the full network."""

    @property
    def kept(self) -> Sequence[int]:
        """Those that stay."""


def plan_summary(
    method: str, costs: Mapping[str, Totals], layers: Mapping[str, Kept]
) -> RenderableType:
    """What a plan comes to: full against slim, and the kept neurons of every layer."""
    rows = [(name, layer.neurons, len(layer.kept)) for name, layer in layers.items()]
    totals = {"full": costs["full"], method: costs["slim"]}
    return Group(retained_table(rows), "", totals_table(totals))


def costs_table(layers: Sequence[Cost]) -> Table:
    """The cost of every leaf module."""
    result = table()
    result.add_column("layer", overflow="fold")
    result.add_column("kind")
    for heading in ("neurons", "GFLOPs", "params MB", "memory MB"):
        result.add_column(heading, justify="right")
    for layer in layers:
        result.add_row(
            Text(layer.name or "(the network)"),  # a name is no markup, whatever is in it
            Text(layer.kind),
            f"{layer.neurons:,}" if layer.neurons else "",
            f"{layer.flops / 1e9:.3f}" if layer.flops else "",
            f"{layer.parameters * 4 / 2**20:.3f}" if layer.parameters else "",
            f"{layer.activations * 4 / 2**20:.2f}" if layer.activations else "",
        )
    return result


def memory_table(sizes: Mapping[str, int], optimizer: str) -> Table:
    """What a training step takes, in MiB."""
    result = table("A training step, predicted", caption="At the peak, kernels' workspaces too.")
    result.add_column("")
    result.add_column("MiB", justify="right")
    for name, size in sizes.items():
        label = f"state of {optimizer}" if name == "optimizer" else name
        result.add_row(label, f"{size / 2**20:,.1f}")
    return result


def retained_table(layers: Sequence[tuple[str, int, int]], title: str | None = None) -> Table:
    """Kept neurons per layer, as numbers and bars.

    Args:
        layers: Name, neurons, kept neurons.
        title: Above the table.
    """
    result = table(title)
    result.add_column("layer", overflow="fold")
    result.add_column("kept", justify="right")
    result.add_column("of", justify="right")
    result.add_column("")
    result.add_column("", justify="right", style="dim")
    for name, neurons, kept in layers:
        share = kept / neurons
        cells = (f"{kept:,}", f"{neurons:,}", bar(share), f"{100 * share:.0f} %")
        result.add_row(Text(name), *cells)
    return result
