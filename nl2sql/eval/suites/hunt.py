"""Holding proofs against data: does a neighbour that is called equivalent ever answer differently?

Every proven neighbour runs on generated databases: those on which suites are built, with all their values, and others
that are drawn towards NULLs, repeated values, few rows and empty tables in columns at random. A database on which it
differs from its gold, while the gold's answer rests on no order of rows, disproves the proof.
"""

from __future__ import annotations

import random
from typing import Any

from nl2sql.eval.suites.distil import Databases, answer, read_gold
from nl2sql.eval.suites.generate import Generator
from nl2sql.eval.suites.hints import Hints, read_hints
from nl2sql.eval.suites.images import store

DATABASES = 60  # per gold; the first third as suites are built, the others drawn towards something


def counterexamples(sql: str, place: Databases, seed: int, databases: int = DATABASES) -> dict[str, Any]:
    """``told``: how many databases said something; ``found``: [kind, neighbour, proof, number of the database]."""
    gold = read_gold(sql, place, seed)
    if gold.problem or gold.tree is None or not gold.proven:
        return {"told": 0, "proven": len(gold.proven), "found": []}
    hints = read_hints([gold.tree], [*gold.live, *gold.proven], place.source)
    generator = Generator(place.source, hints, f"{seed}/hunt")
    rng = random.Random(f"{seed}/{sql}")
    standing, found, told = list(gold.proven), [], 0
    for number in range(databases):
        focus = _drawn(hints, place, rng) if 3 * number >= databases else None
        rows = generator.rows(number, focus=focus)
        result = answer(gold, place, store(place.empty, place.source, rows), list(rows))
        if result is None:
            continue
        told += 1
        for neighbour in standing[:]:
            if not gold.judge.same(result, place.arena.run(neighbour.sql)):
                standing.remove(neighbour)
                found.append([neighbour.kind, neighbour.sql, neighbour.equivalent, number])
    return {"told": told, "proven": len(gold.proven), "found": found}


def _drawn(hints: Hints, place: Databases, rng: random.Random) -> Hints:
    """A focus on a few columns of the gold's tables, with NULLs in some and repeated values in others."""
    cells = [(name, c) for name in sorted(hints.tables) for c in range(len(place.source.by_name[name].names))]
    focus = Hints(tables=hints.tables)
    for cell in rng.sample(cells, min(len(cells), rng.randrange(1, 5))):
        kind = rng.randrange(3)
        if kind != 1:
            focus.nulls.add(cell)
        if kind != 0:
            focus.ties.add(cell)
    if rng.random() < 0.3:
        focus.repeats.add(cells[0][0] if cells else "")
    return focus
