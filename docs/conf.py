"""The site (make docs): Sphinx reads the pages of this folder, and the package's docstrings without importing it."""

import re
import sys
from pathlib import Path

from astroid.astroid_manager import MANAGER
from astroid.manager import AstroidManager

ROOT = Path(__file__).parents[1]

project = "fairshard"
version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
extensions = ["myst_parser", "autoapi.extension", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"fairshard {version}"
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # they would be fetched, which a browser refuses for files without a server
myst_heading_anchors = 3


class Foreign(set):
    """What is neither the package nor the standard library.

    The reader of docstrings would follow our imports into all of torch, which takes a minute and a half and tells the
    site nothing.
    """

    def __contains__(self, name: str) -> bool:
        return name.partition(".")[0] not in {"fairshard", *sys.stdlib_module_names}


AstroidManager.brain["module_denylist"] = MANAGER.module_denylist = Foreign()

autoapi_file_patterns = ["*.py"]  # and not the stubs of the extension, which is private
autoapi_dirs = [ROOT / "python/fairshard"]
autoapi_add_toctree_entry = False
autoapi_options = ["members", "show-inheritance", "show-module-summary"]
autoapi_python_class_content = "both"
# Docstrings are prose with Markdown's or reStructuredText's accents, and not all of it parses as the latter; pages of
# figures have headings of the third level alone.
suppress_warnings = ["docutils", "autoapi", "myst.header"]


def stay_on_the_site(app: object, name: str, source: list[str]) -> None:
    """Links out of docs/ lead nowhere on the site: what they name is written out instead. Files have titles there."""
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)", r"\1 (`\2`)", source[0])
    source[0] = re.sub(r"\[\w+\.md\]\((\w+\.md)\)", r"[](\1)", source[0])


def setup(app: object) -> None:
    """Sphinx's entry."""
    app.connect("source-read", stay_on_the_site)
    app.connect("include-read", lambda app, path, name, content: stay_on_the_site(app, name, content))
