"""The 2020 test-suite evaluator with its default flags [18], faults included, wherever it reaches a verdict.

``prepare`` does to a statement what that evaluator does before it executes: operators that were split are joined,
everything after the first statement and every DISTINCT are dropped, and ``YEAR(CURDATE())`` becomes 2020. Values are
not plugged in. Not reproduced: its hangs (a bounded search takes the place of its enumeration of columns) and what it
credits to statements that write. Its script also turns "value" into "1" in every prediction; its comparison, which is
what is meant here, does not.

>>> prepare("SELECT DISTINCT a FROM t WHERE b > = 1; SELECT 2")
'SELECT  a FROM t WHERE b >= 1;'
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nl2sql.databases.sqlite.process import MAX_SQL_CHARS
from nl2sql.eval.rules.bag import columns_match
from nl2sql.interfaces import RunResult

Row = tuple[Any, ...]

# A token as that evaluator's tokenizer cuts it, as far as DISTINCT, semicolons and brackets are concerned. In a string
# a backslash keeps the quote from closing it. What is never closed reaches to the end, for linear time.
TOKEN = re.compile(
    r"--[^\r\n]*|/\*.*?(?:\*/|\Z)"
    r"|'(?:''|\\'|[^'])*'|'(?:''|[^'])*\Z|\"(?:\"\"|\\\"|[^\"])*\"|\"(?:\"\"|[^\"])*\Z|`(?:``|[^`])*(?:`|\Z)"
    r"|\[[^\]\[]+\]|[@#:$]?\w[\w$]*|.",
    re.DOTALL,
)
NO_UTF_8 = re.compile(r"\\x[89a-f][0-9a-f]")
CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)


def prepare(sql: str) -> str:
    """The statement that is executed for ``sql``."""
    return CURRENT_YEAR.sub("2020", _rewritten(sql))


def _rewritten(sql: str) -> str:
    if len(sql) > MAX_SQL_CHARS:
        return sql  # the sandbox refuses it
    for split, joined in (("> =", ">="), ("< =", "<="), ("! =", "!=")):
        sql = sql.replace(split, joined)  # also inside strings
    kept = []
    depth = 0
    for token in TOKEN.findall(sql):
        lowered = token.lower()
        if lowered == "distinct":
            continue
        kept.append(token)
        depth += (token == "(") - (token == ")" or lowered == "end")
        if token == ";" and depth <= 0:
            break
    return "".join(kept)


def compare(gold: Sequence[RunResult], predicted: Sequence[RunResult], *, gold_sql: str, **_: object) -> bool:
    """Whether the results are equal on every database, each with a column order of its own."""
    ordered = "order by" in _rewritten(gold_sql).lower()
    return all(
        _equal(_lenient(expected.rows), _lenient(actual.rows), ordered)
        for expected, actual in zip(gold, predicted, strict=True)
    )


def _equal(gold: Sequence[Row], predicted: Sequence[Row], ordered: bool) -> bool:
    if gold is predicted or not (gold or predicted):
        return True
    if len(gold) != len(predicted) or len(gold[0]) != len(predicted[0]):
        return False
    ours, theirs = [_unordered(row) for row in gold], [_unordered(row) for row in predicted]
    if (ours != theirs) if ordered else (set(ours) != set(theirs)):
        return False
    if ordered:  # equal in some order of columns: the same columns, each as often
        return Counter(zip(*gold, strict=True)) == Counter(zip(*predicted, strict=True))
    tags = (0,) * len(gold)
    return columns_match([tags, *zip(*gold, strict=True)], [tags, *zip(*predicted, strict=True)])


def _unordered(row: Row) -> Row:
    """The cells sorted by text and type. A fault: 1 and 1.0 are equal but sort differently among other cells."""
    return tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}"))


def _lenient(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows without bytes that are not UTF-8 (the sandbox writes them as \\xfc): that evaluator reads text so."""
    if not any(isinstance(cell, str) and "\\x" in cell for row in rows for cell in row):
        return rows
    return [tuple(NO_UTF_8.sub("", cell) if isinstance(cell, str) else cell for cell in row) for row in rows]
