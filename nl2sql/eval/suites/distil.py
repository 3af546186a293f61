"""Choosing few databases that tell golds from their neighbours.

Candidates are generated one after another. The first ``FIRST`` meet every neighbour; after that only the neighbours
that survive so far, with values that a survivor turns on, until none is left or there were ``MOST`` candidates. Of
those that killed something the choice is greedy: next the one that kills most of what is still alive.

A neighbour is killed on a database where it fails or EX[bag] tells it from the gold. A database says nothing about a
gold that fails on it, or whose answer changes when ties are broken another way or the same rows lie in another order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import expressions as exp

from nl2sql.errors import UsageError
from nl2sql.eval.suites.arena import ORDERS, Arena, GoldJudge, empty_image, one_statement, read_rows, shuffled, store
from nl2sql.eval.suites.generate import Generator
from nl2sql.eval.suites.hints import Hints, hold_values, read_hints
from nl2sql.eval.suites.neighbours import Neighbour, neighbours_of, parse_gold
from nl2sql.eval.suites.source import SourceDatabase
from nl2sql.interfaces import RunResult

FIRST = 10  # candidates that meet every neighbour, whatever was killed before
MOST = 150  # candidates at most
ENOUGH = 8  # databases with rows; a gold on which all of so many said nothing is given up
ARBITRARY = "the answer rests on the order of rows on every database with a few rows"


@dataclass
class Gold:
    """A gold and its neighbours that compile."""

    sql: str
    statement: str
    tree: exp.Expr | None
    judge: GoldJudge
    live: list[Neighbour] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)  # the gold with its ties broken one way and the other
    problem: str | None = None  # why no suite can be made for it


@dataclass
class Distilled:
    golds: list[Gold]
    images: list[bytes]
    killed: dict[tuple[int, int], int]  # (gold, neighbour) -> first database of the choice that kills it
    candidates: int


class Workplace:
    """The tools made once per source: an arena and the images without rows."""

    def __init__(self, source: SourceDatabase) -> None:
        self.source = source
        self.arena = Arena()
        self.empty = empty_image(source)
        self.loose = empty_image(source, loose=True)


def read_gold(sql: str, place: Workplace, seed: int) -> Gold:
    """Parse a gold, make its neighbours, and drop those that do not compile."""
    statement = one_statement(sql) or ""
    gold = Gold(sql, statement, None, GoldJudge(sql))
    try:
        gold.tree = parse_gold(sql, place.source)
        candidates = neighbours_of(sql, place.source, seed=seed)
    except UsageError as error:
        gold.problem = str(error)
        return gold
    place.arena.load(place.empty)
    if not statement or not place.arena.compiles(statement):
        gold.problem = "the gold does not run"
        return gold
    gold.variants = [v for v in _tie_breakers(gold.tree) if place.arena.compiles(v)]
    gold.live = [neighbour for neighbour in candidates if place.arena.compiles(neighbour.sql)]
    return gold


def _tie_breakers(tree: exp.Expr) -> list[str]:
    """The query with what it shows as last keys of every ORDER BY, once rising and once falling."""
    if tree.find(exp.Order) is None:
        return []
    variants = []
    for falling in (False, True):
        copy = tree.copy()
        for order in copy.find_all(exp.Order):
            query = order.parent
            if not isinstance(query, exp.Query):
                continue  # in a window or an aggregate
            shown = query.selects
            for number in range(1, 2 if any(item.is_star for item in shown) else len(shown) + 1):
                key = exp.Ordered(this=exp.Literal.number(number), desc=falling, nulls_first=not falling)
                order.append("expressions", key)  # NULLs are least, as SQLite sorts them
        variants.append(copy.sql("sqlite"))
    return variants


def gold_result(gold: Gold, place: Workplace, image: bytes, names: Sequence[str] | None = None) -> RunResult | None:
    """The gold's result on the database, which is loaded afterwards; None where it says nothing."""
    arena = place.arena
    arena.load(image)
    result = arena.run(gold.statement)
    if not result.success or result.truncated:
        return None
    if result.rows and any(not gold.judge.same(result, arena.run(variant)) for variant in gold.variants):
        return None
    if gold.judge.rests_on_row_order and result.rows:
        rows = read_rows(image, place.source, names or [table.name for table in place.source.tables])
        stable = True
        for order in ORDERS:
            arena.load(store(place.loose, place.source, shuffled(rows, order)))
            other = arena.run(gold.statement)
            if not other.success or not gold.judge.same(result, other):
                stable = False
                break
        if not stable:
            return None
        arena.load(image)
    return result


