"""The result of pruning: the slim network, its plan, and the costs before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from torch import nn

from ranp.display import html_text, plain
from ranp.files import ensure_directory
from ranp.pruning import Chooser, Scores
from ranp.pruning.allocation import thin_layers
from ranp.pruning.widths import Widths, nearest_widths
from ranp.recording import make_record, write_record
from ranp.report.terminal import plan_summary
from ranp.resources import Costs
from ranp.slimming import Plan, save_weights


@dataclass(frozen=True, repr=False)
class Result:
    """A slim network, and how it was chosen.

    Attributes:
        model: The slim network, ready to train.
        plan: Which neurons were kept; portable.
        chooser: Made the plan, and can choose at any other sparsity.
        before: Costs of the full network.
        after: Costs of the slim network.
        shortfall: How many fewer neurons were removed than asked for, and which setting would
            reach it; None if the sparsity was reached.
    """

    model: nn.Module
    plan: Plan
    chooser: Chooser
    before: Costs
    after: Costs
    shortfall: str | None = None

    @property
    def scores(self) -> Scores | None:
        """Scores that the plan was chosen by; None for methods without scores."""
        return self.chooser.scores

    def save(self, directory: str | Path, **about: Any) -> Path:
        """Write plan, weights, scores and record into a directory; `ranp report` makes the page.

        Args:
            directory: Created if it does not exist.
            about: What else the report should show: command, data, measured, timelines and fit
                of `ranp.recording.make_record`.

        Returns:
            The directory.
        """
        out = ensure_directory(directory)
        self.plan.save(out / "plan.json")
        save_weights(self.model, out / "weights.safetensors")
        names = ["plan.json", "weights.safetensors"]
        if self.scores is not None:
            self.scores.save(out / "scores.safetensors")
            names.append("scores.safetensors")
        files = {name: out / name for name in names}
        about = {"files": files, "shortfall": self.shortfall, **about}
        write_record(out, make_record(self.chooser, self.plan, **about))
        return out

    def as_widths(self) -> Widths:
        """Return the constructor argument that comes closest to the slim network.

        With it you can write the network in plain code, `DynUNet(..., filters=[9, 20, 41])`.

        Raises:
            UsageError: The network has no argument for its width.
        """
        return nearest_widths(self.chooser, self.plan.alive(self.chooser.graph))

    def summary(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        short = {} if self.shortfall is None else {"shortfall": self.shortfall}
        return {**self.plan.summary(), **short, "warnings": self.warnings}

    def __rich__(self) -> RenderableType:
        """Return kept neurons of every layer, costs before and after, notes of the tracing."""
        notes = [Text(note) for note in (*self.chooser.graph.notes, self.shortfall) if note]
        return Group(plan_summary(self.plan.method, self.plan.costs, self.plan.layers), *notes)

    @property
    def warnings(self) -> list[str]:
        """Layers that are too thin: a single channel, or too few to tell the classes apart."""
        graph = self.chooser.graph
        return thin_layers(graph, self.plan.alive(graph))

    def __str__(self) -> str:
        return plain(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.plan!r})"

    def _repr_html_(self) -> str:
        return html_text(str(self))
