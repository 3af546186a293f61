"""Count the house: python scripts/house_figures.py [FOLDER] [--scripts FOLDER] [--tests FOLDER] [--step FILE ...].

Without a folder this package is counted; any folder of Python can stand there, so that others are measured beside it:

    python scripts/house_figures.py ../mini-swe-agent/src/minisweagent --step agents/default.py

- door: a file's module docstring and the imports outside its functions, up to the last one, blank lines not counted;
- small, one importer: files under 100 lines, no ``__init__``, whose module one other file of the folder imports;
- step: the lines of the files that one reads to know one step of the loop (``--step``, paths below the folder);
- comments: lines of nothing but a comment;
- twice: lines in a run of six or more (without blank lines, comments, imports) that stands at another place too.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEP = [f"agents/{name}.py" for name in ("react", "task", "agent_tools", "turns", "forms")]
RUN = 6  # lines that are the same in a row


def modules(folder: Path) -> dict[Path, str]:
    """The text of each Python file below the folder."""
    files = sorted(file for file in folder.rglob("*.py") if "__pycache__" not in file.parts)
    return {file: file.read_text(encoding="utf-8") for file in files}


def lines(texts: Iterable[str]) -> int:
    return sum(text.count("\n") for text in texts)


def door(text: str) -> int:
    """The lines of a module's docstring and of its imports."""
    tree = ast.parse(text)
    nodes: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if ast.get_docstring(tree) is not None:
        nodes.append(tree.body[0])
    return sum(part.strip() != "" for node in nodes for part in text.splitlines()[node.lineno - 1 : node.end_lineno])


def imported(text: str, package: Sequence[str]) -> set[str]:
    """The dotted names that a module asks for; ``package`` is where it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{name.name}" for name in node.names}
    return names


def importers(texts: dict[Path, str], folder: Path) -> Counter[Path]:
    """By how many other files of the folder each file is imported."""
    dotted = {file: file.relative_to(folder.parent).with_suffix("").parts for file in texts}
    asked = {file: imported(text, dotted[file][:-1]) for file, text in texts.items()}
    return Counter(
        file for file, parts in dotted.items() for other in texts if other != file and ".".join(parts) in asked[other]
    )


def functions(texts: Iterable[str]) -> list[int]:
    """The lines of each function."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(node.end_lineno or 0) - node.lineno + 1 for node in nodes if isinstance(node, kinds)]


def twice(texts: dict[Path, str]) -> int:
    """The lines of the runs that stand at two places."""
    kept: dict[Path, list[tuple[int, str]]] = {}
    for file, text in texts.items():
        numbered = enumerate(part.strip() for part in text.splitlines())
        kept[file] = [(i, part) for i, part in numbered if part and not part.startswith(("#", "import ", "from "))]
    places: dict[tuple[str, ...], list[tuple[Path, int]]] = {}
    for file, numbered_lines in kept.items():
        for at in range(len(numbered_lines) - RUN + 1):
            run = tuple(part for _, part in numbered_lines[at : at + RUN])
            places.setdefault(run, []).append((file, at))
    same = (place for found in places.values() if len(found) > 1 for place in found)
    return len({(file, kept[file][at + i][0]) for file, at in same for i in range(RUN)})


def figures(folder: Path, step: Sequence[str]) -> dict[str, float]:
    """All that is counted of one folder."""
    texts = modules(folder)
    count, rows = lines(texts.values()), [row for text in texts.values() for row in text.splitlines()]
    by, lengths = importers(texts, folder), functions(texts.values())
    small = [file for file, text in texts.items() if text.count("\n") < 100 and file.stem != "__init__"]
    return {
        "lines": count,
        "files": len(texts),
        "door lines": sum(door(text) for text in texts.values()),
        "files under 100 lines with one importer": sum(by[file] == 1 for file in small),
        "lines of one step of the loop": lines(texts[folder / name] for name in step),
        "files of one step of the loop": len(step),
        "lines over 100 characters": sum(len(row) > 100 for row in rows),
        "comments, % of lines": round(100 * sum(row.lstrip().startswith("#") for row in rows) / max(count, 1), 1),
        "lines that stand twice": twice(texts),
        "function lines, median": statistics.median(lengths or [0]),
        "functions of 20 lines and less, %": round(100 * sum(n <= 20 for n in lengths) / max(len(lengths), 1), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="default: this package, its scripts and tests")
    parser.add_argument("--scripts", type=Path, help="a folder whose lines are counted beside it")
    parser.add_argument("--tests", type=Path, help="the same")
    parser.add_argument("--step", nargs="*", help="files of one step of the loop, below the folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    own = options.folder is None
    folder = (ROOT / "nl2sql" if own else options.folder).resolve()
    beside = {"scripts": options.scripts or (ROOT / "scripts" if own else None)}
    beside["tests"] = options.tests or (ROOT / "tests" if own else None)
    step = options.step if options.step is not None else STEP if own else []
    if missing := [str(place) for place in (folder, *(folder / name for name in step)) if not place.exists()]:
        parser.error(f"{', '.join(missing)}: not there")
    result = figures(folder, step)
    result |= {f"{name} lines": lines(modules(place).values()) for name, place in beside.items() if place}
    print(json.dumps(result, indent=2) if options.json else "\n".join(f"{result[k]:>9,}  {k}" for k in result))


if __name__ == "__main__":
    main()
