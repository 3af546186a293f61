"""Choosing few databases that tell golds from their neighbours.

Candidates are generated one after another. The first ``FIRST`` meet every neighbour; after that only the neighbours
that survive so far, with values that a survivor turns on, until none is left or there were ``MOST`` candidates. Of
those that killed something the choice is greedy: next the one that kills most of what is still alive.

A neighbour is killed on a database where it fails or EX[bag] tells it from the gold. A database says nothing about a
gold that fails on it, or whose answer changes when ties are broken another way or the same rows lie in another order.

``main`` is the process that builds and checks suites, started by ``run_tasks`` as a ``FramedChild``. It cannot grow
any file (RLIMIT_FSIZE is 0): databases go back as bytes. Requests: ``{"source": key, "data": SourceDatabase or null}``
(data once per source), and with it ``"task"``: "build" (``golds``, ``n``, ``seed``) or "check" (``golds``, ``files``,
``seed``).
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlglot import expressions as exp

from nl2sql.databases.sqlite.process import reply, requests
from nl2sql.databases.sqlite.worker import restrict_process
from nl2sql.errors import UsageError
from nl2sql.eval.rules import gold_order, results_match, suites_match
from nl2sql.eval.suites.arena import (
    ORDERS,
    Arena,
    SourceDatabase,
    one_statement,
    read_rows,
    shuffled,
    store,
)
from nl2sql.eval.suites.generate import Generator, read_hints
from nl2sql.eval.suites.mutator import Neighbour, parse_gold
from nl2sql.eval.suites.neighbours import neighbours_of
from nl2sql.interfaces import RunResult
from nl2sql.sql.features import order_free
from nl2sql.sql.parse import SLIPS

FIRST = 10  # candidates that meet every neighbour, whatever was killed before
MOST = 100  # candidates at most
ENOUGH = 8  # databases with rows; a gold on which all of so many said nothing is given up
ARBITRARY = "the answer rests on the order of rows on every database with a few rows"


@dataclass
class Gold:
    """A gold and its neighbours that compile."""

    sql: str
    statement: str
    tree: exp.Expr | None = None
    live: list[Neighbour] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)  # the gold with its ties broken one way and the other
    problem: str | None = None  # why no suite can be made for it

    def same(self, gold: RunResult, other: RunResult) -> bool:
        """EX[bag] of a result beside this gold's."""
        if not other.success or other.truncated or len(gold.rows) != len(other.rows):
            return False
        if len(gold.columns) != len(other.columns):
            return False
        return gold.rows == other.rows or results_match(gold, other, **gold_order(self.sql, gold))


@dataclass
class Distilled:
    golds: list[Gold]
    images: list[bytes]
    killed: dict[tuple[int, int], int]  # (gold, neighbour) -> first database of the choice that kills it
    candidates: int


def read_gold(sql: str, place: Arena, seed: int) -> Gold:
    """Parse a gold, make its neighbours, and drop those that do not compile."""
    statement = one_statement(sql) or ""
    gold = Gold(sql, statement)
    try:
        gold.tree = parse_gold(sql, place.source)
        candidates = neighbours_of(sql, place.source, seed=seed)
    except UsageError as error:
        gold.problem = str(error)
        return gold
    place.load(place.empty)
    if not statement or not place.compiles(statement):
        gold.problem = "the gold does not run"
        return gold
    gold.variants = [v for v in _tie_breakers(gold.tree) if place.compiles(v)]
    gold.live = [neighbour for neighbour in candidates if place.compiles(neighbour.sql)]
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


def gold_result(gold: Gold, place: Arena, image: bytes, names: Sequence[str] | None = None) -> RunResult | None:
    """The gold's result on the database, which is loaded afterwards; None where it says nothing."""
    place.load(image)
    result = place.run(gold.statement)
    if not result.success or result.truncated:
        return None
    if result.rows and any(not gold.same(result, place.run(variant)) for variant in gold.variants):
        return None
    if result.rows and not order_free(gold.sql):
        rows = read_rows(image, place.source, names or [table.name for table in place.source.tables])
        for order in ORDERS:
            place.load(store(place.loose, place.source, shuffled(rows, order)))
            if not gold.same(result, place.run(gold.statement)):
                return None
        place.load(image)
    return result


