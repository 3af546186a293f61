"""The code blocks of the pages, as a program reads them: ``blocks("docs/runs.md")``, ``commands(block)``.

A block is fenced or indented by four spaces. A command of a block of shell is a line without its comment; a line that
ends in a backslash goes on in the next.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"docs/cli.md", "docs/configuration.md", "docs/api.md"}
PROGRAMS = "nl2sql|python|pip|pytest|make|git|ray|export|echo|printf|redis-server|NL2SQL_\\w+=\\S+"


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        page: the page's path in the repository
        line: the line on which the block begins, from 1
        kind: ``shell``, or the language of the fence (``python``, ``yaml``, ...), or ``text``
        text: the code
    """

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.text.splitlines()[0][:60]})"


def pages() -> list[str]:
    """README, CONTRIBUTING, the card of the data and docs/, without the pages that are generated."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "data" / "README.md"]
    names = [page.relative_to(ROOT).as_posix() for page in [*found, *sorted((ROOT / "docs").rglob("*.md"))]]
    return [name for name in names if name not in GENERATED]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in its order."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found, i = [], 0
    while i < len(lines):
        start, fence = i + 1, re.match(r"```(\w*)$", lines[i])
        if fence:
            end = lines.index("```", start)
            found.append(_block(page, start, fence[1], lines[start:end]))
            i = end + 1
        elif re.match(r"    (?![-*] )\S", lines[i]) and (i == 0 or not lines[i - 1].strip()):
            while i < len(lines) and lines[i].startswith("    "):
                i += 1
            found.append(_block(page, start, "", [line[4:] for line in lines[start - 1 : i]]))
        else:
            i += 1
    return found


def _block(page: str, line: int, kind: str, lines: list[str]) -> Block:
    if kind in ("", "sh", "bash"):
        kind = "shell" if re.match(rf"({PROGRAMS})(\s|$)", lines[0]) else "text"
    return Block(page, line, kind, "\n".join(lines))


def commands(block: Block) -> list[str]:
    """The commands of a block of shell, without comments and line breaks."""
    lines = block.text.replace("\\\n", "").splitlines()
    return [" ".join(_without_comment(line).split()) for line in lines if _without_comment(line)]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)# .*$", "", line).strip()


def words(command: str) -> list[str]:
    """The words of a command, as a shell would split it."""
    return shlex.split(command)
