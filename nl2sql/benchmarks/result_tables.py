"""Golds that are published as tables of results: Spider 2.0-lite's ``exec_result/ID.csv``, or ``ID_a.csv``, ...

A table becomes a statement that gives its rows, so that it is executed, compared and shown as any gold is. What the
official ``condition_cols`` leave out is not in it, and it has an ORDER BY where the order of rows counts.

>>> table_sql("id,name\\n1,Ada\\n2,\\n", [1], ordered=True)
'SELECT value ->> 0 AS "name" FROM json_each(\\'[["Ada"], [null]]\\') ORDER BY json_each.key'
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql.databases.schema import quote_always, quote_text
from nl2sql.errors import BenchmarkError
from nl2sql.eval.rules.spider2 import ORDERED, as_pandas_reads


def table_sql(text: str, columns: Sequence[int], *, ordered: bool) -> str:
    """The statement that gives the rows of a CSV table, of ``columns`` only (none: of all). Raises IndexError."""
    names, *rows = (row for row in csv.reader(io.StringIO(text, newline="")) if row)
    read = [as_pandas_reads(column) for column in zip(*rows, strict=True)] if rows else [()] * len(names)
    kept = [(names[place], read[place]) for place in columns or range(len(names))]
    shown = ", ".join(f"value ->> {place} AS {quote_always(name)}" for place, (name, _) in enumerate(kept))
    cells = json.dumps(list(zip(*(column for _, column in kept), strict=True)), ensure_ascii=False)
    return f"SELECT {shown} FROM json_each({quote_text(cells)})" + (f" {ORDERED}" if ordered else "")


def golds_of(id_: str, folder: Path, standard: dict[str, Any]) -> list[str]:
    """The statements of a question's tables; none where ``folder`` has no table of it. Raises BenchmarkError."""
    single = folder / f"{id_}.csv"
    variant = re.compile(re.escape(id_) + r"(_[a-z])?\.csv")
    files = [single] if single.is_file() else sorted(f for f in folder.glob(f"{id_}*.csv") if variant.fullmatch(f.name))
    columns = _columns(standard.get("condition_cols"), len(files), several=files != [single])
    try:
        return [
            table_sql(file.read_text(encoding="utf-8-sig"), chosen, ordered=not standard.get("ignore_order"))
            for file, chosen in zip(files, columns, strict=False)
        ]
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise BenchmarkError(f"{folder}/{id_}*.csv with condition_cols {columns}: {error}") from None


def _columns(declared: Any, tables: int, *, several: bool) -> list[list[int]]:
    """The columns that count, of each table: declared once for all, or a list for each."""
    if declared in (None, [], [[]], [None]):
        return [[]] * tables
    if not several or (tables > 1 and not all(isinstance(columns, list) for columns in declared)):
        return [declared] * tables
    # A single table of variants gets the first column that a flat list names, and every one where that is column 0.
    return [columns if isinstance(columns, list) else [columns] if columns else [] for columns in declared]
