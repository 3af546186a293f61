"""sqlglot's parser on text that a model wrote: bounded in time, and failing in one way only.

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

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from nl2sql.sql.bounds import MAX_CHARS, MAX_NESTING

if TYPE_CHECKING:
    from sqlglot.expressions import Expr
    from sqlglot.tokens import Token, TokenType

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
    from sqlglot import parse_one
    from sqlglot.errors import ParseError

    refuse_unparsable(sql, dialect)
    try:
        tree = parse_one(sql, read=dialect)
    except SLIPS as error:
        raise ParseError(f"the parser failed: {type(error).__name__}: {error}") from None
    if len(sql) > MAX_DEPTH and _depth(tree) > MAX_DEPTH:
        raise ParseError(f"nested more than {MAX_DEPTH} deep")
    return tree


def _depth(tree: Expr) -> int:
    from sqlglot import expressions as exp

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
    from sqlglot import tokenize
    from sqlglot.errors import ParseError

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
    if joins:
        _refuse_bare_joins(stream)
    if nests:
        _refuse_nested(stream)
    if calls:
        _refuse_type_calls(stream, dialect)


def _refuse_bare_joins(stream: Sequence[Token]) -> None:
    from sqlglot.errors import ParseError
    from sqlglot.tokens import TokenType

    bare = 0
    waiting = harmless = False
    for token in stream:
        if token.token_type is TokenType.JOIN:
            bare += waiting
            waiting, harmless = not harmless, False
        elif token.token_type in (TokenType.CROSS, TokenType.NATURAL):
            harmless = True
        elif token.token_type in (TokenType.ON, TokenType.USING):
            waiting = False
    if bare + waiting > MAX_BARE_JOINS:
        raise ParseError(f"more than {MAX_BARE_JOINS} joins without ON or USING")


def _refuse_nested(stream: Sequence[Token]) -> None:
    """Whatever is not known to nest nothing counts as a word that does. A tree takes a kilobyte for each token."""
    from sqlglot.errors import ParseError

    if len(stream) > MAX_TOKENS:
        raise ParseError(f"{len(stream)} tokens; at most {MAX_TOKENS} are parsed")
    openings, closings, flat = _signs()
    depth = words = 0
    for token in stream:
        if token.token_type in openings:
            depth += 1
        elif token.token_type in closings:
            depth = max(0, depth - 1)
        elif token.token_type not in flat:
            words += 1
        if depth > MAX_NESTING or words > MAX_NESTED_WORDS:
            raise ParseError(f"more than {MAX_NESTING} brackets or {MAX_NESTED_WORDS} words that may nest")


def _refuse_type_calls(stream: Sequence[Token], dialect: str) -> None:
    """What is called and has the name of a type, ``date(date(...))``, is read as a type, then as a function."""
    from sqlglot.errors import ParseError
    from sqlglot.tokens import TokenType

    types = _type_tokens(dialect)
    open_calls: list[bool] = []
    previous = TokenType.SEMICOLON
    for token in stream:
        if token.token_type is TokenType.L_PAREN:
            open_calls.append(previous in types)
            if sum(open_calls) > MAX_TYPE_CALLS:
                raise ParseError(f"more than {MAX_TYPE_CALLS} calls of types in one another")
        elif token.token_type is TokenType.R_PAREN and open_calls:
            open_calls.pop()
        previous = token.token_type


@cache
def _type_tokens(dialect: str) -> frozenset[TokenType]:
    from sqlglot.dialects.dialect import Dialect

    return frozenset(Dialect.get_or_raise(dialect).parser_class.TYPE_TOKENS)


@cache
def _signs() -> tuple[frozenset[TokenType], frozenset[TokenType], frozenset[TokenType]]:
    """Tokens that open a bracket, that close one, and that nest nothing."""
    from sqlglot.tokens import TokenType

    def kinds(names: str) -> frozenset[TokenType]:
        return frozenset(TokenType[name] for name in names.split())

    return kinds("L_PAREN L_BRACKET L_BRACE"), kinds("R_PAREN R_BRACKET R_BRACE"), kinds(FLAT)
