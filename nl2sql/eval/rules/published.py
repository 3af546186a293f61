"""What published evaluators call equal, faults included, wherever they reach a verdict.

They are the 2020 test-suite evaluator with its default flags [18] (``spider``), BIRD's, LiveSQLBench's, defog's and
Spider 2.0-lite's; ``docs/evaluation.md`` says how each works.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from nl2sql.databases.sqlite.process import MAX_SQL_CHARS
from nl2sql.eval.rules.bag import columns_match, is_number
from nl2sql.eval.rules.order import order_matters
from nl2sql.interfaces import RunResult
from nl2sql.sql.parse import MAX_CHARS

Row = tuple[Any, ...]
Column = tuple[Any, ...]
Results = Sequence[RunResult]

# ------------------------------------------------------------------- the 2020 test-suite evaluator

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


def spider_prepare(sql: str) -> str:
    """What that evaluator does to ``sql`` before it executes it: operators that were split are joined, everything after
    the first statement and every DISTINCT are dropped, and ``YEAR(CURDATE())`` becomes 2020.

    >>> spider_prepare("SELECT DISTINCT a FROM t WHERE b > = 1; SELECT 2")
    'SELECT  a FROM t WHERE b >= 1;'
    """
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


def spider(gold: Results, predicted: Results, *, gold_sql: str, **_: object) -> bool:
    """Whether the results are equal on every database, each with a column order of its own.

    Values are not plugged in. Not covered: that evaluator's hangs (a bounded search takes the place of its enumeration
    of columns), and what it credits to statements that write. Its script also turns "value" into "1" in every
    prediction; its comparison, which is what is meant here, does not.
    """
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


# --------------------------------------------------------------------------------------------- BIRD

QUOTED = re.compile(r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?")
BLANK = re.compile(r"\s+|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)


def bird_prepare(sql: str) -> str:
    """The statement itself, but one that ends in two semicolons becomes two: to BIRD's driver that is an error."""
    if sql.count(";") < 2 or len(sql) > MAX_CHARS:  # the sandbox refuses longer ones
        return sql
    rest = BLANK.sub("", QUOTED.sub("x", sql)).lstrip(";")
    return f"{sql}\nSELECT" if rest.endswith(";;") else sql


def bird_set(gold: Results, predicted: Results, **_: object) -> bool:
    """Whether the sets of rows are equal on every database; columns in their order, row order and counts ignored."""
    return all(set(expected.rows) == set(actual.rows) for expected, actual in zip(gold, predicted, strict=True))


def bird_soft_f1(gold: Results, predicted: Results, **_: object) -> float:
    """The mean over databases of ``soft_f1``."""
    scores = [soft_f1(expected.rows, actual.rows) for expected, actual in zip(gold, predicted, strict=True)]
    return sum(scores) / len(scores) if scores else 1.0


def soft_f1(gold: Sequence[Row], predicted: Sequence[Row]) -> float:
    """F1 over cells. Distinct rows are paired by their place; in a pair a cell counts where the other row holds it.

    The published script pairs rows in the order of a Python set, which changes from run to run where there is text.
    Here the distinct rows keep the order of their first appearance, so the same results always score the same.

    >>> soft_f1([("a", 1)], [("a", 2)])
    0.5
    """
    ours, theirs = list(dict.fromkeys(gold)), list(dict.fromkeys(predicted))
    if not ours and not theirs:
        return 1.0
    both, paired = 0.0, min(len(ours), len(theirs))
    only_predicted, only_gold = float(len(theirs) - paired), float(len(ours) - paired)
    for expected, actual in zip(ours, theirs, strict=False):
        hits = sum(cell in expected for cell in actual)
        both += hits / len(expected)
        only_predicted += (len(actual) - hits) / len(expected)
        only_gold += sum(cell not in actual for cell in expected) / len(expected)
    return 2 * both / (2 * both + only_predicted + only_gold) if both else 0.0


# ------------------------------------------------------------------------------------- LiveSQLBench

