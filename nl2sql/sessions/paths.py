"""The joins from the tables that a query reads to another one.

Along keys, by as few tables as can be.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import NamedTuple

from nl2sql.databases.schema import Schema, Table
from nl2sql.sessions.tables import is_one, links

FARTHEST = 3  # joins to a column's table
FAR_TURN = 1.5  # joins that a turn at a table which both refer to counts for


class Step(NamedTuple):
    """One join: from the table under ``alias`` by pairs of columns to ``table``.

    many: several rows of ``table`` may belong to one row of the other.
    """

    alias: str
    pairs: list[tuple[str, str]]
    table: str
    many: bool


def path_to(table: str, sources: Mapping[str, Table], schema: Schema) -> list[Step] | None:
    """The joins to ``table``, by a table that links both rather than by a third that both refer to ("the courses of a
    teacher": those that he teaches, not those of his department); None where it is not near.
    """
    waiting: list[tuple[float, int, str, Table, list[Step]]] = []
    for alias, source in sources.items():
        waiting.append((0, len(waiting), alias, source, []))
    order = itertools.count(len(waiting))
    seen: set[str] = set()
    while waiting:
        cost, _, alias, source, path = heapq.heappop(waiting)
        if source.name.lower() == table.lower():
            return path
        if source.name.lower() in seen or len(path) >= FARTHEST:
            continue
        seen.add(source.name.lower())
        for link, target in links(source, schema):
            step = Step(alias, link, target.name, not is_one(source, link, target))
            turn = FAR_TURN if path and step.many and not path[-1].many else 0
            new = (cost + 1 + turn, next(order), target.name.lower(), target, [*path, step])
            heapq.heappush(waiting, new)
    return None
