"""Tableau formulas, as far as a validator reads them: which fields they name, and whether they are closed.

>>> [name for name, _ in references("SUM([Sales]) / COUNTD([Order ID]) // per [x]")]
['Sales', 'Order ID']
>>> unclosed("SUM([Sales]"), unclosed("SUM([Sales])")
("'('", None)
>>> bracketed("Weight [kg]"), references("MAX([Weight [kg]]])")
('[Weight [kg]]]', [('Weight [kg]', (4, 18))])

Texts and comments are passed over. Not covered: names and arguments of functions, and types; that is the compiler's.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/           # comments
    |"(?:[^"]|"")*"|'(?:[^']|'')*'   # texts
    |(?P<name>\[(?:[^\]]|\]\])*\](?:\.\[(?:[^\]]|\]\])*\])?)  # [Sales], [Parameters].[Bin Size]
    |(?P<open>[({])|(?P<close>[)}])|(?P<loose>["'\[])""",
    re.VERBOSE | re.DOTALL,
)
_PAIRS = {")": "(", "}": "{"}


def references(formula: str) -> list[tuple[str, tuple[int, int]]]:
    """The names in brackets with where they stand, brackets included; of ``[Parameters].[X]`` the last."""
    names = ((m["name"], m.span("name")) for m in _TOKEN.finditer(formula) if m["name"])
    return [(name_in(text)[1], span) for text, span in names]


def name_in(brackets: str) -> tuple[str, str]:
    """The owner and the name in brackets: ``[Parameters].[X]`` is Parameters and X, ``[X]`` has no owner."""
    owner, dot, last = brackets.rpartition("].[")
    return owner.removeprefix("["), (last[:-1] if dot else brackets[1:-1]).replace("]]", "]")


def bracketed(name: str) -> str:
    """A name as a formula writes it."""
    return "[" + name.replace("]", "]]") + "]"


def unclosed(formula: str) -> str | None:
    """The sign that is not closed, or closes nothing; None for a formula that is balanced."""
    stack: list[str] = []
    for token in _TOKEN.finditer(formula):
        if token["loose"]:
            return f"'{token['loose']}'" if token["loose"] != "'" else '"\'"'
        if token["open"]:
            stack.append(token["open"])
        elif token["close"] and (not stack or stack.pop() != _PAIRS[token["close"]]):
            return f"'{token['close']}'"
    return f"'{stack[-1]}'" if stack else None