IN_ORDER = "/* in this order */"  # ends a gold whose item's ``conditions`` ask for an order
COMMENT = re.compile(r"/\*.*?(?:\*/|(?P<open>\Z))|--[^\r\n]*(?P<last>\Z)?", re.DOTALL)  # to the end, for linear time
BLANK_LINES = re.compile(r"\n\s*\n+")
ROUND = re.compile(r"ROUND\s*\(", re.IGNORECASE)  # also of a longer word
PLACES = 2
MOST_ROUNDS = 50  # in one statement; further ones stay


def live_prepare(sql: str) -> str:
    """``sql`` without comments, the word DISTINCT and every ROUND. A comment that nothing ends stays where it is.

    >>> live_prepare("SELECT DISTINCT ROUND(a / (b + 1), 2) FROM t -- all\\n")
    'SELECT a / (b + 1) FROM t'
    """
    if len(sql) > MAX_SQL_CHARS:
        return sql  # the sandbox refuses it
    text = COMMENT.sub(lambda comment: comment[0] if comment.lastgroup else "", sql)
    text = BLANK_LINES.sub("\n", text).strip()
    return _without_round(" ".join(word for word in text.split(" ") if word.lower() != "distinct"))


def _without_round(sql: str) -> str:
    """Each ``ROUND(x, n)`` is its ``x``; brackets inside strings count, too."""
    for _ in range(MOST_ROUNDS):
        match = ROUND.search(sql)
        if not match:
            break
        depth, argument, end = 0, 0, 0
        for place in range(match.end(), len(sql)):
            if depth == 0 and sql[place] in ",)":
                argument = argument or place
            depth += (sql[place] == "(") - (sql[place] == ")")
            if depth < 0:
                end = place
                break
        if not end:
            return sql
        sql = sql[: match.start()] + sql[match.end() : argument].strip() + sql[end + 1 :]
    return sql


def livesqlbench(gold: Results, predicted: Results, *, gold_sql: str, **_: object) -> bool:
    """Whether the rows, numbers rounded to two places, are equal on every database: as lists where the gold ends in
    ``IN_ORDER``, else as sets. Not covered: test cases of an item's own; that no rows are never right."""
    kind = list if gold_sql.endswith(IN_ORDER) else set
    return all(kind(_rounded(e)) == kind(_rounded(a)) for e, a in zip(gold, predicted, strict=True))


def _rounded(result: RunResult) -> list[Row]:
    return [tuple(round(cell, PLACES) if isinstance(cell, float) else cell for cell in row) for row in result.rows]


# -------------------------------------------------------------------------------------------- defog

