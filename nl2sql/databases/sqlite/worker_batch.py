"""Many statements on several database files in one request: the part of ``worker.py`` that compares results.

>>> same_multiset([(1,), (2,)], [(2,), (1,)])
True

Imports nothing of nl2sql: the worker loads it as a plain sibling module. A batch is judged pair by pair (gold,
prediction), file by file. Each statement runs at most once per file; a result lives only until its last pair is
judged, and its rows travel only where a verdict needs the parent. A pair that failed on a file is not tried on the
next one.

Request (a JSON object): ``files`` [[uri, version], ...]; ``sql`` [text, ...]; ``pairs`` [[gold, predicted, flags],
...] as indexes into ``sql`` (-1: none); ``timeout`` s; ``max_rows``; ``mode``; ``blank``: a statement without content
may be right; ``failed`` [[file, sql index, kind, message], ...] not to be run again; ``dead``: pairs to leave out;
``start``: the first pair to judge on the first file; ``report``: the file of which all outcomes are wanted.

Messages back: ``["busy"]`` before lengthy work of our own, ``["parts", [file, next pair, news], ...]`` and at last
``["end", executed]``. ``news`` holds what is new:
``outcomes`` {sql index: outcome}, ``right`` [pair, ...] and ``verdicts`` {pair: verdict} (every pair that was tried is
in one of them) and ``rows`` {sql index: [columns, rows, cut]}. Verdicts: 1 right (as ``right``), 0 wrong, 2 the gold
does not run, null: for the parent to judge, whose rows are then sent.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

ORDERED, ROWS, ROWS_IF_WRONG = 1, 2, 4  # flags of a pair
FLUSH_S = 0.02  # news is never held back longer while statements end
FLUSH_BYTES = 256 * 1024  # of rows: the parent reads on while we execute
MANY_CELLS = 20_000  # a comparison of more is announced: the parent grants it time of its own


class Result:
    """The result of one statement. ``error`` is (exception or kind, message); ``rows`` are complete or cut."""

    __slots__ = ("cells", "columns", "error", "rows", "seconds", "truncated")

    def __init__(
        self,
        columns: list[str],
        rows: list[tuple],
        truncated: bool,
        seconds: float,
        error: tuple[str, str] | None = None,
    ) -> None:
        self.columns, self.rows, self.truncated, self.seconds = columns, rows, truncated, seconds
        self.error = error
        self.cells = len(columns) * len(rows)

    @property
    def usable(self) -> bool:
        return self.error is None and not self.truncated

    def outcome(self) -> list[Any]:
        if self.error:
            return [round(self.seconds, 6), *self.error]
        return [round(self.seconds, 6), len(self.columns), len(self.rows), self.truncated]


def verdict_by_equality(gold: Result, predicted: Result, ordered: bool, mode: str) -> int | None:
    """The verdict that equality alone can give; None where the rule itself has to look.

    ``mode``: "equal" (only equal results are right for certain), "set" (equal multisets too, unless ``ordered``),
    "bag" (and what differs in shape, or in the multisets of a column's values, is wrong for certain).
    """
    same_shape = len(gold.columns) == len(predicted.columns) and len(gold.rows) == len(predicted.rows)
    if same_shape and gold.rows == predicted.rows:
        return 1
    if mode == "equal":
        return None
    if not same_shape:
        return 0 if mode == "bag" else None
    if not ordered and same_multiset(gold.rows, predicted.rows):
        return 1
    return 0 if mode == "bag" and columns_differ(gold.rows, predicted.rows) else None


def same_multiset(gold: list[tuple], predicted: list[tuple]) -> bool:
    if sorted(map(hash, gold)) != sorted(map(hash, predicted)):  # equal values have equal hashes, 1 and 1.0 too
        return False
    return Counter(gold) == Counter(predicted)


def columns_differ(gold: list[tuple], predicted: list[tuple]) -> bool:
    """Whether the multisets of the columns' values cannot be paired; False where fractions make that uncertain."""
    for rows in (gold, predicted):
        if float in map(type, chain.from_iterable(rows)) and any(
            type(value) is float and value % 1 for value in chain.from_iterable(rows)
        ):
            return False
    ours, theirs = (
        sorted(sorted(map(hash, column)) for column in zip(*rows, strict=True)) for rows in (gold, predicted)
    )
    return ours != theirs


class Batch:
    """One request being worked off.

    ``on_file(uri, version, statements)`` gives what executes a statement on that file, within the request's bounds from
    a moment on: (columns, rows, truncated) or (kind of error, message); ``statements`` says about how many are to come.
    ``mark(file, index)`` notes what is being executed. ``send`` takes a message's JSON, ``encode`` makes JSON of rows.
    """

    def __init__(
        self,
        request: dict[str, Any],
        on_file: Callable[[str, str, int], Callable[[str, float], tuple]],
        mark: Callable[[int, int], None],
        send: Callable[[str], None],
        encode: Callable[[Any], str],
    ) -> None:
        self.request, self.on_file, self.mark, self.send, self.encode = request, on_file, mark, send, encode
        self.sql: list[str] = request["sql"]
        self.mode: str = request["mode"]
        self.pairs: list[list[int]] = request["pairs"]
        dead = set(request["dead"])
        self.alive = [k for k in range(len(self.pairs)) if k not in dead]
        self.failed = {(file, index): (kind, message) for file, index, kind, message in request["failed"]}
        self.executed = 0
        self.report: int = request["report"]
        self.flushed = self.now = time.monotonic()  # now: when the last statement ended
        self.parts: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self.outcomes: dict[int, list[Any]] = {}
        self.right: list[int] = []
        self.verdicts: dict[int, int | None] = {}
        self.row_parts: list[str] = []
        self.row_bytes = 0

    def work(self) -> None:
        last_uses = self.last_uses()
        for number, (uri, version) in enumerate(self.request["files"]):
            self.file = number
            self.fetch = self.on_file(uri, version, len(self.alive))
            start = self.request["start"] if number == 0 else 0
            self.results: dict[int, Result] = {}
            self.sent: set[int] = set()
            dead = set()
            for k in self.alive:
                if k < start:
                    continue
                verdict = self.judge(*self.pairs[k])
                if verdict == 1:
                    self.right.append(k)
                else:
                    self.verdicts[k] = verdict
                    if verdict == 0:
                        dead.add(k)
                for index in last_uses.get(k, ()):
                    self.results.pop(index, None)
                self.flush_if_due(k + 1)
            if dead:
                self.alive = [k for k in self.alive if k not in dead]
                last_uses = self.last_uses()
            self.end_part(len(self.pairs))
        self.flush()
        self.send(json.dumps(["end", self.executed]))

    def last_uses(self) -> dict[int, list[int]]:
        """Pair -> the statements whose results no later pair needs."""
        last = {index: k for k in self.alive for index in self.pairs[k][:2]}
        uses: dict[int, list[int]] = {}
        for index, k in last.items():
            uses.setdefault(k, []).append(index)
        return uses

    def judge(self, gold: int, predicted: int, flags: int) -> int | None:
        if gold < 0 or predicted < 0:
            result = self.result(gold if gold >= 0 else predicted)
            if flags & ROWS:
                self.send_rows(max(gold, predicted), result)
            return 1
        if gold == predicted and not flags & ROWS and self.result(gold).usable:
            return 1
        ours, theirs = self.result(gold), self.result(predicted)
        if ours.error or ours.truncated:
            return 2
        if theirs.error or theirs.truncated:
            if theirs.error and theirs.error[0] == "empty" and self.request["blank"]:
                self.send_rows(gold, ours)
                return None
            return 0
        if ours.cells + theirs.cells > MANY_CELLS:
            self.busy()
        verdict = None if flags & ROWS else verdict_by_equality(ours, theirs, bool(flags & ORDERED), self.mode)
        if verdict is None or (verdict == 0 and flags & ROWS_IF_WRONG):
            for index, result in ((gold, ours), (predicted, theirs)):
                self.send_rows(index, result)
        return verdict

    def result(self, index: int) -> Result:
        result = self.results.get(index)
        if result is None:
            result = self.results[index] = self.execute(index)
            if self.file == self.report or result.error or result.truncated:
                self.outcomes[index] = result.outcome()
        return result

    def execute(self, index: int) -> Result:
        if self.failed and (known := self.failed.get((self.file, index))):
            return Result([], [], False, 0.0, known)
        self.executed += 1
        self.mark(self.file, index)
        began = time.monotonic()
        try:
            fetched = self.fetch(self.sql[index], began)
        except MemoryError:
            self.results.clear()
            fetched = ("memory", "out of memory")
        self.now = time.monotonic()
        self.mark(-1, -1)
        if len(fetched) == 2:
            return Result([], [], False, self.now - began, fetched)
        columns, rows, truncated = fetched
        return Result(columns, rows, truncated, self.now - began)

    def send_rows(self, index: int, result: Result) -> None:
        if index in self.sent or result.error:
            return
        self.sent.add(index)
        if result.cells > MANY_CELLS:
            self.busy()
        cut = "true" if result.truncated else "false"
        part = f'"{index}":[{self.encode(result.columns)},{self.encode(result.rows)},{cut}]'
        self.row_parts.append(part)
        self.row_bytes += len(part)

    def busy(self) -> None:
        self.send('["busy"]')

    def flush_if_due(self, next_pair: int) -> None:
        if self.now - self.flushed > FLUSH_S or self.row_bytes > FLUSH_BYTES:
            self.end_part(next_pair)
            self.flush()

    def end_part(self, next_pair: int) -> None:
        """The news of this file since the last part, as one piece of the next message."""
        news = {"outcomes": self.outcomes, "right": self.right, "verdicts": self.verdicts}
        text = self.encode({k: v for k, v in news.items() if v})[:-1]
        if self.row_parts:
            text += ("," if len(text) > 1 else "") + f'"rows":{{{",".join(self.row_parts)}}}'
        self.parts.append(f"[{self.file},{next_pair},{text}}}]")
        self._clear()

    def flush(self) -> None:
        if self.parts:
            self.send(f'["parts",{",".join(self.parts)}]')
        self.parts.clear()
        self.flushed = self.now = time.monotonic()
