"""What ``make docs`` adds to the pages of docs/: the README, the dataset card and the literature, as pages of the site.

Links between pages are kept. A link to a file of the repository that is no page becomes the file's path in code type,
since the site knows no address of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"index.md": "README.md", "dataset-card.md": "data/README.md", "references.md": "REFERENCES.md"}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """The pages that stand outside docs/."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with each of its links led to another page, or taken away."""
    name = page.file.src_uri
    source = PAGES.get(name, f"docs/{name}")
    return _LINK.sub(lambda link: _led(link, name, source, files), markdown)


def _led(link: re.Match[str], page: str, source: str, files: Files) -> str:
    path, _, anchor = link["target"].partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    target = next((name for name, of in PAGES.items() if of == file), file.removeprefix("docs/"))
    if file == "docs/adding":
        target = "adding/README.md"
    if files.get_file_from_path(target) is None and not link["image"]:
        return f"{link['text']} (`{file}`)" if link["text"].strip("`") != file else f"`{file}`"
    address = posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{link['image']}[{link['text']}]({address}{'#' if anchor else ''}{anchor})"
