"""What an exported file says about where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ranp.files import canonical_json
from ranp.slimming import Plan

_SCHEMA = 1


def describe_origin(versions: Mapping[str, str], plan: Plan | None) -> str:
    """JSON with the versions that wrote a file and, if there is one, the plan's identity."""
    about: dict[str, Any] = {"schema": _SCHEMA, "kind": "export", "versions": dict(versions)}
    if plan is not None:
        about |= {
            "network": plan.network,
            "method": plan.method,
            "sparsity": plan.settings.get("sparsity"),
            "plan": plan.sha256,
        }
    return canonical_json(about)
