"""A table of text cells, its header first, as aligned text, HTML, Markdown, LaTeX or CSV.

>>> table_text([["", "EX"], ["react", "20.0"]])
['         EX', '-----------', 'react  20.0']
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

Rows = Sequence[Sequence[str]]


def table_text(rows: Rows) -> list[str]:
    """Lines with columns of equal width, the first to the left, numbers to the right, a rule below the header."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    head, *body = (_aligned(row, widths) for row in rows)
    return [head, "-" * (sum(widths) + 2 * (len(widths) - 1)), *body]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *numbers = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in numbers)]).rstrip()


def records_text(rows: Rows, widest: int = 40) -> list[str]:
    """Lines of a query's result: every column to the left, cells cut at ``widest`` characters."""
    widths = [min(widest, max(len(row[at]) for row in rows)) for at in range(len(rows[0]))]
    return ["  ".join(cell[:widest].ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def table_html(rows: Rows, notes: Iterable[str] = ()) -> str:
    """The table and its notes, all text escaped."""
    head, *body = [[html.escape(cell) for cell in row] for row in rows]
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in body]
    shown = "<br>".join(map(html.escape, notes))
    table = f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{table}</table>" + (f"<div>{shown}</div>" if shown else "")


def table_markdown(rows: Rows) -> str:
    """The table as Markdown, numbers to the right."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def table_latex(rows: Rows) -> str:
    """The table for LaTeX with the package booktabs, numbers to the right, all text escaped.

    >>> print(table_latex([["", "EX"], ["react_plus", "20%"]]))
    \\begin{tabular}{lr}
    \\toprule
     & EX \\\\
    \\midrule
    react\\_plus & 20\\% \\\\
    \\bottomrule
    \\end{tabular}
    """
    head, *body = [" & ".join("".join(LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"])


FORMULA = re.compile(r"[=@]|[+-](?![\d.]+$)")  # a signed number is none


def table_csv(rows: Rows) -> str:
    """The table as comma-separated values. A cell that a spreadsheet would take for a formula begins with ``'``."""
    text = io.StringIO()
    safe = [[f"'{cell}" if FORMULA.match(cell) else cell for cell in row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows(safe)
    return text.getvalue().rstrip("\n")


FORMATS: Mapping[str, Callable[[Rows], str]] = {
    "text": lambda rows: "\n".join(table_text(rows)),
    "markdown": table_markdown,
    "latex": table_latex,
    "csv": table_csv,
}
