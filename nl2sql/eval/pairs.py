"""Golds and predictions of one database, executed and judged in pairs, each (file, statement) once.

``judge_pairs`` takes the pairs (gold, prediction) of one database. On the original and then on the replicas a worker
process executes both sides and compares them; what equality does not settle comes back with its rows and is judged
by the rule here.

A statement is executed a second time on the same file only where a worker died, or where replicas together need the
rows of results that had been found equal (one column assignment has to fit all of them).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.databases.sqlite.batch import ORDERED, ROWS, ROWS_IF_WRONG, Pair, PairsResult, run_pairs
from nl2sql.databases.sqlite.files import sqlite_file
from nl2sql.databases.sqlite.process import Interrupted
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.rules import Rule, order_matters, placed
from nl2sql.interfaces import Database, RunResult
from nl2sql.sql.features import order_free

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool


# what the physical order of rows changes of a gold's answer: nothing, its order, or its rows
FIXED, ORDER, ROWS_TOO = 0, 1, 2
UNORDERED = "SELECT 1"  # stands for a gold that asks for no order
ROW_ORDERS = (None, 0, 1, 2)  # physical orders that are tried: reversed, and at random


@dataclass(frozen=True)
class QueryPair:
    """A gold against a prediction; the texts as they were given."""

    gold: str
    predicted: str
    question: str = ""


@dataclass
class Verdict:
    """The verdict on a case. ``gold`` and ``predicted`` hold rows where the two differ and a cause is wanted."""

    gold: RunResult | None = None
    predicted: RunResult | None = None
    right: bool = False
    robust: bool | None = None  # right on the replicas too
    replicas: int = 0  # how many replicas ``robust`` rests on
    plain: bool = True  # right with the columns as they come
    on_original: tuple[RunResult, RunResult] | None = None


@dataclass
class PairJudge:
    """Bounds and resources of one scoring run. ``executed`` counts statements, over all files.

    Setting ``stop`` makes every call raise Interrupted within a moment.
    """

    pool: QueryPool
    rule: Rule
    timeout_s: float
    max_rows: int
    explain: bool = False  # whether rows of wrong results are wanted
    stop: threading.Event = field(default_factory=threading.Event)
    executed: int = 0
    prepared: dict[str, str] = field(default_factory=dict)
    ties: dict[tuple[Path, str], int] = field(default_factory=dict)  # replica, gold -> FIXED, ...

    def judge_pairs(
        self,
        database: Database,
        cases: Sequence[QueryPair],
        single: Sequence[tuple[str | None, str | None]],
        replicas: Callable[[], Sequence[Path] | None] | None,
    ) -> tuple[list[Verdict], dict[str, RunResult]]:
        """(a verdict per case, text -> result on the original without rows).

        ``single``: golds and predictions to be executed on the original only. ``replicas`` is asked only when some
        case is right on the original; None as its answer: there are none, nothing counts as robust.
        """
        table = _Table(self.prepare)
        flags = ROWS_IF_WRONG if self.explain else 0
        pairs = [
            *(table.pair(case.gold, case.predicted, flags | self._ordered(case.gold)) for case in cases),
            *(table.pair(gold, predicted, 0) for gold, predicted in single),
        ]
        path = sqlite_file(database)
        where = path or database
        outcome = self._run_on(where, table.sql, pairs)
        verdicts = [self._on_original(outcome, pairs[n], n, case, where) for n, case in enumerate(cases)]
        results = {text: outcome.results[0, at] for text, at in table.places.items() if (0, at) in outcome.results}
        right = [n for n, verdict in enumerate(verdicts) if verdict.right]
        files = replicas() if replicas is not None and right else ()
        if replicas is not None:
            for verdict in verdicts:
                verdict.robust = verdict.right and files is not None
                verdict.replicas = len(files or ())
        if files and path is not None:
            self._on_replicas(path, files, [cases[n] for n in right], [verdicts[n] for n in right])
        return verdicts, results

    def prepare(self, sql: str) -> str:
        """The text that the rule executes for ``sql``."""
        if sql not in self.prepared:
            self.prepared[sql] = self.rule.prepare(sql)
        return self.prepared[sql]

    def _ordered(self, gold: str) -> int:
        by_order = self.rule.ordered and "order" in gold.lower() and order_matters(gold)
        return ORDERED if by_order else 0

    def _run(self, files: Sequence[Path], sql: Sequence[str], pairs: Sequence[Pair]) -> PairsResult:
        bounds: dict[str, Any] = {"timeout_s": self.timeout_s, "max_rows": self.max_rows}
        how: dict[str, Any] = {"mode": self.rule.settled, "blank": self.rule.blank_is_empty}
        outcome = run_pairs(self.pool, files, sql, pairs, **bounds, **how, stop=self.stop)
        self.executed += outcome.executed
        return outcome

    def _run_on(self, where: Path | Database, sql: Sequence[str], pairs: Sequence[Pair]) -> PairsResult:
        """``_run`` on one file. On another engine each statement alone, all with their rows, no pair with a verdict."""
        if isinstance(where, Path):
            return self._run([where], sql, pairs)
        outcome = PairsResult()
        for index in sorted({index for pair in pairs for index in pair[:2] if index >= 0}):
            if self.stop.is_set():
                raise Interrupted
            try:
                result = where.run(sql[index], timeout_s=self.timeout_s, max_rows=self.max_rows)
            except Nl2SqlError as error:  # it cannot be reached
                result = RunResult(False, error=str(error), error_kind="other")
            self.executed += 1
            outcome.results[0, index] = result
            if result.success:
                outcome.rows_sent.add((0, index))
        outcome.verdicts = {(0, number): None for number in range(len(pairs))}
        return outcome

    def _matching(
        self, where: Path | Database, case: QueryPair, gold: RunResult, predicted: RunResult
    ) -> RunResult | None:
        """The gold's result if the prediction's is right beside it, with its ties where only these say so."""
        if self._judge(case, [gold], [predicted]):
            return gold
        if not self._ordered(case.gold) or not self._judge(replace(case, gold=UNORDERED), [gold], [predicted]):
            return None
        tied = placed(case.gold, gold, lambda sql: self._run_on(where, [sql], [(-1, 0, ROWS)]).results[0, 0])
        return tied if self._judge(case, [tied], [predicted]) else None

    def _judge(self, case: QueryPair, gold: Sequence[RunResult], predicted: Sequence[RunResult]) -> bool:
        return self.rule.judge(
            gold, predicted, gold_sql=case.gold, predicted_sql=case.predicted, question=case.question
        )

    def _columns_match_as_they_are(self, case: QueryPair, gold: RunResult, predicted: RunResult) -> bool:
        """Whether column i matches column i: a first row of marks leaves no other assignment."""
        marks = tuple(f"\0column {n}" for n in range(len(gold.columns)))
        if len(predicted.columns) != len(marks):
            return False
        pinned = [RunResult(True, result.columns, (marks, *result.rows)) for result in (gold, predicted)]
        return self._judge(case, pinned[:1], pinned[1:])

    def _on_original(
        self, outcome: PairsResult, pair: Pair, number: int, case: QueryPair, where: Path | Database
    ) -> Verdict:
        gold, predicted = (outcome.results.get((0, index)) for index in pair[:2])
        verdict = Verdict(
            gold if (0, pair[0]) in outcome.rows_sent or (gold and not gold.success) else None,
            predicted if (0, pair[1]) in outcome.rows_sent or (predicted and not predicted.success) else None,
        )
        value = outcome.verdict(0, number)
        if value is None and gold is not None and predicted is not None:
            matching = self._matching(where, case, gold, predicted)
            verdict.right = matching is not None
            verdict.on_original = (matching or gold, predicted)
            plain = verdict.right and self.rule.joint
            verdict.plain = plain and self._columns_match_as_they_are(case, gold, predicted)
        else:
            verdict.right = value == 1
        return verdict

    # ------------------------------------------------------------------------------------- replicas

    def _on_replicas(
        self, path: Path, files: Sequence[Path], cases: Sequence[QueryPair], verdicts: Sequence[Verdict]
    ) -> None:
        """Fill in ``robust`` and ``replicas`` of cases that are right on the original.

        A replica says nothing where the gold fails on it, or where the two differ in what of the gold's own answer
        depends on the physical order of rows.
        """
        table = _Table(self.prepare)
        tried = []
        for case, verdict in zip(cases, verdicts, strict=True):
            rows = ROWS if self.rule.joint and not verdict.plain else 0
            pair = table.pair(case.gold, case.predicted, rows | self._ordered(case.gold))
            tried.append(_Tried(case, verdict, pair))
            verdict.replicas = 0
        waiting = {0: tried}  # next replica -> cases: the worker stops at any difference
        while waiting:
            first = min(waiting)
            group = waiting.pop(first)
            if first >= len(files):
                continue
            outcome = self._run(files[first:], table.sql, [one.pair for one in group])
            for at, file in enumerate(files[first:]):
                wrong = [n for (f, n), value in outcome.verdicts.items() if f == at and value == 0]
                self._learn_ties(file, [group[n].case.gold for n in wrong])
            for position, one in enumerate(group):
                go_on = self._follow(files, first, outcome, position, one)
                if go_on is not None:
                    waiting.setdefault(go_on, []).append(one)
        for one in tried:
            if one.verdict.robust and self.rule.joint and not one.verdict.plain:
                one.verdict.robust = self._fits_everywhere([path, *files], one)

    def _follow(
        self, files: Sequence[Path], first: int, outcome: PairsResult, position: int, one: _Tried
    ) -> int | None:
        """Take in what ``outcome`` says of one case; the replica to go on with, or None."""
        case, verdict = one.case, one.verdict
        if outcome.times_right[position] == len(files) - first:
            verdict.replicas += len(files) - first
            return None
        for number, file in enumerate(files[first:]):
            value = outcome.verdict(number, position)
            gold, predicted = (outcome.results.get((number, index)) for index in one.pair[:2])
            if value == 2:
                continue
            if value is None and gold is not None and predicted is not None:
                matching = self._matching(file, case, gold, predicted)
                if matching is not None:
                    one.together.append((matching, predicted))
                    if verdict.plain and self.rule.joint:
                        verdict.plain = self._columns_match_as_they_are(case, matching, predicted)
                    value = 1
            if value == 1:
                verdict.replicas += 1
            elif not self._excused(file, case.gold, gold, predicted, value == 0):
                verdict.robust = False
                verdict.replicas = len(files)
                return None
            elif value == 0:
                return first + number + 1
        return None

    def _excused(
        self, replica: Path, gold_sql: str, gold: RunResult | None, predicted: RunResult | None, certain: bool
    ) -> bool:
        """Whether a difference on a replica may come of the order in which rows lie there.

        Not where the prediction does not run; and where only the order of the gold's rows is
        arbitrary, not where the rows themselves differ. ``certain``: the worker's own verdict, that
        they do, which has no rows.
        """
        if predicted is not None and not self.rule.usable(predicted):
            return False
        self._learn_ties(replica, [gold_sql])
        kind = self.ties.get((replica, gold_sql), FIXED)
        if kind == ORDER and gold is not None and predicted is not None:
            return not certain and self._same(gold, predicted, UNORDERED)
        return kind == ROWS_TOO

    def _learn_ties(self, replica: Path, golds: Sequence[str]) -> None:
        """Find out what of several golds' answers rests on the physical order of rows."""
        from nl2sql.eval.replicas import shuffled_copies

        new = (gold for gold in dict.fromkeys(golds) if (replica, gold) not in self.ties)
        asked = [gold for gold in new if not order_free(gold)]
        if not asked:
            return
        files = [replica, *shuffled_copies(replica, ROW_ORDERS)]
        pairs = [(-1, n, ROWS) for n in range(len(asked))]
        outcome = self._run(files, [self.prepare(gold) for gold in asked], pairs)
        for n, gold in enumerate(asked):
            expected, *others = (outcome.results[file, n] for file in range(len(files)))
            usable = [other for other in others if self.rule.usable(other)]
            known = ROWS_TOO
            for kind, text in ((ORDER, UNORDERED), (FIXED, gold)):
                if all(self._same(expected, other, text) for other in usable):
                    known = kind
            self.ties[replica, gold] = known

    def _same(self, expected: RunResult, other: RunResult, gold: str) -> bool:
        return self._judge(QueryPair(gold, gold), [expected], [other])

    def _fits_everywhere(self, files: Sequence[Path], one: _Tried) -> bool:
        """Whether one column assignment fits the original and all replicas that say something."""
        case, verdict = one.case, one.verdict
        results = [verdict.on_original, *one.together] if verdict.on_original else []
        if not results or len(one.together) < verdict.replicas:  # rows stayed in the worker
            table = _Table(self.prepare)
            pair = table.pair(case.gold, case.predicted, ROWS | self._ordered(case.gold))
            outcome = self._run(files, table.sql, [pair])
            results = []
            for number, file in enumerate(files):
                gold, predicted = (outcome.results.get((number, index)) for index in pair[:2])
                if gold is None or predicted is None or outcome.verdict(number, 0) == 2:
                    continue
                matching = self._matching(file, case, gold, predicted)
                if number == 0 or matching is not None:
                    results.append((matching or gold, predicted))
        return self._judge(case, [pair[0] for pair in results], [pair[1] for pair in results])


@dataclass
class _Tried:
    """A case on the replicas. ``together``: results of both sides, where their rows are here."""

    case: QueryPair
    verdict: Verdict
    pair: Pair
    together: list[tuple[RunResult, RunResult]] = field(default_factory=list)


class _Table:
    """The statements of a batch, each once."""

    def __init__(self, prepare: Callable[[str], str]) -> None:
        self.prepare = prepare
        self.sql: list[str] = []
        self.places: dict[str, int] = {}  # text as given -> index
        self._by_prepared: dict[str, int] = {}

    def pair(self, gold: str | None, predicted: str | None, flags: int) -> Pair:
        return self._place(gold), self._place(predicted), flags

    def _place(self, text: str | None) -> int:
        if text is None:
            return -1
        if text not in self.places:
            prepared = self.prepare(text)
            index = self._by_prepared.setdefault(prepared, len(self.sql))
            if index == len(self.sql):
                self.sql.append(prepared)
            self.places[text] = index
        return self.places[text]
