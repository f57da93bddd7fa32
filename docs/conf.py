"""Sphinx configuration. Everything is made from files in the repository; nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import notebook  # noqa: E402
from api_pages import write_api_pages  # noqa: E402
from bs4 import BeautifulSoup  # noqa: E402  (furo needs it, too)
from inventories import write_inventory  # noqa: E402
from plain_markdown import keywords, relinked, toctrees, write_pages_from_outside  # noqa: E402

from maskgrad import __version__  # noqa: E402

project = "maskgrad"
author = "maskgrad contributors"
copyright = "2026, maskgrad contributors"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "mathematics",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "laws_table.md", "decisions/0000-template.md"]
html_math_renderer = "mathml"
# What is copied runs as it stands: without prompts, and without what was printed.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
html_theme = "furo"
html_title = f"maskgrad {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_search_scorer = str(HERE / "_static" / "scorer.js")

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # what is returned is described in prose; its type is in the signature
napoleon_custom_sections = ["Gradient", "Pattern", "State", "Dense equivalent", "Zero copy", "Source"]

# A link to a name that does not exist fails the build. Inner packages have no pages: their names are exempt.
nitpicky = True
nitpick_ignore = [
    ("py:class", "torch.utils.hooks.RemovableHandle"),  # PyTorch's pages have none for it either
    ("py:class", "BlockMask"),  # of torch.nn.attention.flex_attention, imported for type checkers only
    *(("py:class", name) for name in ("Dim", "Dtype", "Mask")),  # of arguments of maskgrad.functional
    ("py:class", "collections.abc.Hashable"),  # of an alias, which Python's pages list elsewhere
]
nitpick_ignore_regex = [
    ("py:.*", r"maskgrad\.(kernels|patterns|semantics|masked_tensor|gradients)\..*"),
    ("py:.*", r"maskgrad\.optim\.(optimizer|engine|hyperparameters|rule)\..*"),
    ("py:.*", r"maskgrad\.doctor\.(leaks|operations)\..*|dict\[str"),
    ("py:.*", r"maskgrad\.distributed\.(exchange|process_group|partition)\..*"),
    # not on PyTorch's pages, or spelled as in the source
    (
        "py:class",
        r"torch\.(distributed\.distributed_c10d|nn\.modules\.batchnorm|_C)\..*|nn\.Module|Transport",
    ),
    ("py:exc", "GradcheckError"),
    (
        "py:.*",
        r"maskgrad\.(nn\.(lookup|convolution\._Choosing)|compilation).*|torch\.nn\.modules\.(linear|sparse)\..*|torch\.autograd\.function\.Function",
    ),
    # optional packages, imported by those who call maskgrad.interop; PyTorch's pages have none for its MaskedTensor
    ("py:class", r"(ak|pa|pd|pl|sp)\..*|TorchMasked"),
]

generated = HERE / "generated"
sites = {
    "torch": "https://docs.pytorch.org/docs/stable/",
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
}
intersphinx_mapping = {name: (url, f"generated/{name}.inv") for name, url in sites.items()}
for name in sites:
    write_inventory(name, generated / f"{name}.inv")
write_api_pages(generated / "api")
(generated / "tour.md").write_text(notebook.page(notebook.read()), encoding="utf-8")
write_pages_from_outside()


def _for_sphinx(_app: Any, page: str, source: list[str]) -> None:
    source[0] = keywords(toctrees(relinked(source[0], HERE / page, HERE / page)))


def _skip_derived_methods(
    _app: Any, _kind: str, _name: str, value: Any, _skip: bool, _options: Any
) -> bool | None:
    """Methods derived from records share one signature; the coverage table lists them better than we could."""
    return True if getattr(value, "__module__", "") == "maskgrad.masked_tensor.methods" else None


#: So many pages a branch of the sidebar unfolds. A longer list is on the branch's own page.
UNFOLDED = 7


def _shorten_sidebar(_app: Any, _page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """Fold what would make the sidebar longer than a screen: long lists, and lists in lists."""
    sidebar = BeautifulSoup(context.get("furo_navigation_tree", ""), "html.parser")
    for branch in sidebar.select("li.has-children"):
        if branch.find_parent("li") or len(branch.find("ul").find_all("li", recursive=False)) > UNFOLDED:
            for part in branch.find_all(["input", "label", "ul"], recursive=False):
                part.decompose()
    context["furo_navigation_tree"] = str(sidebar)


def setup(app: Any) -> None:
    """Register what happens while pages are read."""
    app.connect("source-read", _for_sphinx)
    app.connect("autodoc-skip-member", _skip_derived_methods)
    app.connect("html-page-context", _shorten_sidebar, priority=900)  # after furo has made it
