"""SQL text as tokens and as a tree, the words of names and sentences, and a tree written as SQL again.

>>> edited("SELECT nme FROM customers", [(7, 10, "name")])
'SELECT name FROM customers'

Everything that reads or edits SQL text here goes by sqlglot's tokens and their offsets, or by the tree; never by
pattern matching on the text, so that a string with ``;`` or ``--`` in it survives. SQLite itself is asked about
syntax where sqlglot cannot parse: it compiles (never runs) the text against an empty in-memory database. Nothing
here touches a user's database.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from nl2sql.sql.parse import MAX_CHARS, past_limits, refuse_unparsable

DIALECT = "sqlite"

Tree: TypeAlias = exp.Expr

# What sqlglot raises on text it was never meant to read: its own errors, deep nesting, and slips of the parser.
_PARSER_FAILURES = (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, LookupError)

_KEYWORDS = """
    abort action add after all alter always analyze and as asc attach autoincrement before begin between by cascade
    case cast check collate column commit conflict constraint create cross current current_date current_time
    current_timestamp database default deferrable deferred delete desc detach distinct do drop each else end escape
    except exclude exclusive exists explain fail filter first following for foreign from full generated glob group
    groups having if ignore immediate in index indexed initially inner insert instead intersect into is isnull join
    key last left like limit match materialized natural no not nothing notnull null nulls of offset on or order
    others outer over partition plan pragma preceding primary query raise range recursive references regexp reindex
    release rename replace restrict returning right rollback row rows savepoint select set table temp temporary then
    ties to transaction trigger unbounded union unique update using vacuum values view virtual when where window
    with without true false
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""SQLite's keywords (https://www.sqlite.org/lang_keywords.html), plus ``true`` and ``false``, in lower case."""


def tokens(sql: str, dialect: str = DIALECT) -> list[Token] | None:
    """The tokens of a text, comments left out; None where it does not lex (an unclosed quote or comment)."""
    if len(sql) > MAX_CHARS:
        return None
    try:
        return list(sqlglot.tokenize(sql, dialect=dialect))
    except _PARSER_FAILURES:
        return None


def parse(sql: str) -> Tree | None:
    """The tree of exactly one statement; None where sqlglot cannot parse it (SQLite may still accept it)."""
    if len(sql) > MAX_CHARS:
        return None
    try:
        refuse_unparsable(sql)
        trees = [tree for tree in sqlglot.parse(sql, dialect=DIALECT) if tree is not None]
    except _PARSER_FAILURES:
        return None
    return trees[0] if len(trees) == 1 and not isinstance(trees[0], exp.Command) else None


def syntax_error(select: str) -> str | None:
    """SQLite's own word on the syntax of one SELECT (``near "FROM": syntax error``), or None where it is sound.

    The statement is read as the body of a view that nobody creates (EXPLAIN): unknown tables, columns and functions are
    no syntax errors, and no query is planned, whose time grows as 2^n with CTEs that name one another twice.
    """
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("EXPLAIN CREATE VIEW read AS " + select).close()
    except sqlite3.Warning as error:
        return str(error)
    except (sqlite3.Error, ValueError) as error:  # ValueError: NUL characters and lone surrogates
        message = str(error)
        return message if _is_syntax(error, message) else None
    finally:
        connection.close()
    return None


def _is_syntax(error: Exception, message: str) -> bool:
    signs = ("syntax error", "incomplete input", "unrecognized token", "too large", "overflow", "one statement")
    return isinstance(error, (ValueError, sqlite3.DataError)) or any(sign in message for sign in signs)


