"""Formulas of Tableau, read and evaluated by themselves: nothing of the compiler is in it.

>>> tree = read("IF [Sales] > 10 THEN 'much' ELSE 'little' END")
>>> value(tree, {"Sales": 12.0}), value(tree, {"Sales": None})
('much', 'little')

A tree is a tuple: its kind, then what belongs to it. NULL is None, and spreads through signs and functions but for
AND, OR, IFNULL, ISNULL, ZN and conditions. Binding is that of Tableau's help: negation, ``* / %``, ``+ -``,
comparisons, NOT, AND, OR. Not covered: LOD expressions, table calculations, ``^``, IN.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Tree = tuple[Any, ...]
AGGREGATES = ("SUM", "AVG", "MEDIAN", "COUNT", "COUNTD", "MIN", "MAX", "STDEV", "VAR")
_TOKENS = re.compile(
    r"""(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<name>\[[^]]*\](?:\.\[[^]]*\])?)|\#(?P<day>[^#]+)\#
    |(?P<number>\d+\.?\d*(?:[eE][-+]?\d+)?)|(?P<word>\w+)|(?P<sign><>|!=|<=|>=|==|.)|\s+""",
    re.VERBOSE,
)
_LEVELS = (("OR",), ("AND",), ("NOT",), ("=", "==", "<>", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))


# --------------------------------------------------------------------------------------------------------- reading


def read(text: str) -> Tree:
    """The tree of a formula."""
    tokens: list[tuple[str | None, str]] = [
        (m.lastgroup, m[m.lastgroup]) for m in _TOKENS.finditer(text) if m.lastgroup and m[0].strip()
    ]
    waiting = [(kind, word.upper() if kind == "word" else word) for kind, word in tokens]
    tree = _level(waiting, 0)
    assert not waiting, f"{text}: {waiting} is left"
    return tree


def _level(waiting: list[tuple[str | None, str]], level: int) -> Tree:
    if level == len(_LEVELS):
        return _operand(waiting)
    signs = _LEVELS[level]
    if signs == ("NOT",):
        if _next(waiting) == "NOT":
            waiting.pop(0)
            return ("sign", "NOT", (_level(waiting, level),))
        return _level(waiting, level + 1)
    left = _level(waiting, level + 1)
    while waiting and waiting[0][0] in ("sign", "word") and _next(waiting) in signs:
        sign = waiting.pop(0)[1]
        left = ("sign", {"==": "=", "!=": "<>"}.get(sign, sign), (left, _level(waiting, level + 1)))
    return left


def _next(waiting: list[tuple[str | None, str]]) -> str:
    return waiting[0][1] if waiting and waiting[0][0] in ("sign", "word") else ""


def _drop(waiting: list[tuple[str | None, str]], *words: str) -> str:
    word = waiting.pop(0)[1]
    assert word in words, f"{word} where {words} is expected"
    return word


def _operand(waiting: list[tuple[str | None, str]]) -> Tree:
    kind, text = waiting.pop(0)
    if kind == "text":
        return ("value", text[1:-1].replace(text[0] * 2, text[0]))
    if kind == "number":
        return ("value", float(text) if set(text) & set(".eE") else int(text))
    if kind == "day":
        moment = datetime.datetime.fromisoformat(text)
        return ("value", moment if ":" in text else moment.date())
    if kind == "name":
        return ("name", text.split("].[")[-1].strip("[]"))
    if text == "-":
        return ("sign", "-", (_operand(waiting),))
    if text == "(":
        inner = _level(waiting, 0)
        _drop(waiting, ")")
        return inner
    if text in ("TRUE", "FALSE", "NULL"):
        return ("value", {"TRUE": True, "FALSE": False, "NULL": None}[text])
    return _choice(waiting, text) if text in ("IF", "CASE") else _call(waiting, text)


def _call(waiting: list[tuple[str | None, str]], name: str) -> Tree:
    _drop(waiting, "(")
    arguments = []
    while _next(waiting) != ")":
        arguments.append(_level(waiting, 0))
        if _next(waiting) == ",":
            waiting.pop(0)
    waiting.pop(0)
    return ("call", name, tuple(arguments))


def _choice(waiting: list[tuple[str | None, str]], word: str) -> Tree:
    subject = _level(waiting, 0) if word == "CASE" else None
    ways, otherwise = [], ("value", None)
    if subject:
        _drop(waiting, "WHEN")
    while True:
        test = _level(waiting, 0)
        _drop(waiting, "THEN")
        ways.append((("sign", "=", (subject, test)) if subject else test, _level(waiting, 0)))
        after = _drop(waiting, "ELSEIF", "WHEN", "ELSE", "END")
        if after == "ELSE":
            otherwise = _level(waiting, 0)
            after = _drop(waiting, "END")
        if after == "END":
            return ("if", tuple(ways), otherwise)


def parts(tree: Tree) -> Iterator[Tree]:
    """A tree and all trees in it."""
    yield tree
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from _trees(part)


def _trees(part: tuple[Any, ...]) -> Iterator[Tree]:
    if part and isinstance(part[0], str):
        yield from parts(part)
    else:
        for inner in part:
            if isinstance(inner, tuple):
                yield from _trees(inner)


def replaced(tree: Any, by: Callable[[Tree], Tree | None]) -> Any:
    """A tree with another one in place of those for which ``by`` gives one."""
    if not isinstance(tree, tuple):
        return tree
    if tree and isinstance(tree[0], str) and (new := by(tree)) is not None:
        return new
    return tuple(replaced(part, by) for part in tree)


# ------------------------------------------------------------------------------------------------------ evaluating


def value(tree: Tree, names: Mapping[Any, Any]) -> Any:
    """The value of a tree; ``names`` are the values of names, and of aggregates by their trees."""
    kind = tree[0]
    if kind == "value":
        return tree[1]
    if kind == "name":
        return names[tree[1]]
    if kind == "if":
        chosen = next((then for test, then in tree[1] if value(test, names)), tree[2])
        return value(chosen, names)
    if kind == "call" and tree[1] in AGGREGATES:
        return names[tree]
    arguments = [value(part, names) for part in tree[2]]
    if kind == "sign":
        return _signed(tree[1], arguments)
    if tree[1] in _WITH_NULL:
        return _WITH_NULL[tree[1]](*arguments)
    return None if None in arguments else FUNCTIONS[tree[1]](*arguments)


def _signed(sign: str, sides: list[Any]) -> Any:
    if sign in ("AND", "OR"):
        decided = sign == "OR"
        return decided if decided in sides else None if None in sides else not decided
    if None in sides:
        return None
    if len(sides) == 1:
        return not sides[0] if sign == "NOT" else -sides[0]
    left, right = sides
    if sign in _COMPARED:
        return _COMPARED[sign](*alike(left, right))
    if sign in ("/", "%") and right == 0:
        return None
    return _ARITHMETIC[sign](left, right)


def alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Two values to compare: a day beside a moment is its midnight."""
    if isinstance(left, datetime.datetime) or isinstance(right, datetime.datetime):
        return moment(left), moment(right)
    return left, right


