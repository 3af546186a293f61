"""The door for texts that a model wrote: what is too long or too deep is refused, and sqlglot fails in one way.

>>> refuse_unparsable("SELECT * FROM a" + " JOIN a" * 30)
Traceback (most recent call last):
    ...
sqlglot.errors.ParseError: more than 10 joins without ON or USING

The parser runs in our own process and has no deadline. Its time grows as 2^n with n joins that have no ON or USING of
their own (``a JOIN b JOIN c ...``: 18 take two seconds, 30 hours), which is what a small model writes when it repeats
itself, and with n calls of what has the name of a type in one another (``date(date(...))``). It recurses in compiled
code that never looks at its stack: a few thousand open brackets, or NOT or CASE as often, end the process. On malformed
text it may also raise what it was never meant to raise (TypeError for ``->> 1``).
A tree that is parsed may still be too deep for whoever walks it or writes it as SQL again.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlglot import exp, parse_one, tokenize
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.expressions import Expr, Query
from sqlglot.tokens import TokenType

# ------------------------------------------------------------------------------------------- bounds
# A back end may answer anything: megabytes, thousands of open brackets, ``Action: x[`` ten thousand
# times. The compiled SQL parser recurses without looking at its stack, and patterns that look for a
# closing bracket take quadratic time where none comes. ``past_limits`` says in linear time whether
# a text may be read at all. ``bounded`` is the door of an episode; what reads texts from elsewhere
# (prediction files, a user's tool) asks ``past_limits`` itself.

P = ParamSpec("P")
T = TypeVar("T")
MAX_CHARS = 40_000  # reading one of these takes up to 50 MB
MAX_NESTING = 200  # brackets of one kind that are open at once; SQLite's own parser stops at 100 levels
CACHED_CHARS = 500  # longer texts, and the trees of longer texts, are not kept
REFUSED = "(past_limits: "  # begins the text that stands for one past the limits

_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))
_JSON_MARK = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


def past_limits(text: str) -> str:
    """Why ``text`` may not be read, as ``nested 4000 deep; ...``; "" for one within the limits. Takes linear time."""
    if len(text) > MAX_CHARS:
        return f"{len(text)} characters; at most {MAX_CHARS} are read"
    for opening, closing in _PAIRS:
        if text.count(opening) > MAX_NESTING and (depth := _nesting(text, opening, closing)) > MAX_NESTING:
            return f"{depth} {opening} open at once; at most {MAX_NESTING} levels are read"
    return ""


def bounded(text: str) -> str:
    """``text`` as an episode reads it: as it is, or one line that begins with ``REFUSED``, neither action nor SQL."""
    reason = past_limits(text)
    return f"{REFUSED}{reason})" if reason else text


def decode_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at ``start``, and where it ends.

    Raises ValueError for what is not JSON, holds a number of thousands of digits, or nests deeper than the limit.
    """
    if text.count("[", start) + text.count("{", start) > MAX_NESTING:
        _refuse_deep_json(text, start)
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deep") from None


def load_json(text: str) -> Any:
    """The JSON value that ``text`` is. Raises ValueError, as ``decode_json``."""
    text = text.strip(" \t\r\n")
    value, end = decode_json(text)
    if end < len(text):
        raise ValueError("more behind the value")
    return value


