"""A hook of the documentation site: pages and links outside docs/.

Pages are written for GitHub, so their links are paths of the repository. A few files outside docs/ are pages of the
site, too; a link to any other becomes an address of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
INCLUDED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
}
"""The files outside docs/ that are pages of the site."""
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)([^)\s]*)(?=\))")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, uri in INCLUDED.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    parts = _FENCE.split(markdown)
    parts[::2] = [rewrite(part, page.file.src_uri, config.repo_url or "") for part in parts[::2]]
    return "".join(parts)


def rewrite(markdown: str, uri: str, repository: str) -> str:
    """Return the text of a page with links that work on the site."""
    origin = next((source for source, page in INCLUDED.items() if page == uri), f"docs/{uri}")

    def resolve(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        page = INCLUDED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page is None or path.endswith(".py"):
            return f"{repository}/blob/HEAD/{path}{link[2]}"
        return posixpath.relpath(page, posixpath.dirname(uri) or ".") + link[2]

    return _LINK.sub(resolve, markdown)
