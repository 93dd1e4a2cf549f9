"""What was decided, as a value, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ranp.fitting.search import Alternative, Tried
from ranp.fitting.training_step import TrainingStep
from ranp.graph import Alive
from ranp.report.terminal import folded, numbers, table
from ranp.resources.budgets import Budget, describe
from ranp.resources.training_memory import TrainingMemory

_SHOWN_ALTERNATIVES = 8
_SHOWN_HOLDERS = 5


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The least pruned network that keeps the budgets.

    Attributes:
        step: How the network is trained.
        loss: Description of the loss.
        budgets: The budgets.
        sparsity: Share of neurons that is removed; 0 if the full network keeps all budgets.
        alive: The kept channels: those of that sparsity and, for a rule that ranks no neurons,
            those that the budgets still have room for.
        figures: By network ("full", "slim"), what each resource takes: bytes, operations,
            parameters, and seconds if they are budgeted.
        binding: The budget that does not allow less pruning; None if nothing is pruned.
        methods: The methods that were tried, the one that keeps most neurons first.
        alternatives: Other ways to train within the budgets that prune less, best first.
        memory: By network, the predicted memory of a training step.
        starved: That little is left because most of the memory is out of reach; None if it is not.
        notes: Remarks on the result, one sentence each.
    """

    step: TrainingStep
    loss: str
    budgets: tuple[Budget, ...]
    sparsity: float
    alive: Alive = field(repr=False, compare=False)
    figures: Mapping[str, Mapping[str, float]]
    binding: str | None
    methods: tuple[Tried, ...]
    alternatives: tuple[Alternative, ...]
    memory: Mapping[str, TrainingMemory]
    starved: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The answer as one sentence."""
        if self.binding is None:
            what = "The full network"
            end = ": nothing is pruned."
        else:
            limit = next(b for b in self.budgets if b.resource == self.binding)
            what, end = f"Sparsity {self.sparsity:.4f}", f"; {self.binding} ({limit}) binds."
        if self.memory["full"].loss_margin:
            return f"{what} may keep every budget, but what the loss takes is not known{end}"
        return f"{what} keeps every budget{end}"

    def rows(self) -> list[dict[str, Any]]:
        """Return each resource as text: full, slim, budget; its shares of full and budget."""
        limits = {budget.resource: budget.limit for budget in self.budgets}
        rows = []
        for name, value in self.figures["slim"].items():
            full, limit = self.figures["full"].get(name), limits.get(name)
            rows.append(
                {
                    "resource": name,
                    "full": None if full is None else describe(name, full),
                    "slim": describe(name, value),
                    "budget": None if limit is None else describe(name, limit),
                    "shares": [value / each if each else None for each in (full, limit)],
                }
            )
        return rows

    def method_rows(self) -> list[dict[str, str]]:
        """Return the methods that were tried, as text; "" where one does not reach a budget.

        Couplings that make no difference to a method share a row, which does not name them.
        """
        resources = dict.fromkeys(["flops", "params", *(b.resource for b in self.budgets)])
        alike: dict[Any, list[Tried]] = {}
        for each in self.methods:
            costs = frozenset((each.figures or {}).items())
            alike.setdefault((each.method, each.neurons, costs), []).append(each)
        rows = []
        for each, *others in alike.values():
            figures = each.figures or {}
            rows.append(
                {
                    "method": each.method if others else each.label,
                    "neurons": f"{each.neurons:,}" if each.neurons else "",
                    "sparsity": "" if each.sparsity is None else f"{each.sparsity:.4f}",
                    **{n: describe(n, figures[n]) if n in figures else "" for n in resources},
                }
            )
        return rows

    def about(self) -> dict[str, Any]:
        """Return what a report says of the fit: the training step, budgets and the answer."""
        return {
            "step": {**self.step.to_dict(), "loss": self.loss},
            "rows": self.rows(),
            "verdict": self.verdict,
            "methods": rows if len(rows := self.method_rows()) > 1 else [],
            "notes": list(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        limits = {budget.resource: budget.limit for budget in self.budgets}
        slim = self.memory["slim"]
        return {
            "feasible": True,
            "budgets": limits,
            "step": self.step.to_dict(),
            "loss": self.loss,
            "budget_bytes": int(limits["memory"]) if "memory" in limits else None,
            "predicted_peak_bytes": slim.peak,
            "binding": self.binding,
            "sparsity": self.sparsity,
            "figures": {name: dict(values) for name, values in self.figures.items()},
            "memory": {name: memory.totals() for name, memory in self.memory.items()},
            "peak": {
                "phase": slim.timeline.peak_phase,
                "holders": [[h.module, h.bytes] for h in slim.holders[:_SHOWN_HOLDERS]],
            },
            "methods": [each.to_dict() for each in self.methods],
            "alternatives": [each.to_dict() for each in self.alternatives],
            "notes": list(self.notes),
        }


def fit_summary(fitted: Fitted, below: RenderableType) -> RenderableType:
    """Return what the terminal shows: budgets first, then methods, alternatives, peak, neurons."""
    memory = fitted.memory["slim"]
    at = memory.timeline.peak_place
    parts: list[RenderableType] = [
        *(_heading(f"Budgets: {fitted.step}, {fitted.loss}"), _budget_table(fitted), "")
    ]
    if len(fitted.method_rows()) > 1:
        parts += [_heading("Neurons that RANP keeps within the budgets, by resource")]
        parts += [_methods_table(fitted), ""]
    if fitted.alternatives:
        parts += [_heading("Alternatives with less pruning (sparsities to 0.01)")]
        parts += [_alternatives_table(fitted.alternatives), ""]
    parts += [_heading(f"What holds the peak of the slim network, {at}"), _peak_table(memory), ""]
    return Group(*parts, below, "", fitted.verdict, *fitted.notes)


def _heading(text: str) -> Text:
    """Return a heading on its own line: a table breaks its title to its width."""
    return Text(text, style="bold")


def _budget_table(fitted: Fitted) -> Table:
    result = table("", *numbers("full", "slim", "of full", "budget", "of budget"))
    for row in fitted.rows():
        full, budget = ("" if each is None else f"{100 * each:.1f} %" for each in row["shares"])
        figures = (row["full"] or "", row["slim"], full, row["budget"] or "", budget)
        result.add_row(row["resource"], *figures)
    return result


def _peak_table(memory: TrainingMemory) -> Table:
    result = table(*folded("layer"), *numbers("MiB"))
    for holder in memory.holders[:_SHOWN_HOLDERS]:
        name = Text(holder.module or "(between layers, loss)")  # a name is no markup
        result.add_row(name, f"{holder.bytes / 2**20:,.1f}")
    return result


def _methods_table(fitted: Fitted) -> Table:
    resources = list(dict.fromkeys(["flops", "params", *(b.resource for b in fitted.budgets)]))
    result = table("method", *numbers("neurons", "sparsity", *resources))
    for row in fitted.method_rows():
        result.add_row(*(text or "-" for text in row.values()))
    return result


def _alternatives_table(alternatives: tuple[Alternative, ...]) -> Table:
    result = table(*folded("change"), *numbers("sparsity", "memory"))
    for each in alternatives[:_SHOWN_ALTERNATIVES]:
        memory = each.figures.get("memory")
        result.add_row(
            ", ".join(each.changes),
            f"{each.sparsity:.2f}",
            "" if memory is None else describe("memory", memory),
        )
    return result