def distil(place: Arena, golds: Sequence[str], n: int, seed: int) -> Distilled:
    """At most ``n`` databases (serialised) for ``golds`` together; fewer where fewer kill as much."""
    source = place.source
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
    tried, telling = Counter[int](), Counter[int]()  # databases with rows enough, and those that said something
    number = 0
    while number < MOST and (alive or number < 2):
        rows = generator.rows(number)
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
            deaths |= {(g, k) for k in _killed(gold, place, result, only)}
            if only and any(a == g for a, _ in deaths):
                deaths |= {(g, k) for k in _killed(gold, place, result, None)}
        if deaths:
            kills[number] = deaths
            alive -= deaths
        number += 1
    for g, gold in enumerate(read):
        if tried[g] >= ENOUGH and not telling[g]:
            gold.problem = ARBITRARY
    kills = {k: {(g, j) for g, j in deaths if read[g].problem is None} for k, deaths in kills.items()}
    chosen, killed = _cover(kills, n)
    images = [store(place.empty, source, generator.rows(k, whole=True)) for k in chosen]
    return Distilled(read, images, killed, number)


def _killed(gold: Gold, place: Arena, result: RunResult, only: set[int] | None) -> list[int]:
    return [
        k
        for k, neighbour in enumerate(gold.live)
        if (only is None or k in only) and not gold.same(result, place.run(neighbour.sql))
    ]


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


# -------------------------------------------------------------------------------------- the process

LARGEST_FILE = 256 * 2**20


def main() -> None:
    """Answer requests until the socket closes."""
    restrict_process()
    known: dict[str, Arena] = {}
    for request in requests():
        key = request["source"]
        if request["data"] is not None:
            known.clear()  # tasks come database by database
            known[key] = Arena(SourceDatabase.from_json(request["data"]))
        try:
            response = TASKS[request["task"]](known[key], request)
        except (sqlite3.Error, OSError, MemoryError, AssertionError, ArithmeticError, *SLIPS) as error:
            response = {"error": f"{type(error).__name__}: {error}"[:500]}
        reply(response)


def build_images(place: Arena, request: dict[str, Any]) -> dict[str, Any]:
    """A suite for the golds: images, and what they kill."""
    started = time.perf_counter()
    made = distil(place, request["golds"], request["n"], request["seed"])
    return {
        "images": made.images,
        "candidates": made.candidates,
        "seconds": time.perf_counter() - started,
        "golds": [
            _entry(gold, {k for a, k in made.killed if a == g}, len(made.images)) for g, gold in enumerate(made.golds)
        ],
    }


def check_files(place: Arena, request: dict[str, Any]) -> dict[str, Any]:
    """Which neighbours the given databases kill, judged as TS judges: one gold, one column assignment for all."""
    images = []
    for name in request["files"]:
        file = Path(name)
        if file.stat().st_size > LARGEST_FILE:
            return {"error": f"{file} is larger than {LARGEST_FILE >> 20} MB"}
        images.append(file.read_bytes())
    entries = []
    for sql in request["golds"]:
        gold = read_gold(sql, place, request["seed"])
        if gold.problem:
            entries.append(_entry(gold, set(), 0))
            continue
        alive = set(range(len(gold.live)))
        ours: list[RunResult] = []
        theirs: dict[int, list[RunResult]] = {k: [] for k in alive}
        for image in images:
            result = gold_result(gold, place, image)
            if result is None:
                continue
            ours.append(result)
            for k in sorted(alive):
                other = place.run(gold.live[k].sql)
                if gold.same(result, other):
                    theirs[k].append(other)
                else:
                    alive.discard(k)
        if len(ours) > 1:
            order = gold_order(sql, ours[0])
            alive = {k for k in alive if suites_match(ours, theirs[k], **order)}
        entries.append(_entry(gold, set(range(len(gold.live))) - alive, len(ours)))
    return {"golds": entries}


TASKS = {"build": build_images, "check": check_files}


def _entry(gold: Gold, killed: set[int], usable: int) -> dict[str, Any]:
    """A gold as data: its neighbours by fate. ``usable``: databases that say something about it."""
    return {
        "sql": gold.sql,
        "problem": gold.problem,
        "usable": usable,
        "killed": [[n.kind, n.sql] for k, n in enumerate(gold.live) if k in killed],
        "survivors": [[n.kind, n.sql] for k, n in enumerate(gold.live) if k not in killed],
    }
