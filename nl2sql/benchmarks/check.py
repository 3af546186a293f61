"""Are a benchmark's golds fit to score with? No model is needed.

Golds that run and do not answer are found by running them without a slip:

>>> [reason.split(":")[0] for reason, *_ in without_slips("SELECT name FROM t ORDER BY size LIMIT 1")]
['NULL stands first', 'numbers stand as text']
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nl2sql.benchmarks.core import exclusion_reason, scorable
from nl2sql.errors import DatabaseError, Nl2SqlError, UsageError
from nl2sql.eval import Scores, score_many
from nl2sql.eval.predictions import with_gold
from nl2sql.eval.rules import gold_order, placed, results_match
from nl2sql.interfaces import Benchmark, Question
from nl2sql.machine import from_json, from_yaml
from nl2sql.sql.features import UNKNOWN, hardness
from nl2sql.sql.parse import parse_bounded, parse_query

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool

FOUND_HERE = ("db_missing", "no_gold")  # reasons that no benchmark declares: they are faults, not known exceptions
NULLS = "NULL stands first: ORDER BY with LIMIT takes rows without a value (add IS NOT NULL, or NULLS LAST)"
TEXTS = "numbers stand as text: '9' is more than '10' in what is sorted, compared, or the largest (CAST them)"
TODAY = "the answer depends on today's date"
NUMBER = (  # an expression, written otherwise where it is the text of a whole or decimal number
    "CASE WHEN typeof({0}) = 'text' AND trim({0}, '+-.') <> '' AND NOT ltrim({0}, '+-') GLOB '*[^0-9.]*' "
    "AND NOT {0} LIKE '%.%.%' THEN {1} ELSE {0} END"
)
CLOCK = frozenset(("date", "time", "datetime", "julianday", "unixepoch"))  # of now where they are given nothing
ORDERS = (None, 0, 1)  # physical row orders that golds are run on: reversed, and two at random


@dataclass(frozen=True)
class Fault:
    """One reason why a question's gold cannot be relied on."""

    id: str
    db_id: str
    reason: str


def check_questions(
    benchmark: Benchmark,
    questions: Sequence[Question],
    *,
    timeout_s: float = 30.0,
    max_rows: int = 100_000,
    pool: QueryPool | None = None,
    progress: bool = False,
) -> list[Fault]:
    """Faults of the golds: does not run, no rows, another answer under another row order, wrong difficulty; and what
    runs and does not answer (``without_slips``): NULL stands first, numbers stand as text, today's date.

    Questions that the benchmark itself flags (``benchmarks.scorable``) are passed over. Every accepted gold is run;
    that it returns rows is asked of the first only.
    """
    if pool is None:
        from nl2sql.databases.sqlite.database import default_pool

        pool = default_pool()
    wanted = [q for q in questions if (exclusion_reason(q) or "no_gold") in FOUND_HERE]
    checker = _Checker(benchmark, pool, timeout_s, max_rows)
    for db_id in dict.fromkeys(question.db_id for question in wanted):
        checker.prepare(db_id)
    with ThreadPoolExecutor(8, thread_name_prefix="check") as threads:
        by_question: Any = threads.map(lambda question: list(checker.faults(question)), wanted)
        if progress:
            from tqdm.auto import tqdm

            by_question = tqdm(by_question, total=len(wanted), desc="checking", unit="item")
        return [fault for faults in by_question for fault in faults]


