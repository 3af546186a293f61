"""Count the words of the pages, and how long their sentences are: python scripts/page_words.py [--json] [FILE ...].

Code blocks, tables, headings, addresses of links and the generated references do not count. A sentence ends at ``.``,
``!``, ``?`` or ``:`` before a space, at the end of a paragraph and of a list item.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = {"docs/cli.md", "docs/configuration.md", "docs/api.md"}


def pages() -> list[Path]:
    """README and docs/, without what is generated."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.relative_to(ROOT).as_posix() not in GENERATED]


def prose(text: str) -> str:
    """The page without code blocks, tables, headings and addresses."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(#|\||!\[|::: |    (?![-*] )).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def sentences(text: str) -> list[int]:
    """The number of words of each sentence."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose(text))
    ends = re.compile(r"(?<=[.!?:])[\"')\]*`]*\s+")
    counts = [len(part.split()) for paragraph in paragraphs for part in ends.split(" ".join(paragraph.split()))]
    return [count for count in counts if count > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: README.md and docs/")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lengths = {file: sentences(file.read_text(encoding="utf-8")) for file in options.files or pages()}
    rows = [(str(file.resolve().relative_to(ROOT)), found) for file, found in lengths.items() if found]
    rows.append(("all", [count for _, found in rows for count in found]))
    result = [
        {"page": name, "words": sum(found), "sentences": len(found), "median": statistics.median(found)}
        for name, found in rows
    ]
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'page':32} {'words':>7} {'sentences':>10} {'median':>7}")
    for row in result:
        print(f"{row['page']:32} {row['words']:>7,} {row['sentences']:>10,} {row['median']:>7g}")


if __name__ == "__main__":
    main()
