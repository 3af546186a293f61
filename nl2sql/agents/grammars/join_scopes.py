"""The sets of tables that a query without aliases may read together, and the columns that it may name then.

``select`` writes a scope of the SELECT grammar for every table and every set of ``joined_sets``. Tables are
given by their positions in the schema. A join that is not listed stays possible (``other_joins``), its columns
unchecked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, permutations

from nl2sql.agents.context.linking import joinable_tables
from nl2sql.databases.schema import Schema

MOST_JOINS = 30  # every set costs compile time
MOST_OF_A_TABLE = 12  # the sets with the query's first column are followed side by side
FEW_TABLES = 5  # up to so many tables all pairs are listed, linked or not; with one table less, all triples


def joined_sets(schema: Schema) -> list[tuple[int, ...]]:
    """Pairs and triples of tables that queries join, each in ascending order; at most ``MOST_JOINS``.

    Linked pairs first, then triples held together by links: those with the most links, and among these the ones whose
    tables have the fewest others to go to. In small schemas also tables that are not linked.
    """
    near = joinable_tables(schema)
    tables = range(len(schema.tables))

    def links(some: Iterable[int]) -> int:
        return sum(b in near[a] for a, b in combinations(some, 2))

    count = len(tables)
    pairs = [pair for pair in combinations(tables, 2) if links(pair) or count <= FEW_TABLES]
    triples = [some for some in combinations(tables, 3) if links(some) > 1 or count < FEW_TABLES]
    triples.sort(key=lambda some: (-links(some), sum(len(near[a]) for a in some)))
    sets: list[tuple[int, ...]] = []
    uses = Counter[int]()
    for some in (*pairs, *triples):
        if len(sets) < MOST_JOINS and all(uses[a] < MOST_OF_A_TABLE for a in some):
            sets.append(some)
            uses.update(some)
    return sets


def column_groups(schema: Schema) -> dict[frozenset[int], list[str]]:
    """The schema's column names, as they are written in it, by the tables that have them (in any case of letters)."""
    homes: dict[str, set[int]] = {}
    spellings: dict[str, dict[str, None]] = {}
    for i, table in enumerate(schema.tables):
        for column in table.columns:
            homes.setdefault(column.name.lower(), set()).add(i)
            spellings.setdefault(column.name.lower(), {})[column.name] = None
    groups: dict[frozenset[int], list[str]] = {}
    for name, tables in homes.items():
        groups.setdefault(frozenset(tables), []).extend(spellings[name])
    return groups


def sources(tables: Sequence[int]) -> str:
    """A FROM clause that reads exactly ``tables``, in any order, as Lark."""
    scope = scope_name(tables)
    orders = []
    for first, *others in permutations(tables):
        orders.append(f"TABLE_{first}" + "".join(f" JOIN TABLE_{i} on_{scope}?" for i in others))
    return " | ".join(orders)


def scope_name(tables: Sequence[int]) -> str:
    return "_".join(map(str, tables))


def other_joins(count: int, listed: Iterable[tuple[int, ...]]) -> dict[str, str]:
    """Rules of FROM clauses over ``count`` tables that read no listed set: ``sources_g`` and what it is made of.

    Two or three tables that are not listed (others may follow these), or a listed set and at least a fourth table.
    Empty when there are none.
    """
    sets = {frozenset(tables) for tables in listed}
    rules: dict[str, str] = {}
    for pair in sorted({pair for tables in sets for pair in combinations(sorted(tables), 2)}):
        others = {i: frozenset((*pair, i)) in sets for i in range(count) if i not in pair}
        ways = _joins([i for i, is_listed in others.items() if not is_listed], 3)
        for third in (i for i, is_listed in others.items() if is_listed):
            fourth = _joins([i for i in others if i != third], 2)
            ways += [f"JOIN TABLE_{third} on_g? {join}" for join in fourth]
        if ways:
            rules[f"beyond_{scope_name(pair)}"] = " | ".join(ways)
    starts = []
    for first in range(count):
        ways, apart = [], []
        for second in (i for i in range(count) if i != first):
            beyond = f"beyond_{scope_name(sorted((first, second)))}"
            is_listed = frozenset((first, second)) in sets
            if beyond in rules:
                ways.append(f"JOIN TABLE_{second} on_g? {beyond}{'' if is_listed else '?'}")
            elif not is_listed:
                apart.append(second)
        ways += _joins(apart, 4)
        if ways:
            starts.append(f"TABLE_{first} ({' | '.join(ways)})")
    return {**rules, "sources_g": " | ".join(starts)} if starts else {}


def _joins(choice: Sequence[int], more: int) -> list[str]:
    """A join with one of ``choice``, then with up to ``more`` of any tables; nothing without a choice."""
    tables = " | ".join(f"TABLE_{i}" for i in choice)
    return [f"JOIN ({tables}) on_g? (JOIN TABLE on_g?){{0,{more}}}"] if tables else []
