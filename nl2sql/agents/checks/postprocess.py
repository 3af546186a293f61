"""``guarded_postprocess``: deterministic clean-up after ``clean_candidate_with_reason`` [the specification's 4.1.2].

>>> guarded_postprocess("SELECT name FROM customers LIMIT 5;;", "List all customers.")
'SELECT name FROM customers;'

Strips an outermost ORDER BY or LIMIT that the question does not ask for, and normalises surface noise. A guardrail
must not destroy right SQL: wherever the question has a word that could have asked for the clause, or no common English
word, it stays. The words are in ``ranking_cues.yaml``. Clauses inside subqueries, CTEs, derived tables and window
definitions are never touched.
"""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from sqlglot.tokens import Token, TokenType

from nl2sql.agents.checks.numbers import numbers_of
from nl2sql.sql.text import KEYWORDS, tokens, top_level

_ONE_OF_THEM = re.compile(r"\b(?:a|an|another|one)\b", re.I)
_SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.VALUES})
_TEXT_TOKENS = frozenset(
    {TokenType.STRING, TokenType.IDENTIFIER, TokenType.NATIONAL_STRING, TokenType.HEX_STRING, TokenType.RAW_STRING}
)


@dataclass(frozen=True)
class _Asked:
    """The demands of a question, as far as ORDER BY and LIMIT are concerned."""

    english: bool
    order: bool
    ranking: bool
    comparison: bool
    some_rows: bool
    numbers: frozenset[int]
    one_row: bool


def guarded_postprocess(sql: str, nlq: str, *, keep_order: bool = False, dialect: str = "sqlite") -> str:
    """Strip an unasked outermost ORDER BY / LIMIT and normalise surface noise.

    Arguments: ``sql`` one cleaned statement; ``nlq`` the question; ``keep_order`` leaves an ORDER BY without LIMIT as
    it is; ``dialect`` the database's, which decides what a token is. Returns the statement on one line with one ``;``.
    Noise is: whitespace and comments between tokens, trailing semicolons, and in SQLite backticks or brackets round a
    name that needs none. Text that does not lex comes back stripped and otherwise as it is.

    - ORDER BY without LIMIT goes when no word of the question asks for an order or a ranking, and it compares nothing.
      It changes no rows, and a gold may order without being asked: ``keep_order`` is what that costs. After DISTINCT ON
      (PostgreSQL, DuckDB), and before FETCH or OFFSET, where the order decides which rows are kept, it stays.
    - ORDER BY with LIMIT goes when, besides, the question has no quantity word and not the limit's number.
    - LIMIT alone (or after an ORDER BY that is asked for as a mere sort) goes when the question has neither the
      number, nor a quantity word, nor a ranking word.
    """
    stream = tokens(sql, dialect)
    while stream and stream[-1].token_type == TokenType.SEMICOLON:
        stream.pop()
    if not stream:
        return sql.strip()
    kept = _without_unasked_tail(stream, nlq, keep_order)
    return _one_line(sql, kept, dialect)


def _without_unasked_tail(stream: list[Token], nlq: str, keep_order: bool) -> list[Token]:
    clauses = [(i, t) for i, t in top_level(stream) if t.token_type in (TokenType.ORDER_BY, TokenType.LIMIT)]
    kinds = [token.token_type for _, token in clauses]
    if not kinds or len(set(kinds)) < len(kinds) or stream[0].token_type not in _QUERY_STARTS or _distinct_on(stream):
        return stream  # nothing to strip, or no statement that means anything
    if TokenType.LIMIT not in kinds and _picks_rows(stream[clauses[0][0] :]):
        return stream
    at = {token.token_type: index for index, token in clauses}
    order_at, limit_at = at.get(TokenType.ORDER_BY, -1), at.get(TokenType.LIMIT, -1)
    if limit_at < 0 and keep_order:
        return stream
    asked = asked_order(nlq)
    if not asked.english:
        return stream
    if limit_at < 0:
        return stream if asked.order or asked.ranking or asked.comparison else stream[:order_at]
    limited = _limit_is_asked(stream[limit_at + 1 :], asked)
    if 0 <= order_at < limit_at:
        if limited or asked.ranking or asked.comparison:
            return stream
        single = [token.text for token in stream[limit_at + 1 :]] == ["1"]
        if asked.order:
            return stream if single else stream[:limit_at]
        return stream[:order_at]
    return stream if limited or asked.ranking or order_at > limit_at else stream[:limit_at]


def _distinct_on(stream: list[Token]) -> bool:
    pairs = itertools.pairwise(token.token_type for token in stream)
    return (TokenType.DISTINCT, TokenType.ON) in pairs


def _picks_rows(tail: list[Token]) -> bool:
    """Whether an ORDER BY without LIMIT decides all the same which rows are kept: FETCH FIRST, or OFFSET alone."""
    return any(token.token_type in (TokenType.FETCH, TokenType.OFFSET) for _, token in top_level(tail))


def _limit_is_asked(tail: list[Token], asked: _Asked) -> bool:
    numbers = [int(token.text) for token in tail if token.token_type == TokenType.NUMBER and token.text.isdigit()]
    if len(tail) != 1 or not numbers:  # an offset, an expression or a parameter: nobody writes that by accident
        return True
    return asked.some_rows or numbers[0] in asked.numbers or (numbers[0] == 1 and asked.one_row)


@functools.lru_cache(maxsize=256)
def asked_order(nlq: str) -> _Asked:
    """The order, ranking, some rows and numbers that a question's words ask for."""
    words = re.findall(r"[^\W_]+(?:'[a-z]+)?", nlq.lower())
    text = f" {' '.join(words)} "
    cues = {kind: _pattern(kind) for kind in ("sort", "ranking", "comparison", "quantity", "no_cue", "english")}
    plain = cues["no_cue"].sub(" ", text)
    superlative = any(
        word.endswith("est") and len(word) > 4 and word not in _cue_lists()["not_superlative"] for word in words
    )
    return _Asked(
        english=bool(cues["english"].search(text)),
        order=bool(cues["sort"].search(plain)),
        ranking=superlative or bool(cues["ranking"].search(plain)),
        comparison=bool(cues["comparison"].search(text)),
        some_rows=bool(cues["quantity"].search(text)),
        numbers=numbers_of(nlq),
        one_row=bool(_ONE_OF_THEM.search(nlq)),
    )


@functools.cache
def _cue_lists() -> dict[str, list[str]]:
    import yaml

    return yaml.safe_load((Path(__file__).parent / "ranking_cues.yaml").read_text(encoding="utf-8"))


@functools.cache
def _pattern(kind: str) -> re.Pattern[str]:
    cues = (re.escape(cue).replace(r"\*", r"\w*") for cue in _cue_lists()[kind])
    return re.compile(" (?:" + "|".join(cues) + ")(?= |'s )")


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
