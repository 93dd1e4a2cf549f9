"""How the documentation is built: `make docs` writes it to build/docs, warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from ranp import __version__  # noqa: E402

project = "ranp"
author = "The ranp developers"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    # Our own, in _ext.
    "markdown_docstrings",
    "mathml",
    "from_the_code",
]
root_doc = "index"
exclude_patterns = ["_ext"]
# Pages that are not there are left out of the navigation; a link to one is still an error.
suppress_warnings = ["toc.empty_glob"]

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
# Typographic quotes, but no dashes: `--option` stays as it is typed.
smartquotes_action = "qe"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True

pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = f"ranp {version}"
html_static_path = ["_static"]
html_css_files = ["ranp.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e6e", "color-brand-content": "#0b6e6e"},
    "dark_css_variables": {"color-brand-primary": "#5cc8c8", "color-brand-content": "#5cc8c8"},
}
copybutton_exclude = ".linenos, .gp, .go"
