"""sqlglot's parser on text that a model wrote: bounded in time, and failing in one way only.

>>> refuse_unparsable("SELECT * FROM a" + " JOIN a" * 30)
Traceback (most recent call last):
    ...
sqlglot.errors.ParseError: more than 10 joins without ON or USING

The parser runs in our own process and has no deadline. Its time grows as 2^n with n joins that have no ON or USING of
their own (``a JOIN b JOIN c ...``: 18 take two seconds, 30 hours), which is what a small model writes when it repeats
itself. On malformed text it may also raise what it was never meant to raise (TypeError for ``->> 1``).
A tree that is parsed may still be too deep for whoever walks it or writes it as SQL again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

MAX_BARE_JOINS = 10  # a few milliseconds
MAX_DEPTH = 120  # nodes within nodes, chains of AND and OR left out; writing SQL takes several frames for each
MAX_CHARS = 100_000  # what the sandbox executes at most
SLIPS = (RecursionError, ValueError, TypeError, AttributeError, LookupError)  # of sqlglot, on malformed text


def parse_bounded(sql: str, dialect: str = "sqlite") -> Expr:
    """``sqlglot.parse_one``, which raises SqlglotError alone, and refuses what takes too long or nests too deep."""
    from sqlglot import parse_one
    from sqlglot.errors import ParseError

    refuse_unparsable(sql)
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


def refuse_unparsable(sql: str) -> None:
    """Raises sqlglot's ParseError (TokenError where the text does not lex) for text that would take too long.

    Counted are joins up to the next of which no ON or USING comes; CROSS and NATURAL joins do no harm. A sound query
    is refused if it has more than ten such joins.
    """
    from sqlglot import tokenize
    from sqlglot.errors import ParseError
    from sqlglot.tokens import TokenType

    if len(sql) > MAX_CHARS:
        raise ParseError(f"{len(sql)} characters; at most {MAX_CHARS} are parsed")
    if sql.lower().count("join") <= MAX_BARE_JOINS:
        return
    bare = 0
    waiting = harmless = False
    for token in tokenize(sql, dialect="sqlite"):
        if token.token_type is TokenType.JOIN:
            bare += waiting
            waiting, harmless = not harmless, False
        elif token.token_type in (TokenType.CROSS, TokenType.NATURAL):
            harmless = True
        elif token.token_type in (TokenType.ON, TokenType.USING):
            waiting = False
    if bare + waiting > MAX_BARE_JOINS:
        raise ParseError(f"more than {MAX_BARE_JOINS} joins without ON or USING")