RELATIVE, ABSOLUTE = 1e-5, 1e-8  # how far numbers of a subset may lie apart
ASKS_FOR_ORDER = re.compile(r"\b(?:order|sort|arrange)\b", re.IGNORECASE)
MAX_CHOICES = 6  # columns in one pair of braces that are expanded: 63 golds
PIECE = re.compile(r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|--[^\n]*|/\*.*?(?:\*/|\Z)|.", re.DOTALL)


def defog_accepts(gold_sql: str) -> tuple[str, ...]:
    """The golds that ``gold_sql`` stands for: ``a; b`` is either, ``{x, y}`` any choice of those columns.

    >>> defog_accepts("SELECT {id, name} FROM t")
    ('SELECT id FROM t', 'SELECT  name FROM t', 'SELECT id,  name FROM t')
    """
    statements: list[list[str]] = [[]]
    for piece in PIECE.findall(gold_sql):
        if piece == ";":
            statements.append([])
        else:
            statements[-1].append(piece)
    golds = [choice for pieces in statements if any(map(_says_something, pieces)) for choice in _choices(pieces)]
    return tuple(dict.fromkeys(golds)) or (gold_sql,)


def _says_something(piece: str) -> bool:
    return bool(piece.strip()) and not piece.startswith(("--", "/*"))


def _choices(pieces: Sequence[str]) -> list[str]:
    sql = "".join(pieces).strip()
    plain = "".join(piece if len(piece) == 1 else "x" * len(piece) for piece in pieces).strip()  # no quoted braces
    start = plain.find("{")
    end = plain.find("}", start + 1)
    options = sql[start + 1 : end].split(",") if 0 <= start < end else []
    if not options or len(options) > MAX_CHOICES:
        return [sql]
    head, tail = sql[:start], sql[end + 1 :]
    chosen = [", ".join(some) for size in range(1, len(options) + 1) for some in combinations(options, size)]
    return [head + columns + tail.replace("GROUP BY {}", f"GROUP BY {columns}") for columns in chosen]


def defog_subset(gold: Results, predicted: Results, *, question: str = "", **_: object) -> bool:
    """Equal once duplicate rows are dropped and columns sorted by name, or the gold's columns among the prediction's.

    On every database; the order of rows counts only where ``question`` asks for an order. Not covered: what pandas does
    with mixed types and repeated column names, and numpy's broadcasting (no rows equal a gold of one row).
    """
    ordered = ASKS_FOR_ORDER.search(question) is not None
    return all(
        _exact(expected, actual, ordered) or _subset(expected, actual, ordered)
        for expected, actual in zip(gold, predicted, strict=True)
    )


def _exact(gold: RunResult, predicted: RunResult, ordered: bool) -> bool:
    if len(gold.columns) != len(predicted.columns):
        return False
    return gold.rows == predicted.rows or _by_name(gold, ordered) == _by_name(predicted, ordered)


def _by_name(result: RunResult, ordered: bool) -> list[Row]:
    by_name = sorted(range(len(result.columns)), key=lambda place: result.columns[place])
    return _distinct([tuple(row[place] for place in by_name) for row in result.rows], ordered)


def _distinct(rows: Sequence[Row], ordered: bool) -> list[Row]:
    distinct = list(dict.fromkeys(rows))
    return distinct if ordered else sorted(distinct, key=lambda row: tuple(map(_cell_rank, row)))


def _subset(gold: RunResult, predicted: RunResult, ordered: bool) -> bool:
    if not gold.rows or len(gold.rows) != len(predicted.rows):
        return False
    free = {place: sorted(column, key=_cell_rank) for place, column in enumerate(zip(*predicted.rows, strict=True))}
    chosen = []
    for column in zip(*gold.rows, strict=True):
        wanted = sorted(column, key=_cell_rank)
        place = next((p for p, cells in free.items() if _all_close(wanted, cells)), None)
        if place is None:
            return False
        free.pop(place)  # taken for good: the first that fits, without looking back
        chosen.append(place)
    ours = _distinct(gold.rows, ordered)
    theirs = _distinct([tuple(row[place] for place in chosen) for row in predicted.rows], ordered)
    return len(ours) == len(theirs) and all(map(_all_close, ours, theirs))


def _all_close(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    return len(expected) == len(actual) and all(
        e == a or (is_number(e) and is_number(a) and math.isclose(e, a, rel_tol=RELATIVE, abs_tol=ABSOLUTE))
        for e, a in zip(expected, actual, strict=True)
    )


def _cell_rank(cell: Any) -> tuple[int, Any]:
    """A key by which cells of all types can be sorted."""
    if cell is None:
        return (3, 0)
    if is_number(cell):
        return (0, cell)
    return (1, cell) if isinstance(cell, str) else (2, cell)


# --------------------------------------------------------------------------------- Spider 2.0-lite

ORDERED = "ORDER BY json_each.key"  # ends a gold table whose order counts (``benchmarks.published``)
CLOSE = 1e-2
SEARCH_ROWS = 1_000_000  # rows that a search for a choice of columns may look at
MISSING = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
        *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    )
)
NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?\s*|[+-]?inf(?:inity)?", re.I | re.ASCII)
MOST_DIGITS = 19  # of a whole number
TRUTH = {"true": True, "false": False}


