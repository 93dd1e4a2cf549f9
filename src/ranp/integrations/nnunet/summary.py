"""Slim plans in the terminal: the full network against the slim one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ranp.integrations.nnunet.plans import SlimConfiguration
from ranp.report.terminal import numbers, plan_summary, table
from ranp.slimming import Plan


def slim_plans_summary(configurations: Mapping[str, SlimConfiguration]) -> RenderableType:
    """Return, for each configuration, costs, training memory and kept neurons."""
    parts: list[RenderableType] = []
    for name, about in configurations.items():
        plan = Plan.from_dict(about.plan)
        parts += [
            f"{name}, pruned from {about.source}",
            plan_summary(plan.method, plan.costs, plan.layers),
            "",
            _training(about),
            _memory_table(about),
            *_instead(about),
            "",
        ]
    return Group(*parts[:-1])


def to_dict(about: SlimConfiguration) -> dict[str, Any]:
    """Return a slim configuration as plain values without its kept neurons, for JSON."""
    plan = Plan.from_dict(about.plan)
    return {
        "source": about.source,
        "network_class_name": about.network_class_name,
        "method": plan.method,
        "settings": dict(plan.settings),
        "costs": {network: dict(totals) for network, totals in plan.costs.items()},
        "kept": {layer: len(each.kept) for layer, each in plan.layers.items()},
        "training": dict(about.training),
        "predicted_peak_bytes": dict(about.memory),
        "nnunet_estimate_gb": dict(about.nnunet_estimate),
        "instead": dict(about.instead),
    }


def _training(about: SlimConfiguration) -> Text:
    """Return what is trained with, as a line: a table's title is broken to the table's width."""
    step = about.training
    patch = "x".join(map(str, step["input"][1:]))
    precision = "" if step["precision"] == "32" else ", mixed precision"
    return Text(
        f"A training step: patch {patch}, batch {step['batch']}{precision}, {step['device']}",
        style="bold",
    )


def _memory_table(about: SlimConfiguration) -> Table:
    result = table("", *numbers("full", "slim", "of full"))
    rows = [("predicted memory, GiB", {k: v / 2**30 for k, v in about.memory.items()})]
    if about.nnunet_estimate.keys() == about.memory.keys():
        rows.append(("nnU-Net's estimate, GB", dict(about.nnunet_estimate)))
    for heading, values in rows:
        full, slim = values["full"], values["slim"]
        result.add_row(heading, f"{full:.2f}", f"{slim:.2f}", f"{100 * slim / full:.1f} %")
    return result


def _instead(about: SlimConfiguration) -> list[str]:
    """Return what nnU-Net would have done, in a line."""
    if not about.instead:
        return []
    patch = "x".join(map(str, about.instead["patch_size"]))
    return [
        f"For this budget nnU-Net would plan a patch of {patch} and a batch of "
        f"{about.instead['batch_size']} (its estimate: {about.instead['estimate']:.2f} GB)."
    ]
