"""Pages from templates: everything is escaped and inlined, nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ranp.report.terminal import percent as percent_of

_ROOM = 22
"""Characters of a name that always fit, in a window 1,000 pixels wide."""


def render(
    template: str,
    *,
    crumb: str,
    title: str,
    facts: Sequence[tuple[str, str]],
    command: str | None,
    about: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
    **content: Any,
) -> str:
    """Return a page from a template; a policy lets its own scripts run, by hash, and no others.

    Args:
        template: Name of the template.
        crumb: What the page is of, in its top line.
        title: Heading of the page.
        facts: Names and values below it.
        command: Command that makes the page again.
        about: Lists of names and values at the end, by heading.
        content: Further variables of the template.
    """
    assets = Path(__file__).parent / "assets"
    scripts = [(assets / name).read_text(encoding="utf-8") for name in ("page.js", "explorer.js")]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts]
    hashes = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    allowed = f"style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    frame = {"scripts": scripts, "policy": f"default-src 'none'; {allowed}"}
    head = {"crumb": crumb, "title": title, "facts": facts, "command": command, "about": about}
    return templates().get_template(template).render({**frame, **head, **content})


@cache
def templates() -> Environment:
    """Return the environment of the templates, which escapes everything."""
    environment = Environment(
        loader=PackageLoader("ranp.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figure
    environment.filters["percent"] = percent
    environment.filters["percent_of"] = percent_of
    environment.filters["code"] = code
    return environment


def figure(value: float, digits: int = 2) -> str:
    """Format a number: whole ones with separators, others with some digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def code(text: str) -> Markup:
    """Return text in which backticks mark code, as in Markdown; all else is escaped."""
    parts = re.split(r"`([^`]+)`", text)
    marked = (
        Markup("<code>{}</code>").format(part) if i % 2 else Markup.escape(part)
        for i, part in enumerate(parts)
    )
    return Markup().join(marked)


def tails_of(names: Sequence[str]) -> dict[str, int]:
    """Return by name how many characters at its end stay when its middle is cut.

    The rest of the room is for its beginning. What stays begins after a dot if it can, and is as
    near to a half as can be, so that no other name looks like it; 0 where there is no such place.
    """

    def sizes(name: str) -> list[int]:
        return sorted(
            range(4, _ROOM - 5),
            key=lambda size: (name[-size - 1 : -size] != ".", abs(size - _ROOM // 2)),
        )

    def is_unlike(name: str, size: int) -> bool:
        head, tail = name[: _ROOM - size], name[-size:]
        return sum(each.startswith(head) and each.endswith(tail) for each in set(names)) == 1

    return {name: next((n for n in sizes(name) if is_unlike(name, n)), 0) for name in names}


def percent(share: float) -> str:
    """Format a share of 1 in per cent; a small one is not shown as zero."""
    return f"{100 * share:.1f} %" if share >= 0.0005 or share == 0 else "< 0.1 %"
