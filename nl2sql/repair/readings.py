"""SQL of other dialects, read and written as the engine writes it. Candidates only: the engine decides.

From the smallest change to the largest: the calls of the function that the engine does not have; the whole statement,
read in the engine's own dialect (sqlglot reads more of each dialect than the engine); the whole statement, read in
another dialect, but only if what the own dialect reads stays as it is.

On SQLite, ``SELECT LEN(name), qty / 2 FROM e`` gives ``SELECT LENGTH(name), qty / 2 FROM e``; read as MySQL's, whose
division is another, it would give ``CAST(qty AS REAL) / 2``.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nl2sql.repair.rewrites import PLACE, UNIT, bracket, calls_of, filled, is_text, rewritten, tokens_of
from nl2sql.sql.parse import SLIPS, parse_bounded
from nl2sql.sql.words import statement_words
from nl2sql.sql.writing import written

if TYPE_CHECKING:
    from nl2sql.repair.schema_names import SchemaNames

FOREIGN = ("mysql", "postgres", "tsql", "bigquery", "snowflake", "oracle", "duckdb", "clickhouse", "sqlite")
OR_BY_PIPES = frozenset(("mysql",))  # to whom || is OR; to others it joins texts
TEXT_IN_DOUBLE_QUOTES = frozenset(("mysql", "bigquery"))
LIMITS = frozenset(("TIES", "PERCENT"))  # of FETCH and TOP; sqlglot drops them where a dialect has none
FORMAT = re.compile(r"\bSTRFTIME\(\s*'([^']*)'", re.IGNORECASE)
SQLITE_FORMATS = frozenset("dfHjJmMsSwWY%")  # behind %, in every version; for any other one strftime gives NULL
MAX_PIECES = 300  # of one statement that are compared
BETWEEN_PIECES = frozenset(
    "select distinct from join inner left right full cross outer natural on using where group by having order limit "  # noqa: SIM905
    "offset union all except intersect as asc desc nulls first last and or case when then else end , ;".split()
)
OPERATOR = re.compile(r"[()+\-*/%|<>=]|::")


def transpiled(sql: str, names: SchemaNames) -> Iterator[str]:
    """The statement with what the engine does not know written in its own words, the smallest change first."""
    seen = {sql}
    for text in itertools.chain(_with_known_calls(sql, names), _own_reading(sql, names), _foreign_readings(sql, names)):
        if not _formats_dates(sql, text, names.dialect):
            return  # another dialect would read the same format as another one
        if text not in seen and _is_faithful(sql, text, names.dialect):
            seen.add(text)
            yield text


# ------------------------------------------------------------------------------------------- calls of one function


def _with_known_calls(sql: str, names: SchemaNames) -> Iterator[str]:
    """``sql`` with the calls of the function that the error names replaced, and everything else as it stands."""
    captured = names.captured
    function = captured.get("function") or captured.get("other") or captured.get("older") or ""
    for reader in (names.dialect, *FOREIGN) if function else ():
        if (text := _replaced_calls(sql, function, reader, names)) is not None:
            yield text


def _replaced_calls(sql: str, function: str, reader: str, names: SchemaNames) -> str | None:
    """``sql`` with each call of ``function`` read as ``reader`` does; None where one of them has no counterpart."""
    parts, done = [], 0
    for call in calls_of(sql, function, names.dialect):
        arguments = []
        for argument in call.arguments:
            if (inner := _replaced_calls(argument, function, reader, names)) is None:
                return None
            arguments.append(inner)
        if (text := _translated(function, arguments, reader, names)) is None:
            return None
        parts += [sql[done : call.start], text]
        done = call.end
    return "".join([*parts, sql[done:]])


def _translated(function: str, arguments: Sequence[str], reader: str, names: SchemaNames) -> str | None:
    """A call as the engine writes it. Arguments are kept aside, for another dialect may read them otherwise; those
    that the meaning of the call depends on (texts, numbers, units, intervals) are not."""
    kept = {at for at, argument in enumerate(arguments) if _is_kept_aside(argument, names)}
    shown = ", ".join(f"arg_{at}" if at in kept else argument for at, argument in enumerate(arguments))
    if PLACE.search(shown) or (text := _call_in(names.dialect, function, shown, reader)) is None:
        return None
    if any(not re.search(rf"\barg_{at}\b", text) for at in kept):
        return None
    return filled(re.sub(r"\barg_(\d+)\b", r"{\1}", text), arguments, names.dialect)


@functools.lru_cache(256)
def _call_in(dialect: str, function: str, arguments: str, reader: str) -> str | None:
    """``function(arguments)`` as ``reader`` reads and ``dialect`` writes it; None where it is not written otherwise."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        tree = rewritten(parse_bounded(f"SELECT {function}({arguments})", reader), dialect)
        if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
            return None
        text = tree.expressions[0].sql(dialect=dialect, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except (SqlglotError, *SLIPS):
        return None
    faithful = _is_faithful(f"SELECT {arguments}", f"SELECT {text}", dialect)
    return str(text) if faithful and not _calls(text, function, dialect) else None


def _calls(sql: str, function: str, dialect: str) -> bool:
    return next(calls_of(sql, function, dialect), None) is not None


def _is_kept_aside(argument: str, names: SchemaNames) -> bool:
    """Whether an argument is an expression that is no text, number, interval, or unit such as MONTH."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if UNIT.fullmatch(argument):
        return any(column.name.lower() == argument.lower() for table in names.used for column in table.columns)
    try:
        tree = parse_bounded(f"SELECT {argument}", names.dialect)
    except SqlglotError:
        return False
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
        return False
    node = tree.expressions[0]
    value = node.this if isinstance(node, exp.Neg) else node
    return isinstance(node, (exp.Condition, exp.Subquery)) and not isinstance(value, exp.Literal)


# ---------------------------------------------------------------------------------------------- the whole statement


def _own_reading(sql: str, names: SchemaNames) -> Iterator[str]:
    from sqlglot.errors import SqlglotError

    try:
        yield written(rewritten(parse_bounded(sql, names.dialect), names.dialect), names.dialect, strict=True)
    except (SqlglotError, *SLIPS):
        return


def _foreign_readings(sql: str, names: SchemaNames) -> Iterator[str]:
    """The statement read as another dialect. Dialects to which || is OR, or a name in double quotes a text, do not
    read a statement that has such."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    joins_texts = "||" in names.words
    known: set[str] | None = None
    for dialect in FOREIGN:
        if dialect == names.dialect or (joins_texts and dialect in OR_BY_PIPES):
            continue
        if dialect in TEXT_IN_DOUBLE_QUOTES and _quotes_a_name(sql, names):
            continue
        try:
            tree = rewritten(parse_bounded(sql, dialect), names.dialect)
            text = tree.sql(dialect=names.dialect, unsupported_level=sqlglot.ErrorLevel.RAISE)
        except (SqlglotError, *SLIPS):
            continue
        known = _known_pieces(sql, names) if known is None else known
        if known <= _pieces_of(text, names.dialect):
            yield text


def _quotes_a_name(sql: str, names: SchemaNames) -> bool:
    """Whether a table or column of the schema, or an alias, stands in double quotes."""
    known = {name.lower() for t in names.schema.tables for name in (t.name, *(c.name for c in t.columns))}
    return any(quoted.lower() in known | set(names.aliases) for quoted in re.findall(r'"([^"]+)"', sql))


def _known_pieces(sql: str, names: SchemaNames) -> set[str]:
    """The expressions of a statement that the engine's own dialect reads and needs not write otherwise. The statement
    itself need not be readable: what stands between its commas and keywords is looked at, and what is in brackets."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    function = names.captured.get("function", "").lower()
    known = set()
    for piece in itertools.islice(_pieces(sql, names.dialect), MAX_PIECES):
        if function and function in (word.lower() for word in statement_words(piece, names.dialect)):
            continue
        try:
            node = parse_bounded(f"SELECT {piece}", names.dialect)
            text = written(node, names.dialect, strict=True)
            unknown = node.find(exp.Anonymous) is not None
            if not unknown and written(rewritten(node, names.dialect), names.dialect, strict=True) == text:
                known.add(text.removeprefix("SELECT "))
        except (SqlglotError, *SLIPS):
            continue
    return known


def _pieces(sql: str, dialect: str) -> Iterator[str]:
    """What stands between commas, keywords and brackets, and each call, where it holds a bracket or an operator."""
    tokens = tokens_of(sql, dialect)

    def text(first: int, behind: int) -> Iterator[str]:
        piece = sql[tokens[first].start : tokens[behind - 1].end + 1] if first < behind else ""
        if OPERATOR.search(piece):
            yield piece

    starts = [0]  # of the piece that is open, at each depth of brackets
    for at, token in enumerate(tokens):
        if bracket(token) > 0:
            starts.append(at + 1)
        elif bracket(token) < 0 and len(starts) > 1:
            begun = starts.pop()
            yield from text(begun, at)
        elif not is_text(token) and token.text.lower().partition(" ")[0] in BETWEEN_PIECES:
            yield from text(starts[-1], at)
            starts[-1] = at + 1
    yield from text(starts[-1], len(tokens))


def _pieces_of(sql: str, dialect: str) -> set[str]:
    """The text of every node of a statement that is more than a name or a value; none where it cannot be read."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    texts = set()
    try:
        for node in parse_bounded(sql, dialect).walk():
            if not isinstance(node, (exp.Identifier, exp.Literal, exp.Column, exp.Table)):
                texts.add(written(node, dialect, strict=True))
    except (SqlglotError, *SLIPS):
        return set()
    return texts


# ------------------------------------------------------------------------------------------- what must not be lost


def _is_faithful(sql: str, text: str, dialect: str) -> bool:
    """Whether nothing is lost that sqlglot is known to lose: texts, WITH TIES, PERCENT."""
    before, after = ({word.upper() for word in statement_words(form, dialect)} for form in (sql, text))
    return not (before - after) & LIMITS and _keeps_texts(sql, text, dialect)


def _formats_dates(sql: str, text: str, dialect: str) -> bool:
    """Whether SQLite has every format that the translation asks of strftime: '%B' for a month's name gives NULL."""
    if dialect != "sqlite":
        return True
    return all("%" in form and set(re.findall(r"%(.)", form)) <= SQLITE_FORMATS for form in _made_formats(sql, text))


def _made_formats(sql: str, text: str) -> set[str]:
    return set(FORMAT.findall(text)) - set(FORMAT.findall(sql))


def _keeps_texts(sql: str, written: str, dialect: str) -> bool:
    """Whether the first word of every text is still there: sqlglot drops arguments that the dialect read has not,
    such as the second one of ISNULL(a, 'x'). Formats of dates change."""
    tokens = tokens_of(sql, dialect)
    if any(is_text(a) and is_text(b) for a, b in itertools.pairwise(tokens)):
        return False  # 'a' 'b' is one text to some; more likely a comma is missing
    texts = [token.text for token in tokens if is_text(token)]
    firsts = [word[0] for text in texts if "%" not in text and (word := re.search(r"\w+", text))]
    lost = [first for first in firsts if not re.search(rf"\b{re.escape(first)}\b", written)]
    return len(lost) <= len(_made_formats(sql, written)) - sum("%" in text for text in texts) or not lost