def remember_short(size: int) -> Callable[[Callable[Concatenate[str, P], T]], Callable[Concatenate[str, P], T]]:
    """``lru_cache(size)`` for functions of a text, by which long texts pass: a cache holds what its keys weigh."""

    def decorate(read: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
        kept: Any = functools.lru_cache(maxsize=size)(read)

        @functools.wraps(read)
        def reading(text: str, *args: P.args, **options: P.kwargs) -> T:
            result: T = (kept if len(text) <= CACHED_CHARS else read)(text, *args, **options)
            return result

        reading.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
        return reading

    return decorate


def _nesting(text: str, opening: str, closing: str) -> int:
    """The most brackets of one kind that are open at once; strings and comments are read like all else."""
    deepest = depth = 0
    for mark in re.findall(f"[{re.escape(opening + closing)}]", text):
        depth = depth + 1 if mark == opening else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _refuse_deep_json(text: str, start: int) -> None:
    """Raises ValueError where the value at ``start`` nests deeper than the limit; brackets in strings do not count."""
    depth = 0
    for mark in _JSON_MARK.finditer(text, start):
        sign = mark[0]
        depth += (sign in "[{") - (sign in "]}")
        if depth > MAX_NESTING:
            raise ValueError(f"nested more than {MAX_NESTING} deep")
        if depth <= 0:
            return


# ---------------------------------------------------------------------------- sqlglot within bounds

MAX_BARE_JOINS = 10  # a few milliseconds
MAX_TYPE_CALLS = 8  # such as date(date(...)): time doubles with each; 30 ms
MAX_DEPTH = 120  # nodes within nodes, chains of AND and OR left out; writing SQL takes several frames for each
MAX_NESTED_WORDS = 1000  # that may open something without a bracket, such as NOT and CASE, in one text
MAX_TOKENS = 12_000
SHORT = 5_000  # characters: too few to overflow a stack without brackets
FLAT = "COMMA DOT STRING NUMBER VAR IDENTIFIER NULL TRUE FALSE STAR SEMICOLON AND OR EQ PLUS DPIPE ALIAS"
SLIPS = (RecursionError, ValueError, TypeError, AttributeError, LookupError)  # of sqlglot, on malformed text


def parse_bounded(sql: str, dialect: str = "sqlite") -> Expr:
    """``sqlglot.parse_one``, which raises SqlglotError alone, and refuses what takes too long or nests too deep."""
    refuse_unparsable(sql, dialect)
    try:
        tree = parse_one(sql, read=dialect)
    except SLIPS as error:
        raise ParseError(f"the parser failed: {type(error).__name__}: {error}") from None
    if len(sql) > MAX_DEPTH and _depth(tree) > MAX_DEPTH:
        raise ParseError(f"nested more than {MAX_DEPTH} deep")
    return tree


def parse_query(sql: str, dialect: str = "sqlite") -> Query | None:
    """The tree of one query; None for what cannot be parsed as one."""
    try:
        tree = parse_bounded(sql, dialect)
    except (SqlglotError, RecursionError):
        return None
    return tree if isinstance(tree, exp.Query) else None


def _depth(tree: Expr) -> int:
    deepest = 0
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        below = depth + (not isinstance(node, (exp.And, exp.Or)))
        waiting += [(child, below) for child in node.iter_expressions()]
    return deepest


def refuse_unparsable(sql: str, dialect: str = "sqlite") -> None:
    """Raises sqlglot's ParseError (TokenError where the text does not lex) for text that no parser should be given.

    That is what would take too long, and what would overflow its stack. Counted are joins up to the next of which no
    ON or USING comes (CROSS and NATURAL joins do no harm), and what may nest: brackets, words that open something, and
    calls of what has the name of a type. A sound query is refused if it has more than ten such joins, 200 brackets or
    eight such calls in one another, or a thousand such words.
    """
    if len(sql) > MAX_CHARS:
        raise ParseError(f"{len(sql)} characters; at most {MAX_CHARS} are parsed")
    joins = sql.lower().count("join") > MAX_BARE_JOINS
    nests = len(sql) > SHORT or sum(map(sql.count, "([{<")) > MAX_NESTING
    calls = sql.count("(") > MAX_TYPE_CALLS
    if not (joins or nests or calls):
        return
    try:
        stream = tokenize(sql, dialect=dialect)
    except SLIPS as error:
        raise ParseError(f"the tokenizer failed: {type(error).__name__}: {error}") from None
    if nests and len(stream) > MAX_TOKENS:  # a tree takes a kilobyte for each
        raise ParseError(f"{len(stream)} tokens; at most {MAX_TOKENS} are parsed")
    openings, closings, flat, types = _signs(dialect)
    bare = depth = words = 0
    waiting = harmless = False  # for the ON or USING of a join; of the next join
    typed: list[bool] = []  # of each open parenthesis: date( is read as a type, then as a function
    previous = TokenType.SEMICOLON
    for kind in (token.token_type for token in stream):
        if kind is TokenType.JOIN:
            bare += waiting
            waiting, harmless = not harmless, False
        elif kind in (TokenType.CROSS, TokenType.NATURAL):
            harmless = True
        elif kind in (TokenType.ON, TokenType.USING):
            waiting = False
        if kind in openings:
            depth += 1
        elif kind in closings:
            depth = max(0, depth - 1)
        elif kind not in flat:  # whatever is not known to nest nothing counts as a word that does
            words += 1
        if nests and (depth > MAX_NESTING or words > MAX_NESTED_WORDS):
            raise ParseError(f"more than {MAX_NESTING} brackets or {MAX_NESTED_WORDS} words that may nest")
        if kind is TokenType.L_PAREN:
            typed.append(previous in types)
            if sum(typed) > MAX_TYPE_CALLS:
                raise ParseError(f"more than {MAX_TYPE_CALLS} calls of types in one another")
        elif kind is TokenType.R_PAREN and typed:
            typed.pop()
        previous = kind
    if bare + waiting > MAX_BARE_JOINS:
        raise ParseError(f"more than {MAX_BARE_JOINS} joins without ON or USING")


@cache
def _signs(dialect: str) -> tuple[frozenset[TokenType], ...]:
    """Tokens that open a bracket, that close one, that nest nothing, and that are types of the dialect."""
    kinds = ("L_PAREN L_BRACKET L_BRACE", "R_PAREN R_BRACKET R_BRACE", FLAT)
    types = frozenset(Dialect.get_or_raise(dialect).parser_class.TYPE_TOKENS)
    return *(frozenset(TokenType[name] for name in names.split()) for names in kinds), types
