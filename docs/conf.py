"""Sphinx configuration of the documentation site. `./docs/build` builds it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.search(r'__version__ = "(.*)"', (ROOT / "src/nnhal/base/version.py").read_text("utf-8"))
assert VERSION is not None

project = "nnhal"
author = "The nnhal authors"
project_copyright = author
release = VERSION[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["changes"]
smartquotes = False  # two hyphens begin an option
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "code"  # docstrings mark code by single backquotes, as Markdown does
napoleon_use_ivar = True  # an attribute in a docstring is a description, not another member
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
# Annotations name classes of NumPy and of nnhal's internals, which have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"nnhal {release}"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