def as_pandas_reads(cells: Iterable[Any]) -> Column:
    """A column after it went through a CSV file and ``pandas.read_csv``: one whose texts all are numbers is numbers
    ('007' is 7), "NA", "None", "null", "" are NULL, a column with any other text is texts.

    >>> as_pandas_reads(["7", None, 1.5]), as_pandas_reads(["7", "seven"])
    ((7, None, 1.5), ('7', 'seven'))
    """
    texts = [None if cell is None or str(cell) in MISSING else str(cell) for cell in cells]
    known = [text for text in texts if text is not None]
    if known and all(text.lower() in TRUTH for text in known):
        return tuple(None if text is None else TRUTH[text.lower()] for text in texts)
    if all(map(NUMBER.fullmatch, known)):
        return tuple(None if text is None else _number(text) for text in texts)
    return tuple(texts)


def _number(text: str) -> float:
    return int(text) if len(text) < MOST_DIGITS and text.strip().lstrip("+-").isdigit() else float(text)


def spider2(gold: Results, predicted: Results, *, gold_sql: str, **_: object) -> bool:
    """Whether each column of the gold equals some column of the prediction, on every database.

    Numbers within 0.01, NULL taken for 0; one column may serve twice. Without an order each column is sorted by itself,
    by the text of its cells: rows that were mixed up across columns count as right.
    """
    ordered = _ordered(gold_sql)
    return all(
        all(any(_match(ours, theirs, ordered=ordered) for theirs in _columns(actual)) for ours in _columns(expected))
        for expected, actual in zip(gold, predicted, strict=True)
    )


def spider2_rows(gold: Results, predicted: Results, *, gold_sql: str, **_: object) -> bool:
    """``spider2`` without its fault: whether some choice of the prediction's columns gives the gold's rows."""
    if _ordered(gold_sql):  # columns are compared place by place: rows stay together
        return spider2(gold, predicted, gold_sql=gold_sql)
    return all(_rows_match(_columns(e), _columns(a)) for e, a in zip(gold, predicted, strict=True))


def _ordered(gold_sql: str) -> bool:
    return gold_sql.endswith(ORDERED) or order_matters(gold_sql)


def _columns(result: RunResult) -> list[Column]:
    columns = zip(*result.rows, strict=True) if result.rows else ((),) * len(result.columns)
    return [tuple(0 if cell is None else cell for cell in as_pandas_reads(column)) for column in columns]


def _match(ours: Column, theirs: Column, *, ordered: bool) -> bool:
    pair = (ours, theirs) if ordered else (_by_text(ours), _by_text(theirs))
    return len(ours) == len(theirs) and all(map(_cells_close, *pair))


def _by_text(column: Column) -> Sequence[Any]:
    return sorted(column, key=lambda cell: (str(cell), is_number(cell)))


def _cells_close(expected: Any, actual: Any) -> bool:
    if is_number(expected) and is_number(actual):
        return math.isclose(expected, actual, abs_tol=CLOSE)
    return bool(expected == actual)


def _rows_match(gold: Sequence[Column], predicted: Sequence[Column]) -> bool:
    """Depth-first over the gold's columns; the rows of a partial choice must already pair off."""
    left = SEARCH_ROWS

    def extend(chosen: tuple[Column, ...]) -> bool:
        nonlocal left
        if len(chosen) == len(gold):
            return True
        for column in dict.fromkeys(predicted):
            left -= len(column)
            more = (*chosen, column)
            if left > 0 and _pair_off(gold[: len(more)], more) and extend(more):
                return True
        return False

    return extend(())


def _pair_off(gold: Sequence[Column], predicted: Sequence[Column]) -> bool:
    """Whether the rows are the same ones, in sorted order."""
    if len(gold[0]) != len(predicted[0]):
        return False
    ours, theirs = (sorted(zip(*columns, strict=True), key=_row_rank) for columns in (gold, predicted))
    return all(all(map(_cells_close, *pair)) for pair in zip(ours, theirs, strict=True))


def _row_rank(row: Column) -> list[tuple[bool, Any]]:
    """Texts before numbers, so that numbers that are only close change the order of rows as little as they can."""
    cells = [(is_number(cell), cell) for cell in row]
    return [cell for cell in cells if not cell[0]] + [cell for cell in cells if cell[0]]
