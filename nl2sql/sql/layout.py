"""A long query with each clause on a line of its own, as reports and notebooks show it.

>>> print(in_lines("SELECT name FROM staff WHERE team = (SELECT id FROM teams WHERE city = 'Oslo') ORDER BY name"))
SELECT name
FROM staff
WHERE team = (SELECT id
  FROM teams
  WHERE city = 'Oslo')
ORDER BY name

Only whitespace is changed, and none inside quotes. Not covered: a query that has lines or comments of its own, which
stays as it was written.
"""

from __future__ import annotations

import re

SHORT, LONG = 60, 20_000  # characters: a shorter query stays on one line, a longer one is not read
_OWN_LAYOUT = re.compile(r"\n|--|/\*")
_WORD = re.compile(r"""'(?:[^']|'')*'?|"[^"]*"?|`[^`]*`?|\[[^\]]*\]|\w+|\s+|[^\w\s]""")
_JOINS = ("LEFT", "RIGHT", "FULL", "INNER", "CROSS", "NATURAL", "OUTER")
_SETS = ("UNION", "INTERSECT", "EXCEPT", "ALL")  # before the SELECT of a further query
_CLAUSES = frozenset(
    ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT", "JOIN", *_JOINS[:-1])
)


def in_lines(sql: str) -> str:
    """The query with a line per clause, those of a subquery indented."""
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
