"""SQL of other dialects, read and written as the engine writes it. Candidates only: the engine decides.

From the smallest change to the largest: the calls of the function that the engine does not have; the whole statement,
read in the engine's own dialect (sqlglot reads more of each dialect than the engine); the whole statement, read in
another dialect, but only if what the own dialect reads stays as it is.

On SQLite, ``SELECT LEN(name), qty / 2 FROM e`` gives ``SELECT LENGTH(name), qty / 2 FROM e``; read as MySQL's, whose
division is another, it would give ``CAST(qty AS REAL) / 2``.

>>> [call.arguments for call in calls_of("SELECT MIN(a, MAX(b)) FROM t", "min", "sqlite")]
[('a', 'MAX(b)')]
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlglot
import yaml
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError, UnsupportedError
from sqlglot.expressions import Expr
from sqlglot.tokens import Token, TokenType

from nl2sql.sql.parse import SLIPS, parse_bounded, parse_query
from nl2sql.sql.text import statement_words, tokens, written

if TYPE_CHECKING:
    from nl2sql.repair.schema_names import SchemaNames

# ----------------------------------------------------------- the calls of a function in a statement


@dataclass(frozen=True)
class Call:
    """A call: the offsets of its first character and behind its last one, and the texts of its arguments."""

    start: int
    end: int
    arguments: tuple[str, ...]


def calls_of(sql: str, function: str, dialect: str) -> Iterator[Call]:
    """The outermost calls of ``function``, in order. One whose bracket is not closed is none."""
    tokens = tokens_of(sql, dialect)
    at = 0
    while at < len(tokens) - 1:
        end = at
        if tokens[at].text.lower() == function.lower() and not is_text(tokens[at]) and bracket(tokens[at + 1]) > 0:
            depth, cuts = 0, [at + 1]  # the cuts are the tokens round the arguments
            for end in range(at + 1, len(tokens)):
                depth += bracket(tokens[end])
                if depth == 0 or (depth == 1 and tokens[end].text == "," and not is_text(tokens[end])):
                    cuts.append(end)
                if depth == 0:
                    spans = ((tokens[a].end + 1, tokens[b].start) for a, b in itertools.pairwise(cuts))
                    texts = (sql[first:behind].strip() for first, behind in spans)
                    yield Call(tokens[at].start, tokens[end].end + 1, tuple(text for text in texts if text))
                    break
            else:
                end = at
        at = end + 1


def tokens_of(sql: str, dialect: str) -> list[Token]:
    """The tokens of a statement; none where it does not lex."""
    return tokens(sql, dialect) or []


def is_text(token: Token) -> bool:
    """Whether a token is a text in quotes."""
    return bool(token.token_type is TokenType.STRING)


def is_name(token: Token) -> bool:
    """Whether a token is a name in quotes, or one that is no keyword."""
    return token.token_type in (TokenType.IDENTIFIER, TokenType.VAR)


def bracket(token: Token) -> int:
    """1 for an opening bracket, -1 for a closing one, 0 for anything else."""
    return 0 if is_text(token) else {"(": 1, ")": -1}.get(token.text, 0)


# ------------------------------------------------------------------------------------- the rewrites

FILE = Path(__file__).with_name("rewrites.yaml")
PLACE = re.compile(r"\{(\d+)\}")
ALONE = re.compile(r"(?<=[(,]) ?\{(\d+)\}(?=[,)])")  # an argument of a call, beside which no operator stands
CLOCK = frozenset(("HOUR", "MINUTE", "SECOND"))
UNITS = CLOCK | {"DAY", "MONTH", "YEAR"}
UNIT = re.compile(rf"(?:{'|'.join(sorted(UNITS))}|WEEK|QUARTER)S?", re.IGNORECASE)  # as an argument of a call
NAME = re.compile(r"[^\W\d]\w*")
OPERATORS = frozenset(("NOT", "EXISTS"))  # stand before parentheses, and are no functions


@functools.cache
def templates(dialect: str) -> dict[str, str]:
    """Function name -> how ``dialect`` writes it; none for a dialect without a section."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return dict(loaded.get(dialect) or {})


def rewritten(tree: Expr, dialect: str) -> Expr:
    """A copy of ``tree`` with the functions of ``templates`` replaced; where there are none, ``tree`` itself.

    Raises SqlglotError for what is known to have no counterpart (dates subtracted in months).

    >>> from sqlglot import parse_one
    >>> rewritten(parse_one("YEAR(d)", read="mysql"), "sqlite").sql("sqlite")
    "CAST(STRFTIME('%Y', DATE(d)) AS INTEGER)"
    """
    if not templates(dialect):
        return tree
    return tree.copy().transform(lambda node: _replacement(node, dialect) or node)


