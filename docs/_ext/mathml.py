"""Equations as MathML, which browsers draw by themselves: no script, no fonts, no network."""

from __future__ import annotations

import re
from itertools import cycle
from typing import Any

from docutils import nodes
from latex2mathml import converter
from sphinx.application import Sphinx

_TAG = re.compile(r"\\tag\{([^}]*)\}")
_BAR = "<mo>&#x0007C;</mo>"


def convert(latex: str, display: str = "inline") -> str:
    """MathML in which the bars of \\lvert and \\rvert are brackets, not operators with space."""
    forms = cycle(("prefix", "postfix"))
    bars = lambda _: f'<mo stretchy="false" form="{next(forms)}">|</mo>'  # noqa: E731
    return re.sub(_BAR, bars, converter.convert(latex, display=display))


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    latex = node.astext()
    tag = _TAG.search(latex)
    anchor = f'<a id="eq-{tag[1]}"></a><span class="eqno">({tag[1]})</span>' if tag else ""
    equation = convert(_TAG.sub("", latex).strip(), display="block")
    self.body.append(f'<div class="equation">{equation}{anchor}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
