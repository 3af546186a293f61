"""Functions and date arithmetic of other dialects, by the statement's tokens, for engines that sqlglot lacks.

>>> from sqlglot import parse_one
>>> rewritten(parse_one("YEAR(d)", read="mysql"), "sqlite").sql("sqlite")
"CAST(STRFTIME('%Y', DATE(d)) AS INTEGER)"

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

import yaml

if TYPE_CHECKING:
    from sqlglot.expressions import Expr
    from sqlglot.tokens import Token


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

    Raises SqlglotError for what is known to have no counterpart (dates subtracted in months)."""
    if not templates(dialect):
        return tree
    return tree.copy().transform(lambda node: _replacement(node, dialect) or node)


def _replacement(node: Expr, dialect: str) -> Expr | None:
    from sqlglot import exp, parse_one
    from sqlglot.errors import UnsupportedError

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
    written = [rewritten(argument, dialect).sql(dialect=dialect) for argument in arguments]
    return parse_one(filled(template, written, dialect), read=dialect)


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
    from sqlglot import exp

    return any(
        isinstance(a, exp.Literal) and a.name.upper().rstrip("S") in {*UNITS, "WEEK", "QUARTER"} for a in arguments
    )


def _shifted(node: Expr, dialect: str) -> str | None:
    """A date plus or minus an interval, as SQLite writes it; None for anything else."""
    from sqlglot import exp

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
