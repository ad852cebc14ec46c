"""The documentation as a site, for Sphinx: `.ci/site` builds it into target/site.

Pages lie beside the code. They are staged where their addresses on the site will be, with links
that lead there, and so is a page of reference for each public room, by its `__all__`, and one for
each scheme.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from textwrap import indent
from types import ModuleType

from castwise import quantization
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / ".site"))
schemes = importlib.import_module("schemes")
notebook = importlib.import_module("notebook")
STAGE = ROOT / "target" / "site-source"
PAGES = (
    ".site/index.md",
    "python/castwise/**/*.md",
    "benches/README.md",
    "tests/**/*.md",
    "CHANGELOG.md",
    ".github/CONTRIBUTING.md",
    ".github/SECURITY.md",
)
NOTEBOOKS = ("python/castwise/surveys/half_hour.md",)
"""Pages that the site offers as notebooks, too."""
PROTOCOLS = (
    "castwise.checkpoint.containers.protocol",
    "castwise.checkpoint.containers.registry",
)
"""What packages import that offer something, in rooms whose other names are not public."""
PICTURES = (".github/*.svg", "benches/record/*.svg")
FRAMEWORKS = ["jax", "jaxlib", "keras", "tensorflow", "tf_keras", "torch"]
LINK = re.compile(r"(\]\(|href=\"|src=\")(?!https?:|#|mailto:)([^)#\s\"]+)")
EXAMPLE = re.compile(r"(^```python\n>>> (?:(?!^```).)*)\n\n```\n", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"'](?:https?:)?//[^\"']+"
    r"|<link\b(?=[^>]*\brel=[\"'](?:stylesheet|(?:shortcut )?icon|preload|preconnect|dns-prefetch))"
    r"[^>]*\bhref=[\"'](?:https?:)?//[^\"']+"
    r"|(?:@import\s+|url\()[\"']?(?:https?:)?//[^\"')]+"
)
"""What a browser fetches from another host when it opens a page."""

project = "castwise"
version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
highlight_language = "none"
pygments_style, pygments_dark_style = "friendly", "monokai"

html_theme = "furo"
html_title = f"castwise {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = html_logo = "static/logo.svg"
html_copy_source = False
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "versions.html", "sidebar/scroll-end.html"),
    ]
}
templates_path = ["templates"]
tags_of_releases = os.environ.get("CASTWISE_TAGS", "").split()
html_context = {
    "documentation": metadata["urls"]["Documentation"],
    "versions": ["", *tags_of_releases] if tags_of_releases else [],
}
"""The names of other versions are also those of their folders; that of `main` is empty."""
html_show_copyright = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "code"
autodoc_mock_imports = FRAMEWORKS
autodoc_default_options = {"members": True}
numpydoc_show_class_members = False
suppress_warnings = ["ref.python"]  # attributes of several classes, by their short names
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def site_path(path: PurePosixPath) -> PurePosixPath:
    """Say where a page or picture of the repository lies on the site."""
    name = path.as_posix().replace("README", "index")
    return PurePosixPath(re.sub(r"^(\.site|\.github|python/castwise)/", "", name).lower())


def stage() -> None:
    """Write all pages and pictures where they lie on the site, with links that lead there."""
    shutil.rmtree(STAGE, ignore_errors=True)
    staged = {
        path: STAGE / site_path(PurePosixPath(path.relative_to(ROOT).as_posix()))
        for pattern in (*PAGES, *PICTURES)
        for path in sorted(ROOT.glob(pattern))
    }
    for path, target in staged.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(relinked(path, target, staged), "utf-8")
        else:
            shutil.copy(path, target)
    for path in map(ROOT.joinpath, NOTEBOOKS):
        page = staged[path]
        notebook.write(path, page.with_suffix(".ipynb"))
        link = f"[This page as a notebook]({page.stem}.ipynb)"
        page.write_text(page.read_text("utf-8").replace("\n\n", f"\n\n{link}\n\n", 1), "utf-8")
    (STAGE / "schemes").mkdir()
    for scheme in quantization.schemes():
        (STAGE / "schemes" / f"{scheme.name}.md").write_text(schemes.page(scheme), "utf-8")
    (STAGE / "reference").mkdir()
    with mock(FRAMEWORKS):
        modules = list(public_modules(importlib.import_module("castwise")))
        modules += map(importlib.import_module, PROTOCOLS)
        homes = documented_names(modules)
        for module in modules:
            page = STAGE / "reference" / f"{module.__name__}.md"
            page.write_text(reference(module, homes), "utf-8")


def relinked(path: Path, target: Path, staged: dict[Path, Path]) -> str:
    """Give the text of a page, with links to other pages as they are staged.

    A link to another file of the repository leads to that file: the site offers it as a download.
    The empty line that doctest needs at the end of an example goes.
    """

    def link(found: re.Match[str]) -> str:
        linked = (path.parent / found[2]).resolve()
        if not linked.exists():
            return found[0]
        way = os.path.relpath(staged.get(linked, linked), target.parent)
        return found[1] + Path(way).as_posix()

    return LINK.sub(link, EXAMPLE.sub(r"\1\n```\n", path.read_text("utf-8")))


def public_modules(module: ModuleType) -> Iterator[ModuleType]:
    """Give a module and those that its `__all__` names, and so on."""
    yield module
    for name in module.__all__:
        member = getattr(module, name)
        if isinstance(member, ModuleType):
            yield from public_modules(member)


def documented_names(modules: list[ModuleType]) -> dict[int, str]:
    """Give the full name under which each function and class is described, by its identity.

    Of several modules that name it, that is the one in which it is defined; else the first.
    """
    homes: dict[int, str] = {}
    for module in modules:
        inside = f"{module.__name__}."
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                home = homes.setdefault(id(value), inside + name)
                is_defined_here = f"{value.__module__}.".startswith(inside)
                if is_defined_here and not home.startswith(inside):
                    homes[id(value)] = inside + name
    return homes


def reference(module: ModuleType, homes: dict[int, str]) -> str:
    """Write the page of a module: what it names, and links to what another page describes.

    Parameters
    ----------
    module : module
        What the page is of.
    homes : dict of int to str
        Where each function and class is described.

    """
    name = module.__name__
    kinds: dict[str, list[str]] = {
        kind: [] for kind in ("Functions", "Classes", "Data", "Also here", "Modules")
    }
    for member in module.__all__:
        value = getattr(module, member)
        if isinstance(value, ModuleType):
            kinds["Modules"].append(f"{name}.{member}")
        elif not callable(value):
            kinds["Data"].append(f".. autodata:: {name}.{member}\n")
        elif homes[id(value)] != f"{name}.{member}":
            kinds["Also here"].append(f"- `{member}`: :py:obj:`{homes[id(value)]}`")
        else:
            kind = "Classes" if isinstance(value, type) else "Functions"
            directive = "autoclass" if isinstance(value, type) else "autofunction"
            kinds[kind].append(f".. {directive}:: {name}.{member}\n")
    page = f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :no-members:\n```\n"
    for kind, lines in kinds.items():
        directive = "{toctree}\n:maxdepth: 1\n" if kind == "Modules" else "{eval-rst}"
        if lines:
            page += "\n".join((f"\n## {kind}\n\n```{directive}", *lines, "```\n"))
    return page


def read_fences(
    _app: Sphinx, kind: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Turn the fenced blocks of a docstring, which are Markdown, into those of reStructuredText.

    Those of a module's docstring that are plain text list its files, and are left out.
    """

    def block(fence: re.Match[str]) -> str:
        if kind == "module" and fence[1] == "text":
            return ""
        return f".. code-block:: {fence[1]}\n\n{indent(fence[2], '   ')}\n"

    lines[:] = FENCE.sub(block, "\n".join(lines)).split("\n")


def refuse_other_hosts(app: Sphinx, error: Exception | None) -> None:
    """Refuse a site with a page that makes a browser fetch something from another host."""
    for path in sorted(Path(app.outdir).rglob("*")):
        if not error and path.suffix in (".html", ".css"):
            fetched = FETCHED.search(path.read_text("utf-8"))
            if fetched:
                sys.exit(f"{path} makes a browser fetch from another host: {fetched[0]}")


def setup(app: Sphinx) -> None:
    """Read docstrings as they are written, and check the site when it is built."""
    app.connect("autodoc-process-docstring", read_fences, priority=100)  # before numpydoc
    app.connect("build-finished", refuse_other_hosts)


stage()
