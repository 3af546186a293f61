"""A narrow SELECT grammar: the style that ``scripts/training/sql_style.py`` teaches, and nothing else.

Tables go by their own names, columns belong to the tables that the query reads, joins follow keys, every keyword has
one spelling. What it accepts names only what exists, and a small model has fewer ways to go wrong than under the wide
grammar of ``select`` (``Config.sql_form`` chooses). Refusing what a schema has not is PICARD's idea [13].

A query's columns come before its tables, so the rules remember what the columns demand: the tables that columns
written ``table.column`` name, or the tables that have all the bare columns so far. FROM may then only build joins that
cover the demand. The parser is in one state at a time, not in many, and masks stay cheap.

Not covered, by intention: aliases (so no table joined with itself), derived tables, WITH, window and scalar functions,
CASE, outer joins, subqueries within subqueries or correlated ones, more than one set operation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from itertools import combinations
from typing import TypeAlias

from nl2sql.agents.context.linking import joinable_tables
from nl2sql.agents.grammars.select import column_groups, escaped, sections
from nl2sql.databases.schema import Schema, Table, quote_name
from nl2sql.interfaces import Grammar

MOST_JOINED = 4  # tables of one query; fewer where the rules would be more than MOST_RULES
MOST_JOINED_INSIDE = 2  # tables of a subquery
MOST_RULES = 6000  # bounds the time of compiling
FEW_TABLES = 12  # in a larger schema too many pairs would be rules
MOST_TABLES = 60  # of a schema; llguidance refuses grammars of several hundred
MOST_COLUMNS = 5  # of a query's list
MOST_NAMED = 3  # tables whose columns it holds

Tables: TypeAlias = frozenset[int]  # positions in the schema
Demand: TypeAlias = tuple[bool, Tables]  # bare columns, which all of these have; or: all of these are named

NOTHING: Demand = (False, frozenset())
FILE = "plain_select.lark"


@functools.lru_cache(maxsize=256)
def plain_grammar(schema: Schema, prefill: str = "SELECT") -> Grammar:
    """One SELECT over ``schema`` (at most MOST_TABLES tables) in the plain style, continuing ``prefill``."""
    begun = re.search(r"\bSELECT(\s*)\Z", prefill, re.IGNORECASE)
    start = ("" if begun[1] else '" " ') if begun else '"SELECT " '
    for most in range(MOST_JOINED, 0, -1):
        rules = _Rules(schema, most).written()
        if rules is not None:
            break
    assert rules is not None
    lines = [
        f'start: {start}select_a ";"?',
        *(f"{name}: {body}" for name, body in rules.items()),
        "",
        sections(FILE)["terminals"],
        "",
    ]
    return Grammar("lark", "\n".join(lines) + "\n")


_AFTER_COMMA = {f"a{n}": f"a{n + 1}" for n in range(1, MOST_COLUMNS)} | {"b2": "b1"}


class _Rules:
    """Levels say what a SELECT may still hold.

    "a1" to "a5": the query, at its first to fifth column; FROM keeps "a1" and "a2", behind which a set operation finds
    as many columns ("b1" and "b2": what follows it, with so many columns to come), and drops to "a" behind more. "c": a
    subquery, with one column and no subquery of its own.
    """

    def __init__(self, schema: Schema, most: int) -> None:
        self.schema, self.most = schema, most
        self.count = len(schema.tables)
        self.links = key_links(schema)
        self.near: list[set[int]] = [set() for _ in range(self.count)]
        for i, j in self.links:
            self.near[i].add(j)
            self.near[j].add(i)
        self.groups = column_groups(schema)
        self.reached: dict[tuple[Tables, int], bool] = {}
        self.rules: dict[str, str] = {}
        self.waiting: list[tuple[str, str, str, tuple[Demand | Tables, ...]]] = []

    def written(self) -> dict[str, str] | None:
        """The rules by name; None where they are more than MOST_RULES and fewer joins would help."""
        for i, table in enumerate(self.schema.tables):
            name = quote_name(table.name)
            self.rules[f"TABLE_{i}"] = _one_of([name])
            self.rules[f"NAMED_{i}"] = _one_of([f"{name}.{quote_name(c.name)}" for c in table.columns])
        for i, names in enumerate(self.groups.values()):
            self.rules[f"BARE_{i}"] = _one_of([quote_name(name) for name in names])
        for level in ("b1", "b2", "c"):
            self.rules[f"select_{level}"] = f"DISTINCT? {self._rule('items', level, NOTHING)}"
        every = self._rule("items", "a1", NOTHING)
        self.rules["select_a"] = f'DISTINCT? ({every} | "*" {self._rule("from", "a", NOTHING)})'
        while self.waiting:
            if len(self.rules) > MOST_RULES and self.most > 1:
                return None
            name, kind, level, about = self.waiting.pop()
            self.rules[name] = getattr(self, f"_{kind}")(level, *about)
        return self.rules

    def _rule(self, kind: str, level: str, *about: Demand | Tables) -> str:
        """The name of a rule, to be written later by the method ``_<kind>``."""
        name = f"{kind}_{level}" + "_without".join(map(_name, about))
        if name not in self.rules:
            self.rules[name] = ""
            self.waiting.append((name, kind, level, about))
        return name

    # ---------------------------------------------------------------------------------------- in front of FROM

    def _items(self, level: str, demand: Demand) -> str:
        column, inside = (self._rule(kind, level, demand) for kind in ("column", "inside"))
        return f"{column} | AGGREGATE DISTINCT? {inside} | COUNT_ALL {self._rule('tail', level, demand)}"

    def _inside(self, level: str, demand: Demand) -> str:
        return self._column(level, demand, '")" ')

    def _column(self, level: str, demand: Demand, closing: str = "") -> str:
        bare, tables = demand
        ways = []
        if bare or not tables:
            for i, having in enumerate(self.groups):
                if left := having & tables if tables else having:
                    ways.append(f"BARE_{i} {closing}{self._rule('tail', level, (True, left))}")
        if not bare:
            for i in range(self.count):
                if len(tables | {i}) <= MOST_NAMED and self._reachable(tables | {i}, self._most(level)):
                    ways.append(f"NAMED_{i} {closing}{self._rule('tail', level, (False, tables | {i}))}")
        return " | ".join(ways)

    def _tail(self, level: str, demand: Demand) -> str:
        ways = []
        if level != "b2":
            ways.append(self._rule("from", level if level in ("a1", "a2", "b1", "c") else "a", demand))
        if after := _AFTER_COMMA.get(level):
            ways.append(f'", " {self._rule("items", after, demand)}')
        if level[0] == "a":
            items, tail = (self._rule(kind, level, demand) for kind in ("items", "tail"))
            ways.append(f"ARITHMETIC ({items} | NUMBER {tail})")
        return " | ".join(ways)

    # ------------------------------------------------------------------------------------------ FROM and behind

    def _from(self, level: str, demand: Demand) -> str:
        bare, tables = demand
        firsts = sorted(tables) if bare else range(self.count)
        ways = []
        for i in firsts:
            missing = frozenset() if bare else tables - {i}
            if self._reachable(missing | {i}, self._most(level)):
                rest = ("clauses", level, frozenset({i})) if bare else ("joins", level, frozenset({i}), missing)
                ways.append(f"TABLE_{i} {self._rule(*rest)}")
        return f"FROM ({' | '.join(ways)})"

    def _joins(self, level: str, read: Tables, missing: Tables) -> str:
        ways = [] if missing else [self._rule("clauses", level, read)]
        for i in sorted(set().union(*(self.near[j] for j in read)) - read):
            if self._reachable(read | missing | {i}, self._most(level)):
                on = " | ".join(self._on(min(i, j), max(i, j)) for j in sorted(read & self.near[i]))
                ways.append(f"JOIN TABLE_{i} ({on}) {self._rule('joins', level, read | {i}, missing - {i})}")
        return " | ".join(ways)

    def _on(self, i: int, j: int) -> str:
        self.rules[f"ON_{i}_{j}"] = _one_of(self.links[i, j])
        return f"ON_{i}_{j}"

    def _clauses(self, level: str, read: Tables) -> str:
        scope, inner = _joined(read)[1:], "_c" if level == "c" else ""
        self._scope(read, scope, inner)
        where, group = f"(WHERE tests{inner}_{scope})?", f"group{inner}_{scope}"
        ordered = f"({group} order_groups_{scope}? | order_{scope})? LIMIT?"  # sums order groups only
        if level in ("a1", "a2"):
            return f"{where} ({group}? SET_OPERATION select_b{level[1]} | {ordered})"
        return f"{where} " + {"a": ordered, "b1": f"{group}?", "c": f'{ordered} ")"'}[level]

    def _scope(self, read: Tables, scope: str, inner: str) -> None:
        if f"ref_{scope}" not in self.rules:
            bare = [f"BARE_{i}" for i, having in enumerate(self.groups) if len(having & read) == 1]
            self.rules[f"ref_{scope}"] = " | ".join([*bare, *(f"NAMED_{i}" for i in sorted(read))])
            self._add(sections(FILE)["order"], scope)
        text = sections(FILE)["scope"].replace("~", inner)
        subquery, listed = ("", "") if inner else ('| "(SELECT " select_c', '| "SELECT " select_c')
        self._add(text.replace("$", subquery).replace("&", listed), scope)

    def _add(self, text: str, scope: str) -> None:
        for line in text.splitlines():
            name, body = line.replace("@", scope).split(": ", 1)
            self.rules[name] = body

    def _most(self, level: str) -> int:
        return min(self.most, MOST_JOINED_INSIDE) if level == "c" else self.most

    def _reachable(self, tables: Tables, most: int) -> bool:
        """Do at most ``most`` tables, joined by keys, contain all of ``tables``?"""
        reachable = self.reached.get((tables, most))
        if reachable is None:
            reachable = len(tables) <= most and (
                self._connected(tables)
                or any(self._reachable(tables | {i}, most) for j in tables for i in self.near[j] if i not in tables)
            )
            self.reached[tables, most] = reachable
        return reachable

    def _connected(self, tables: Tables) -> bool:
        seen = {min(tables)}
        while grown := {j for i in seen for j in self.near[i] & tables} - seen:
            seen |= grown
        return seen == tables


# ---------------------------------------------------------------------------------------------------------- keys


def key_links(schema: Schema) -> dict[tuple[int, int], list[str]]:
    """The join conditions between two tables (positions in ascending order), each as the text `` ON a.x = b.y``.

    Foreign keys; where two tables have none between them, a column named like the other's primary key
    (``linking.joinable_tables``). In schemas of up to FEW_TABLES, a table linked to nothing may be joined on any
    columns of the same name, and where there are none, on any columns.
    """
    links: dict[tuple[int, int], dict[str, None]] = {}
    position = {table.name.lower(): i for i, table in enumerate(schema.tables)}

    def link(i: int, j: int, pairs: Iterable[tuple[str, str]]) -> None:
        left, right = schema.tables[i], schema.tables[j]
        equal = [(_column(left, a), _column(right, b)) for a, b in pairs]
        ways = links.setdefault((min(i, j), max(i, j)), {})
        for sides in (equal, [(b, a) for a, b in equal]):
            ways[" ON " + " AND ".join(f"{a} = {b}" for a, b in sides)] = None

    for i, table in enumerate(schema.tables):
        for key in table.foreign_keys:
            j = position.get(key.ref_table.lower(), i)
            if j != i:
                link(i, j, list(zip(key.columns, key.ref_columns, strict=True)))
    declared = set(links)
    for i, near in enumerate(joinable_tables(schema)):
        for j in near:
            if i < j and (i, j) not in declared:
                for pair in _same_names(schema.tables[i], schema.tables[j], keys=True):
                    link(i, j, [pair])
    linked = {i for pair in links for i in pair}
    for i, j in combinations(range(len(schema.tables)), 2):
        if len(schema.tables) <= FEW_TABLES and not {i, j} <= linked:
            left, right = schema.tables[i], schema.tables[j]
            pairs = _same_names(left, right) or [(a.name, b.name) for a in left.columns for b in right.columns]
            for pair in pairs[:200]:
                link(i, j, [pair])
    return {pair: list(ways) for pair, ways in sorted(links.items()) if ways}


def _same_names(left: Table, right: Table, *, keys: bool = False) -> list[tuple[str, str]]:
    """The columns that both tables have; keys: only those that are in a primary key of one of them."""
    both = [(a, b) for a in left.columns if (b := right.column(a.name)) is not None]
    return [(a.name, b.name) for a, b in both if not keys or a.primary_key or b.primary_key]


def _column(table: Table, name: str) -> str:
    column = table.column(name)
    return f"{quote_name(table.name)}.{quote_name(column.name if column else name)}"


# --------------------------------------------------------------------------------------------------------- names


def _name(about: Demand | Tables) -> str:
    bare, tables = about if isinstance(about, tuple) else (False, about)
    return ("_bare" if bare else "") + _joined(tables)


def _joined(tables: Tables) -> str:
    return "".join(f"_{i}" for i in sorted(tables))


def _one_of(texts: Iterable[str]) -> str:
    """A terminal for ``texts``, as they are written."""
    return "/" + "|".join(dict.fromkeys(map(escaped, texts))) + "/"
