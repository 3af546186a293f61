"""``guarded_postprocess``: deterministic clean-up after ``clean_candidate_with_reason`` [the specification's 4.1.2].

>>> guarded_postprocess("SELECT name\\n FROM customers LIMIT 5;;", "List all customers.")
'SELECT name FROM customers LIMIT 5;'

Normalises surface noise, and leaves ORDER BY and LIMIT as the model wrote them: a question asks for an order in more
words than a list holds ("tops", "runner-up", "by seniority"), and an order that nobody asked for changes no rows. The
letter of 4.1.2 strips both where no known cue asks for a ranking: ``strip_unasked``.
"""

from __future__ import annotations

import re

from sqlglot.tokens import Token, TokenType

from nl2sql.agents.checks.constraints.cues import read_cues
from nl2sql.sql.text import KEYWORDS, tokens, top_level

_RANKING_CUES = ("ranking", "superlative", "limit", "max", "min")  # of constraints/cues.yaml
_SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.VALUES})
_TEXT_TOKENS = frozenset(
    {TokenType.STRING, TokenType.IDENTIFIER, TokenType.NATIONAL_STRING, TokenType.HEX_STRING, TokenType.RAW_STRING}
)


def guarded_postprocess(sql: str, nlq: str, *, strip_unasked: bool = False, dialect: str = "sqlite") -> str:
    """Normalise surface noise; with ``strip_unasked`` also strip an outermost ORDER BY and LIMIT without a ranking cue.

    Arguments: ``sql`` one cleaned statement; ``nlq`` the question, read with ``strip_unasked`` alone; ``dialect`` the
    database's, which decides what a token is. Returns the statement on one line with one ``;``. Noise is: whitespace
    and comments between tokens, trailing semicolons, and in SQLite backticks or brackets round a name that needs none.
    Text that does not lex comes back stripped and otherwise as it is.
    """
    stream = tokens(sql, dialect)
    while stream and stream[-1].token_type == TokenType.SEMICOLON:
        stream.pop()
    if not stream:
        return sql.strip()
    if strip_unasked and not any(cue in read_cues(nlq) for cue in _RANKING_CUES):
        stream = _without_ranking(stream)
    return _one_line(sql, stream, dialect)


def _without_ranking(stream: list[Token]) -> list[Token]:
    """The tokens of a query before its outermost ORDER BY or LIMIT."""
    clauses = (i for i, t in top_level(stream) if t.token_type in (TokenType.ORDER_BY, TokenType.LIMIT))
    return stream[: next(clauses, None)] if stream[0].token_type in _QUERY_STARTS else stream


def _one_line(sql: str, stream: list[Token], dialect: str) -> str:
    parts: list[str] = []
    end = stream[0].start
    for token in stream:
        gap = sql[end : token.start]
        if gap.strip() and not gap.lstrip().startswith(("--", "/*")):
            return sql.strip()  # characters the tokens do not account for: leave the text alone
        parts.append(" " if gap else "")
        parts.append(_token_text(sql, token, dialect))
        end = token.end + 1
    return "".join(parts) + ";"


def _token_text(sql: str, token: Token, dialect: str) -> str:
    text = sql[token.start : token.end + 1]
    if token.token_type not in _TEXT_TOKENS:
        return " ".join(text.split())  # "GROUP BY" is one token, with whatever stands between its words
    if dialect != "sqlite" or token.token_type != TokenType.IDENTIFIER or text[0] not in "`[":
        return text  # elsewhere brackets are arrays, and other words are reserved
    name, beside = text[1:-1], sql[max(token.start - 1, 0) : token.start] + sql[token.end + 1 : token.end + 2]
    glued = any(character.isalnum() or character in "_$" for character in beside)  # "SELECT[name]FROM t"
    return text if glued or not _SAFE_NAME.match(name) or name.lower() in KEYWORDS else name