def top_level(stream: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Index and token of all tokens outside any parenthesis (a parenthesis itself is not outside)."""
    depth = 0
    for index, token in enumerate(stream):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif depth == 0:
            yield index, token


def edited(sql: str, replacements: Sequence[tuple[int, int, str]]) -> str:
    """``sql`` with each ``(start, end, text)`` span (end exclusive) replaced; all other characters stay."""
    for start, end, text in sorted(set(replacements), reverse=True):
        sql = sql[:start] + text + sql[end:]
    return sql


def span(identifier: Tree) -> tuple[int, int] | None:
    """The place of an identifier in the parsed text (end exclusive), quotes included; None where unknown."""
    start, end = identifier.meta.get("start"), identifier.meta.get("end")
    return None if start is None or end is None else (start, end + 1)


# -------------------------------------------------------------------------------------------- words

QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|(?<!\w)'[^']*'(?!\w)|(?<!\w)‘[^’]*’(?!\w)")  # in a question
_PIECE = re.compile(r"[^\W_]+")
_PLURALS = (("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("s", ""))
_SUFFIXES = ("ations", "ation", "ings", "ing", "ments", "ment", "ers", "er", "ors", "or", "ed", "e")
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\D)(?=\d)|(?<=\d)(?=\D)")


def words(text: str) -> list[str]:
    """Lower-case words of an identifier or sentence; snake_case and camelCase are taken apart.

    >>> words("customer_name"), statement_words("SELECT 'a b' FROM t", "sqlite")
    (['customer', 'name'], ['SELECT', 'FROM', 't'])
    """
    return [word.lower() for piece in _PIECE.findall(text) for word in _JOINT.split(piece)]


def singular(word: str) -> str:
    """The form that one and many share; at least two letters stay. No dictionary: it need not be a word.

    >>> singular("cities"), singular("movies"), singular("movie"), singular("status")
    ('city', 'movy', 'movy', 'status')
    """
    if len(word) > 4 and word.endswith("ie"):
        return word[:-2] + "y"
    for ending, instead in _PLURALS:
        if word.endswith(ending) and len(word) - len(ending) >= 2 and not word.endswith(("ss", "us", "is")):
            return word[: len(word) - len(ending)] + instead
    return word


def is_plural(word: str) -> bool:
    return word.endswith("s") and singular(word) != word


def stem(word: str) -> str:
    """The singular without one common suffix; at least three letters stay."""
    word = singular(word)
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    return word.replace("z", "s")  # organization, organisation


def letter_words(name: str) -> list[str]:
    """``words`` without the numbers."""
    return [word for word in words(name) if word.isalpha()]


def statement_words(sql: str, dialect: str) -> list[str]:
    """Words and signs of a statement without texts and comments; what does not lex is split at its words.

    A text past the limits (``sql.bounds``) is one word.
    """
    if past_limits(sql):
        return [sql]
    try:
        return [t.text for t in sqlglot.tokenize(sql, dialect=dialect) if t.token_type is not TokenType.STRING]
    except (SqlglotError, ValueError):
        return re.findall(r"\w+|[^\s\w]", sql)


# ------------------------------------------------------------------------------------------ numbers

UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
WORDS = {word: value for value, word in enumerate(UNITS)} | {word: 10 * n for n, word in enumerate(TENS, 2)}
SCALES = {"hundred": 100, "thousand": 1000}
OTHERS = {"once": 1, "twice": 2}

_GROUPED = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_UNIT = rf"(?:[ -]({'|'.join(UNITS[1:10])}))"
_TEN = re.compile(rf"\b(?:(twenty){_UNIT}|({'|'.join(TENS[1:])}){_UNIT}?)\b", re.IGNORECASE)


def as_digits(text: str) -> str:
    """The text with ``1,000``, and words for 21 to 99, as plain digits; words up to twenty stay as they are.

    >>> as_digits("the top twenty-five of 1,000")
    'the top 25 of 1000'
    """
    text = _GROUPED.sub(lambda found: found.group().replace(",", ""), text)
    return _TEN.sub(lambda found: str(sum(WORDS[word.lower()] for word in found.groups() if word)), text)


# ------------------------------------------------------------------------------------------ writing
# For SQLite sqlglot writes DECIMAL as REAL, BOOLEAN as INTEGER, and ``CAST(d AS DATE)`` as ``DATE(d)``.
# SQLite takes all three types for NUMERIC: 5 / 2 would become 2.5 instead of 2, and 2024 '2024-05-01'.
# Another dialect's SQL is best translated by sqlglot's own rules. Not covered: types that sqlglot reads
# as one (STRING as TEXT, BYTE as TINYINT).

KEPT = frozenset("DECIMAL BOOLEAN DATE DATETIME TIME TIMESTAMP TIMESTAMPNTZ BINARY".split())  # noqa: SIM905


def written(tree: Tree, dialect: str, *, strict: bool = False) -> str:
    """The SQL of a tree that was read in the same ``dialect``; the tree stays as it is.

    strict: raises sqlglot's UnsupportedError for what the dialect has no words for.

    >>> written(sqlglot.parse_one("SELECT CAST(price AS DECIMAL) / 2 FROM t", read="sqlite"), "sqlite")
    'SELECT CAST(price AS DECIMAL) / 2 FROM t'
    """
    copy = tree.copy()
    keep_types(copy, dialect)
    level = sqlglot.ErrorLevel.RAISE if strict else sqlglot.ErrorLevel.WARN
    return str(copy.sql(dialect=dialect, unsupported_level=level, copy=False))


def keep_types(tree: Tree, dialect: str) -> None:
    """Have sqlglot write the types of a tree's casts as they were read. Changes the tree, for writing only."""
    if dialect != "sqlite":
        return
    for cast in tree.find_all(exp.Cast):
        kind = cast.args["to"]
        if isinstance(kind, exp.DataType) and getattr(kind.this, "name", "") in KEPT:
            cast.set("to", exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind.sql()))