def distil(
    source: SourceDatabase, golds: Sequence[str], n: int, seed: int, place: Workplace | None = None
) -> Distilled:
    """At most ``n`` databases (serialised) for ``golds`` together; fewer where fewer kill as much."""
    place = place or Workplace(source)
    read = [read_gold(sql, place, seed) for sql in golds]
    usable = [gold for gold in read if gold.problem is None and gold.tree is not None]
    if not usable or n < 1:
        return Distilled(read, [], {}, 0)
    everything = [neighbour for gold in usable for neighbour in gold.live]
    trees = [gold.tree for gold in usable if gold.tree is not None]
    hints = read_hints(trees, everything, source)
    generator = Generator(source, hints, seed)
    alive = {(g, k) for g, gold in enumerate(read) if gold in usable for k in range(len(gold.live))}
    kills: dict[int, set[tuple[int, int]]] = {}
    focuses: dict[int, Hints] = {}
    tried, telling = Counter[int](), Counter[int]()  # databases with rows enough, and those that said something
    number = 0
    while number < MOST and (alive or number < 2):
        focus = None
        if number >= FIRST and alive:
            focus = focuses[number] = _focus(read, sorted(alive), number, source, seed)
        rows = generator.rows(number, focus=focus)
        image = store(place.empty, source, rows)
        names = list(rows)
        full = all(len(rows[name]) > 1 for name in rows if name.lower() in hints.tables)
        deaths: set[tuple[int, int]] = set()
        for g, gold in enumerate(read):
            if gold.problem is not None:
                continue
            result = gold_result(gold, place, image, names)
            tried[g] += full
            if result is None:
                continue
            telling[g] += full
            only = None if number < FIRST else {k for a, k in alive if a == g}
            deaths |= {(g, k) for k in _killed(gold, place.arena, result, only)}
            if only and any(a == g for a, _ in deaths):
                deaths |= {(g, k) for k in _killed(gold, place.arena, result, None)}
        if deaths:
            kills[number] = deaths
            alive -= deaths
        number += 1
    for g, gold in enumerate(read):
        if tried[g] >= ENOUGH and not telling[g]:
            gold.problem = ARBITRARY
    kills = {k: {(g, j) for g, j in deaths if read[g].problem is None} for k, deaths in kills.items()}
    chosen, killed = _cover(kills, n)
    images = [store(place.empty, source, generator.rows(k, whole=True, focus=focuses.get(k))) for k in chosen]
    return Distilled(read, images, killed, number)


def _focus(read: list[Gold], alive: list[tuple[int, int]], number: int, source: SourceDatabase, seed: int) -> Hints:
    """The hints that a candidate is drawn towards: none, the constants of a gold's survivors, or one survivor."""
    turn = alive[(number // 4) % len(alive)] if number % 4 < 3 else alive[number % len(alive)]
    rng = random.Random(f"{seed}/{number}/focus")
    if number % 4 == 0:
        return Hints()
    if number % 4 == 1:
        others = [read[g].live[k] for g, k in alive if g == turn[0]]
        return hold_values(read_hints([], others, source, beside=True), source, rng)
    hints = read_hints([], [read[turn[0]].live[turn[1]]], source, beside=True)
    return hold_values(hints, source, rng) if number % 4 == 2 else hints


def _killed(gold: Gold, arena: Arena, result: RunResult, only: set[int] | None) -> list[int]:
    killed = []
    for k, neighbour in enumerate(gold.live):
        if (only is None or k in only) and not gold.judge.same(result, arena.run(neighbour.sql)):
            killed.append(k)
    return killed


def _cover(kills: dict[int, set[tuple[int, int]]], n: int) -> tuple[list[int], dict[tuple[int, int], int]]:
    """Greedy choice of at most ``n`` candidates; which of them kills what first."""
    chosen: list[int] = []
    killed: dict[tuple[int, int], int] = {}
    while len(chosen) < n:
        best = max(kills, key=lambda k: (len(kills[k] - killed.keys()), -k), default=None)
        gain = kills[best] - killed.keys() if best is not None else set()
        if best is None or not gain:
            break
        killed.update(dict.fromkeys(gain, len(chosen)))
        chosen.append(best)
    return chosen, killed
