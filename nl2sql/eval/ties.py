"""Does a gold's own answer on a database change when the same rows lie in another physical order? Found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nl2sql.databases.sqlite.batch import ROWS, Pair, PairsResult
from nl2sql.eval.rules import Rule
from nl2sql.interfaces import RunResult
from nl2sql.sql.row_order import order_free

FIXED, ORDER, ROWS_TOO = 0, 1, 2  # what changes: nothing, the order of the answer's rows only, the rows themselves
UNORDERED = "SELECT 1"  # stands for a gold that asks for no order
ROW_ORDERS = (None, 0, 1, 2)  # physical orders that are tried: reversed, and at random

Run = Callable[[Sequence[Path], Sequence[str], Sequence[Pair]], PairsResult]


class Ties:
    """The findings so far, per database and gold; ``run`` executes pairs on several databases."""

    def __init__(self, rule: Rule, run: Run, prepare: Callable[[str], str]) -> None:
        self.rule, self.run, self.prepare = rule, run, prepare
        self._known: dict[tuple[Path, str], int] = {}

    def decide(self, database: Path, gold: str) -> int:
        """The part of ``gold``'s answer on ``database`` that rests on the physical order: FIXED, ORDER or ROWS_TOO."""
        if order_free(gold):
            return FIXED
        self.learn(database, (gold,))
        return self._known[database, gold]

    def learn(self, database: Path, golds: Iterable[str]) -> None:
        """Find out about several golds at once, ahead of ``decide``."""
        from nl2sql.eval.replicas import shuffled_copies

        asked = [g for g in dict.fromkeys(golds) if (database, g) not in self._known and not order_free(g)]
        if not asked:
            return
        files = [database, *shuffled_copies(database, ROW_ORDERS)]
        outcome = self.run(files, [self.prepare(gold) for gold in asked], [(-1, n, ROWS) for n in range(len(asked))])
        for n, gold in enumerate(asked):
            expected, *others = (outcome.results[file, n] for file in range(len(files)))
            usable = [other for other in others if self.rule.usable(other)]
            known = FIXED
            if not all(self.same(expected, other, gold) for other in usable):
                known = ORDER if all(self.same(expected, other, UNORDERED) for other in usable) else ROWS_TOO
            self._known[database, gold] = known

    def same(self, expected: RunResult, other: RunResult, gold: str) -> bool:
        return self.rule.judge([expected], [other], gold_sql=gold, predicted_sql=gold)