# ----------------------------------------------------------------------------------------- in lines
# Only whitespace is changed, and none inside quotes. Not covered: a query that has lines or
# comments of its own, which stays as it was written.

SHORT, LONG = 60, 20_000  # characters: a shorter query stays on one line, a longer one is not read
_OWN_LAYOUT = re.compile(r"\n|--|/\*")
_WORD = re.compile(r"""'(?:[^']|'')*'?|"[^"]*"?|`[^`]*`?|\[[^\]]*\]|\w+|\s+|[^\w\s]""")
_JOINS = ("LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "OUTER")
_SETS = ("UNION", "INTERSECT", "EXCEPT", "ALL")  # before the SELECT of a further query
_CLAUSES = frozenset(
    ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT", "JOIN", *_JOINS[:-1])
)


def in_lines(sql: str) -> str:
    """The query with a line per clause, those of a subquery indented.

    >>> print(in_lines("SELECT name FROM staff WHERE team = (SELECT id FROM teams WHERE city = 'Oslo') ORDER BY name"))
    SELECT name
    FROM staff
    WHERE team = (SELECT id
      FROM teams
      WHERE city = 'Oslo')
    ORDER BY name
    """
    query = sql.strip()
    if not SHORT < len(query) <= LONG or _OWN_LAYOUT.search(query):
        return sql
    words = _WORD.findall(query)
    holds_query = [True]  # of each open parenthesis
    text, before = "", ""
    for at, word in enumerate(words):
        upper = word.upper()
        if word == "(":
            holds_query.append(_next(words, at) in ("SELECT", "WITH"))
        elif word == ")" and len(holds_query) > 1:
            holds_query.pop()
        elif (
            holds_query[-1]
            and (upper in _CLAUSES or (upper == "SELECT" and before in _SETS))
            and not _goes_on(upper, before, _next(words, at))
        ):
            text = f"{text.rstrip()}\n{'  ' * (sum(holds_query) - 1)}" if text else text
        text += word if not word.isspace() else "" if text.endswith("\n") else " "
        before = before if word.isspace() else upper
    return text


def _next(words: list[str], at: int) -> str:
    return next((word.upper() for word in words[at + 1 : at + 3] if not word.isspace()), "")


def _goes_on(word: str, before: str, after: str) -> bool:
    """Does a word only look like the start of a clause? LEFT(...), LEFT JOIN's JOIN, a table named order."""
    if (word in ("LEFT", "RIGHT") and after == "(") or (word in ("GROUP", "ORDER") and after != "BY"):
        return True
    if word == "JOIN" or word in _JOINS:
        return before in _JOINS
    return word == "FROM" and before == "DISTINCT"