class _Checker:
    def __init__(self, benchmark: Benchmark, pool: QueryPool, timeout_s: float, max_rows: int) -> None:
        self.benchmark, self.pool = benchmark, pool
        self.bounds: dict[str, Any] = {"timeout_s": timeout_s, "max_rows": max_rows}
        self.paths: dict[str, tuple[Path, list[Path]]] = {}
        self.troubles: dict[str, str] = {}

    def prepare(self, db_id: str) -> None:
        """Find the database and build its reordered copies."""
        from nl2sql.databases.sqlite.files import sqlite_file
        from nl2sql.eval.replicas import shuffled_copies

        try:
            database = self.benchmark.database(db_id)
            path = sqlite_file(database)
            if path is None:
                raise DatabaseError(
                    f"its database is one of {database.dialect}; golds are checked on SQLite files only"
                )
            self.paths[db_id] = path, shuffled_copies(path, ORDERS)
        except Nl2SqlError as error:
            self.troubles[db_id] = str(error)

    def faults(self, question: Question) -> Iterator[Fault]:
        def fault(reason: str) -> Fault:
            return Fault(question.id, question.db_id, reason)

        if not question.gold:
            yield fault("has no gold")
            return
        if question.db_id in self.troubles:
            yield fault(self.troubles[question.db_id])
            return
        for number, gold in enumerate(question.gold):
            reason = self._gold_fault(question.db_id, gold, needs_rows=number == 0)
            if reason:
                yield fault(reason if number == 0 else f"accepted gold {number + 1}: {reason}")
        level = hardness(question.gold[0])
        if question.difficulty not in (None, UNKNOWN, level):
            yield fault(f"difficulty is declared {question.difficulty}, its SQL is {level}")

    def _gold_fault(self, db_id: str, gold: str, *, needs_rows: bool) -> str | None:
        path, copies = self.paths[db_id]
        result = self.pool.run(path, gold, **self.bounds)
        if not result.success:
            return f"does not run: {result.error}"
        if result.truncated:
            return f"returns more than {self.bounds['max_rows']} rows"
        if needs_rows and not result.rows:
            return "returns no rows"
        if depends_on_today(gold):
            return TODAY
        for reason, *pair in without_slips(gold):
            other, as_it_is = (self.pool.run(path, sql, **self.bounds) for sql in pair)
            order = gold_order(gold, result) if reason == TEXTS else {"ordered": False}
            if other.success and as_it_is.success and not results_match(as_it_is, other, **order):
                return reason
        for shuffled in copies:
            other = self.pool.run(shuffled, gold, **self.bounds)
            if other.error_kind == "unknown_table":  # a virtual table, which the copies leave out
                continue
            if not other.success:
                return f"does not run on reordered rows: {other.error}"
            if not results_match(result, other, ordered=False):
                return "the answer depends on the order of rows (LIMIT over ties, or a bare column beside GROUP BY)"
            order = gold_order(gold, result)
            if not results_match(result, other, **order) and not results_match(
                placed(gold, result, lambda sql: self.pool.run(path, sql, **self.bounds)), other, **order
            ):
                return "ORDER BY leaves ties by a key that is not in the result: other right answers differ in order"
        return None


# --------------------------------------------------------------------------------------- slips


def depends_on_today(sql: str) -> bool:
    """Whether a query reads the clock. False where it cannot be parsed."""
    tree = parse_query(sql)
    return tree is not None and any(
        isinstance(node, exp.CurrentDate | exp.CurrentTime | exp.CurrentTimestamp)
        or (isinstance(node, exp.Literal) and node.is_string and node.this.lower() == "now")
        or (isinstance(node, exp.Func) and not any(node.iter_expressions()) and _name(node) in CLOCK)
        for node in tree.walk()
    )


def without_slips(sql: str) -> Iterator[tuple[str, str, str]]:
    """(what would be wrong, the query without it, the query beside it) for every slip that ``sql`` may have."""
    tree = parse_query(sql)
    if tree is None:
        return
    if any(order.parent and order.parent.args.get("limit") for order in tree.find_all(exp.Order)):
        copy = tree.copy()
        for ordered in copy.find_all(exp.Ordered):
            ordered.set("nulls_first", False)
        yield NULLS, copy.sql("sqlite"), sql
    text, number = _sides_as(tree, "{0}"), _sides_as(tree, "CAST({0} AS NUMERIC)")
    if text != number:
        yield TEXTS, number, text


def _sides_as(tree: Any, written: str) -> str:
    """The query with each text that is a number, where it is sorted, compared or the largest, ``written`` so."""
    copy = tree.copy()
    for node in list(copy.find_all(exp.Ordered, exp.Max, exp.Min, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Between)):
        for key in ("this", "expression", "low", "high"):
            side = node.args.get(key)
            constant = isinstance(side, exp.Literal) and side.is_string and not isinstance(node, exp.Ordered)
            if isinstance(side, exp.Column) or constant:
                text = side.sql("sqlite")
                side.replace(parse_bounded(NUMBER.format(text, written.format(text)), "sqlite"))
    return str(copy.sql("sqlite"))


def _name(function: Any) -> str:
    return str(function.name or function.key).lower()


# -------------------------------------------------------------------------------------- corrections

FIELDS = ("gold", "question", "evidence", "unfit", "found")


@dataclass(frozen=True)
class Correction:
    """What replaces a question's own; None: nothing does. ``unfit``: why the question is not scored at all."""

    gold: tuple[str, ...] | None = None
    question: str | None = None
    evidence: str | None = None
    unfit: str = ""


def read_corrections(path: str | Path) -> dict[str, Correction]:
    """Question id -> its correction, of a YAML or JSON file.

        dev-17: {gold: "SELECT name FROM t ORDER BY size DESC NULLS LAST LIMIT 1"}    # or a list of accepted ones
        dev-18: {question: "How many orders were shipped in 2024?", evidence: "shipped means status = 'S'"}
        dev-19: {unfit: "no column holds the answer"}                                 # left out of scores
        dev-20: {found: "returns no rows", gold: "SELECT ..."}                        # found: why, for the reader

    The benchmark's own files stay as published. Raises UsageError for a file that is missing,
    broken, or says something else.
    """
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        told = from_json(text) if path.suffix.lower() == ".json" else from_yaml(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"corrections {path} cannot be read: {error}") from None
    if not isinstance(told, dict):
        raise UsageError(f"corrections {path}: expected ID: {{{', '.join(FIELDS)}}}, found {str(told)[:60]!r}")
    return {str(id_): _correction(f"corrections {path}, {id_}", entry) for id_, entry in told.items()}