def _replacement(node: Expr, dialect: str) -> Expr | None:
    if (shifted := _shifted(node, dialect)) is not None:
        return parse_one(shifted, read=dialect)
    if not isinstance(node, exp.Func):
        return None
    name, arguments = node.sql_name().upper(), [a for a in node.iter_expressions() if not isinstance(a, exp.Var)]
    if isinstance(node, exp.Anonymous):
        name = node.name.upper()
    if isinstance(node, exp.Extract):
        name, arguments = f"EXTRACT_{node.name.upper()}", [node.expression]
    template = templates(dialect).get(name)
    if template and name == "CONCAT" and len(arguments) > 2:  # sqlglot would join them without parentheses
        template = f"({' || '.join(f'{{{place}}}' for place in range(len(arguments)))})"
    unit = node.args.get("unit")
    if name == "DATEDIFF" and ((unit is not None and unit.name.upper() != "DAY") or _names_unit(arguments)):
        raise UnsupportedError("DATEDIFF with a unit")  # the template counts days; sqlglot drops the unit or guesses
    if template is None or len({int(n) for n in PLACE.findall(template)}) != len(arguments):
        return None
    texts = [rewritten(argument, dialect).sql(dialect=dialect) for argument in arguments]
    return parse_one(filled(template, texts, dialect), read=dialect)


def filled(template: str, arguments: Sequence[str], dialect: str) -> str:
    """``template`` with its places filled; what is no column, literal or call gets parentheses beside an operator.

    >>> filled("SUBSTR({0}, -{1})", ["a || b", "n - 1"], "sqlite")
    'SUBSTR(a || b, -(n - 1))'
    """
    alone = {place.end() for place in ALONE.finditer(template)}

    def argument(place: re.Match[str]) -> str:
        text = arguments[int(place[1])]
        return text if place.end() in alone or holds_together(text, dialect) else f"({text})"

    return PLACE.sub(argument, template)


def holds_together(text: str, dialect: str) -> bool:
    """Whether an expression is a column, a literal, a call, or in parentheses: what an operator cannot take apart."""
    words = ["''" if is_text(token) else token.text for token in tokens_of(text, dialect)]
    if len(words) == 1 or (words[1::2] == ["."] * (len(words) // 2) and len(words) % 2):
        return True
    opens = words.index("(") if "(" in words else len(words)
    named = opens == 0 or (opens == 1 and NAME.fullmatch(words[0]) and words[0].upper() not in OPERATORS)
    depths = list(itertools.accumulate({"(": 1, ")": -1}.get(word, 0) for word in words[opens:]))
    return bool(named) and bool(depths) and 0 not in depths[:-1] and depths[-1] == 0


def _names_unit(arguments: Sequence[Expr]) -> bool:
    """DATEDIFF('month', a, b), which some dialects are read to have without its third argument."""
    return any(
        isinstance(a, exp.Literal) and a.name.upper().rstrip("S") in {*UNITS, "WEEK", "QUARTER"} for a in arguments
    )


def _shifted(node: Expr, dialect: str) -> str | None:
    """A date plus or minus an interval, as SQLite writes it; None for anything else."""
    if dialect != "sqlite" or not isinstance(node, (exp.Add, exp.Sub, exp.DateAdd, exp.DateSub)):
        return None
    interval = node.expression
    if isinstance(node, (exp.DateAdd, exp.DateSub)) and not isinstance(interval, exp.Interval):
        amount, unit = interval, node.args.get("unit")
    elif isinstance(interval, exp.Interval):
        amount, unit = interval.this, interval.args.get("unit")
    else:
        return None
    number = amount.name if isinstance(amount, exp.Literal) else ""
    word = unit.name.upper().rstrip("S") if unit is not None else ""
    if not number.isdigit() or word not in UNITS:
        return None
    sign = "-" if isinstance(node, (exp.Sub, exp.DateSub)) else "+"
    date = rewritten(node.this, dialect).sql(dialect=dialect)
    today, now = date in ("CURRENT_DATE", "DATE('now')"), date in ("CURRENT_TIMESTAMP", "DATETIME('now')")
    date, moment = "'now'" if today or now else date, word in CLOCK or now
    return f"{'DATETIME' if moment else 'DATE'}({date}, '{sign}{number} {word.lower()}')"


# ------------------------------------------------------------------------------------- the readings

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
    if UNIT.fullmatch(argument):
        return any(column.name.lower() == argument.lower() for table in names.used for column in table.columns)
    tree = parse_query(f"SELECT {argument}", names.dialect)
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1:
        return False
    node = tree.expressions[0]
    value = node.this if isinstance(node, exp.Neg) else node
    return isinstance(node, (exp.Condition, exp.Subquery)) and not isinstance(value, exp.Literal)


# ---------------------------------------------------------------------------------------------- the whole statement


def _own_reading(sql: str, names: SchemaNames) -> Iterator[str]:
    try:
        yield written(rewritten(parse_bounded(sql, names.dialect), names.dialect), names.dialect, strict=True)
    except (SqlglotError, *SLIPS):
        return


def _foreign_readings(sql: str, names: SchemaNames) -> Iterator[str]:
    """The statement read as another dialect. Dialects to which || is OR, or a name in double quotes a text, do not
    read a statement that has such."""
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