def moment(day: Any) -> Any:
    """A day as its midnight."""
    plain = isinstance(day, datetime.date) and not isinstance(day, datetime.datetime)
    return datetime.datetime.combine(day, datetime.time()) if plain else day


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: int(math.fmod(a, b)),  # the sign is that of the left side
}


def rounded(number: float, decimals: int = 0) -> float:
    """A number at so many decimals; halves go away from zero."""
    if not math.isfinite(number) or decimals > 15:
        return number
    exact = decimal.Decimal(number)
    return float(exact.quantize(decimal.Decimal(1).scaleb(-decimals), decimal.ROUND_HALF_UP, _WIDE))


_WIDE = decimal.Context(prec=400)


def truncated(name: str, day: datetime.date) -> datetime.date:
    """The first day of the year, quarter, month or week of a day, or the day."""
    day = datetime.date(day.year, day.month, day.day)
    first = {"YEAR": 1, "QUARTER": (day.month - 1) // 3 * 3 + 1, "MONTH": day.month}
    if name == "WEEK":
        return day - datetime.timedelta(day.weekday())
    return day if name == "DAY" else datetime.date(day.year, first[name], 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {  # NULL for NULL
    "ABS": abs,
    "CEILING": math.ceil,
    "FLOOR": math.floor,
    "ROUND": rounded,
    "BIN": lambda number, size: math.floor(number / size) * size,
    "LEN": len,
    "UPPER": str.upper,
    "LOWER": str.lower,
    "TRIM": lambda text: text.strip(" "),
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
    "YEAR": lambda day: day.year,
    "QUARTER": lambda day: (day.month + 2) // 3,
    "MONTH": lambda day: day.month,
    "WEEK": lambda day: day.isocalendar().week,
    "DAY": lambda day: day.day,
    **{f"TRUNC_{name}": lambda day, name=name: truncated(name, day) for name in ("YEAR", "QUARTER", "MONTH", "WEEK")},
    "TRUNC_DAY": lambda day: truncated("DAY", day),
}
_WITH_NULL: dict[str, Callable[..., Any]] = {
    "IFNULL": lambda given, other: other if given is None else given,
    "ISNULL": lambda given: given is None,
    "ZN": lambda given: 0 if given is None else given,
    "IIF": lambda test, then, other: None if test is None else then if test else other,
    "SHOWN": lambda member, aliases: dict(aliases).get(member, member),
}