def _correction(where: str, entry: Any) -> Correction:
    if not isinstance(entry, dict) or (strange := [key for key in entry if key not in FIELDS]):
        found = strange[0] if isinstance(entry, dict) else entry
        raise UsageError(f"{where}: expected some of {', '.join(FIELDS)}, found {str(found)[:60]!r}")
    gold = entry.get("gold")
    golds = [gold] if isinstance(gold, str) else gold
    texts = [entry.get(field) for field in ("question", "evidence", "unfit", "found")]
    if not all(text is None or isinstance(text, str) for text in texts) or not (
        golds is None or (isinstance(golds, list) and golds and all(isinstance(sql, str) for sql in golds))
    ):
        raise UsageError(f"{where}: question, evidence and unfit are texts, gold is a text or a list of texts")
    return Correction(tuple(golds) if golds else None, texts[0], texts[1], texts[2] or "")


def corrected(questions: Iterable[Question], corrections: Mapping[str, Correction]) -> list[Question]:
    """The questions as corrected; one that is unfit is flagged so (``exclusion_reason``)."""
    return [_corrected(question, corrections.get(question.id, Correction())) for question in questions]


def with_corrections(benchmark: Benchmark, path: str | Path) -> Benchmark:
    """The same benchmark with its questions as the file corrects them. Raises UsageError."""
    laid_over = copy.copy(benchmark)
    laid_over.questions = corrected(benchmark.questions, read_corrections(path))
    return laid_over


def _corrected(question: Question, told: Correction) -> Question:
    if told.gold is not None and told.gold != question.gold:
        question = with_gold(question, *told.gold)
    if told.unfit:
        question = replace(question, meta={**question.meta, "unfit": told.unfit})
    text = question.text if told.question is None else told.question
    return replace(question, text=text, evidence=question.evidence if told.evidence is None else told.evidence)


def score_corrected(
    benchmark: Benchmark,
    questions: Sequence[Question],
    corrections: Mapping[str, Correction],
    predictions: Mapping[str, Mapping[str, str]],
    published: Mapping[str, Scores],
    **options: Any,
) -> dict[str, Scores]:
    """The scores under the corrected questions, without TS. What they do not touch keeps its verdict of ``published``.

    ``options``: as for ``score_many``. Raises UsageError where no correction is for one of the ``questions``.
    """
    if not any(question.id in corrections for question in questions):
        ids = ", ".join(list(corrections)[:3])
        raise UsageError(f"no correction is for one of the {len(questions)} questions; their ids: {ids}, ...")
    kept = [question for question in corrected(questions, corrections) if scorable(question)]
    if not kept:
        raise UsageError("the corrections leave no question to score")
    touched = {question.id: question for question in kept if question.id in corrections}
    answers = {name: {i: sql for i, sql in given.items() if i in touched} for name, given in predictions.items()}
    again = score_many(benchmark, list(touched.values()), answers, replicas=0, **options)
    both = {name: {item.id: item for item in (*scores.items, *again[name].items)} for name, scores in published.items()}
    return {
        name: replace(scores, items=[both[name][question.id] for question in kept], replicas=0, ts_name=None)
        for name, scores in published.items()
    }


def draft(faults: Sequence[Fault], questions: Sequence[Question]) -> str:
    """The first draft of such a file: what a check found, each with the gold as published. It changes nothing yet."""
    golds = {question.id: list(question.gold) for question in questions}
    entries: dict[str, dict[str, Any]] = {}
    for fault in faults:
        published = golds[fault.id][0] if len(golds[fault.id]) == 1 else golds[fault.id]
        entry = entries.setdefault(fault.id, {"found": fault.reason, **({"gold": published} if published else {})})
        entry["found"] = "; ".join(dict.fromkeys((entry["found"], fault.reason)))
    lines = [
        "# A draft of corrections. Correct each gold (a text, or a list of accepted ones), question or evidence; write",
        "# `unfit: why` where none is right; delete what is right as it stands. Then: nl2sql score --corrections FILE",
    ]
    for id_, entry in entries.items():
        lines += [f"{json.dumps(id_, ensure_ascii=False)}:"]
        lines += [f"  {field}: {json.dumps(value, ensure_ascii=False)}" for field, value in entry.items()]
    return "\n".join(lines) + "\n"
