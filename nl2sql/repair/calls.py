"""The calls of a function in a statement, by its tokens: the statement need not be one that a parser takes.

>>> [call.arguments for call in calls_of("SELECT MIN(a, MAX(b)) FROM t", "min", "sqlite")]
[('a', 'MAX(b)')]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot.tokens import Token


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
    from nl2sql.sql.text import tokens

    return tokens(sql, dialect) or []


def is_text(token: Token) -> bool:
    """Whether a token is a text in quotes."""
    from sqlglot.tokens import TokenType

    return bool(token.token_type is TokenType.STRING)


def is_name(token: Token) -> bool:
    """Whether a token is a name in quotes, or one that is no keyword."""
    from sqlglot.tokens import TokenType

    return token.token_type in (TokenType.IDENTIFIER, TokenType.VAR)


def bracket(token: Token) -> int:
    """1 for an opening bracket, -1 for a closing one, 0 for anything else."""
    return 0 if is_text(token) else {"(": 1, ")": -1}.get(token.text, 0)
