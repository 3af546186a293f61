"""Cases: statements that really fail on a real database, each with its question, the engine's error and the golds.

Three origins: ``corruption`` (a gold made wrong by a slip), ``written`` (``bank.yaml``: mistakes written by hand) and
``model`` (what a model wrote in a run and the engine refused). The same seed gives the same cases.

Of a benchmark's folder ``cases.jsonl`` is written once; ``bench.json`` says what it was made from; ``corpus.db`` holds
what was learned for it; ``clickhouse/`` and ``bank.sqlite`` its databases. Results of further arms and models are added
to the same folder.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from nl2sql.agents.repairing import refused_candidates
from nl2sql.benchmarks import scorable
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.errors import BenchmarkError, UsageError
from nl2sql.interfaces import Database, Question, content_key
from nl2sql.repair.analyzer import ErrorAnalyzer, engine_version
from nl2sql.repair.corpus import LEARNING_SPLITS, Corpus, Repair, learn, source_of
from nl2sql.repair.deterministic import fault
from nl2sql.runs.folder import iter_jsonl, left_as_found, locked, made, write_json
from nl2sql.runs.plan import Trust, benchmark_of, read_plan
from nl2sql.runs.repair_bench.slips import FROM_SQLITE, KINDS, Slip
from nl2sql.runs.repair_bench.sources import BANK, BOUNDS, DATABASE, Asked, Source, Sources, bank, translated
from nl2sql.runs.run import Run
from nl2sql.sql.same import same_words

TRIES = 3  # random choices of one slip on one gold
AS_WRITTEN = ("another_dialect", "sqlite_s_own")  # slips of the dialect itself, which are not translated
OF_THE_TEXT = (  # made of the engine's own gold: a translation would put them right
    *("broken_syntax", "clauses_in_the_wrong_order", "unclosed_parenthesis", "comma_before_a_clause"),
    "another_s_function",
)


@dataclass(frozen=True)
class RepairCase:
    """One failing statement. ``gold`` are in the engine's dialect; ``ordered_by`` is the text whose ORDER BY counts."""

    id: str
    benchmark: str  # whose database it is, as ``load_benchmark`` takes it
    origin: str
    kind: str
    category: str
    dialect: str
    db_id: str
    question_id: str
    question: str
    sql: str
    error: str
    gold: tuple[str, ...]
    ordered_by: str
    evidence: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RepairCase:
        return cls(**{**data, "gold": tuple(data["gold"])})


def corrupted_cases(
    questions: Sequence[Question],
    source: Source,
    count: int,
    seed: int,
    *,
    slips: Mapping[str, Slip] = KINDS,
    progress: bool = True,
) -> list[RepairCase]:
    """``count`` cases from golds made wrong, as evenly over questions and kinds as they can be had.

    Every question is tried with every kind; each pass over the questions gives each another kind. Fewer where there
    are no more. Raises UsageError where not one was found.
    """
    order, names = list(questions), list(slips)
    random.Random(seed).shuffle(order)
    cases: dict[tuple[str, str], RepairCase] = {}
    opened: dict[str, Asked | None] = {}
    with tqdm(total=count, desc="cases", unit="case", disable=not progress) as bar:
        for turn in range(len(names)):
            for place, question in enumerate(order):
                if len(cases) >= count:
                    return list(cases.values())
                if question.id not in opened:
                    opened[question.id] = source.asked(question)
                item, kind = opened[question.id], names[(place + turn) % len(names)]
                case = _slipped(source.name, item, kind, slips[kind], seed) if item is not None else None
                if case is not None and (question.id, case.sql) not in cases:
                    cases[question.id, case.sql] = case
                    bar.update()
    if not cases:
        raise UsageError("none of these questions has a gold that runs, gives rows, and fails when it is made wrong")
    return list(cases.values())


def _slipped(source: str, item: Asked, kind: str, slip: Slip, seed: int) -> RepairCase | None:
    """The first of a few tries that fails on the engine."""
    rng = random.Random(f"{seed}/{item.question.id}/{kind}")
    schema, dialect = item.database.schema(), item.database.dialect
    for _ in range(TRIES):
        wrong = slip(item.golds[0] if kind in OF_THE_TEXT else item.question.gold[0], schema, rng)
        if wrong is None:
            continue
        text = wrong if kind in AS_WRITTEN + OF_THE_TEXT else translated(wrong, dialect)
        if any(same_words(text, gold, dialect) for gold in item.golds):
            continue
        if error := refusal_of(text, item.database):
            return case_of(source, "corruption", kind, kind, text, error, item)
    return None


def case_of(source: str, origin: str, kind: str, label: str, sql: str, error: str, item: Asked) -> RepairCase:
    """A case of ``item``, told by ``label`` from others of its question; its category is that of the pattern that
    matches the error."""
    question, database = item.question, item.database
    guidance = ErrorAnalyzer(database.dialect, version=engine_version(database)).analyze_error(error, sql)
    return RepairCase(
        id=f"{database.dialect}/{source_of(question.db_id, question.id)}/{label}",
        benchmark=source,
        origin=origin,
        kind=kind,
        category=guidance.category,
        dialect=database.dialect,
        db_id=question.db_id,
        question_id=question.id,
        question=question.text,
        sql=sql.strip().rstrip(";"),
        error=error,
        gold=item.golds,
        ordered_by=question.gold[0],
        evidence=question.evidence,
    )


def refusal_of(sql: str, database: Database) -> str:
    """What the engine says against a statement, "" where it takes it. On other engines than SQLite it is executed too:
    values of wrong types show only then."""
    error = fault(sql, database, database.schema())
    if error or database.dialect == "sqlite":
        return error
    result = database.run(sql, **BOUNDS)
    return "" if result.success or result.error_kind == "timeout" else result.error or "refused"


def failed_in_runs(folders: Iterable[Path], trust: Trust | bool = False) -> Iterator[RepairCase]:
    """``failed_in_run`` of each folder; those that share a name are told apart by a hash of their place."""
    places = dict.fromkeys(folder.resolve() for folder in folders)
    names = [place.name for place in places]
    for place in places:
        suffix = f"-{content_key(str(place))[:8]}" if names.count(place.name) > 1 else ""
        yield from failed_in_run(place, f"{place.name}{suffix}", trust)


def failed_in_run(folder: Path, label: str, trust: Trust | bool = False) -> Iterator[RepairCase]:
    """What the model of a run wrote and the engine refused: its answers, and the loop's candidates on the way to them;
    each statement once a question. ``label``: of the run, in the cases' ids.

    Raises UsageError for a folder that is no run, or one whose benchmark was a Python object.
    """
    run, (plan, _) = Run.load(folder), read_plan(folder)
    if "benchmark" in plan.objects:
        raise UsageError(f"{folder} was run on a benchmark object; its databases cannot be opened from here")
    benchmark = benchmark_of(folder, trust)
    source = Source(plan.benchmark, benchmark.database, benchmark.database)
    questions = {question.id: question for question in benchmark.questions}
    for name, part in run.parts().items():
        traces = {trace["id"]: trace["trace"] for trace in part.traces(("trace",))}
        for answer in part.predictions():
            question = questions.get(answer["id"])
            item = source.asked(question) if question is not None else None
            if item is None:
                continue
            texts = [*(sql for sql, _ in refused_candidates(traces.get(answer["id"], ()))), answer["sql"] or ""]
            for number, sql in enumerate(dict.fromkeys(text.strip().rstrip(";") for text in texts)):
                if sql and (error := refusal_of(sql, item.database)):
                    yield case_of(source.name, "model", "model", f"{label}{name}-{number}", sql, error, item)


def learn_from(cases: Iterable[RepairCase], corpus: Any, taught: Iterable[RepairCase]) -> int:
    """Store ``taught`` cases as fixes in ``corpus``; how many were new.

    Raises UsageError where one of them asks a question of ``cases``: it would help itself.
    """
    tested = {(case.db_id, case.question.strip().lower()) for case in cases}
    stored = 0
    with corpus.batch():
        for case in taught:
            if (case.db_id, case.question.strip().lower()) in tested:
                raise UsageError(f"question {case.question_id!r} is both learned from and measured; name another split")
            repair = Repair(case.question, case.error, case.sql, case.gold[0])
            source = source_of(case.db_id, case.question_id)
            stored += learn(corpus, [repair], dialect=case.dialect, source=source)
    return stored


def written_cases(questions: FolderBenchmark, source: Source) -> list[RepairCase]:
    """Those of the mistakes that fail on this version of the engine. Raises BenchmarkError for a gold that does."""
    cases = []
    for question in questions.questions:
        opened = source.database(question.db_id)
        result = opened.run(question.gold[0], **BOUNDS)
        if not result.success:
            raise BenchmarkError(f"{BANK.name}, {question.id}: its gold fails: {result.error}")
        item = Asked(question, opened, question.gold)
        for number, sql in enumerate(question.meta["wrong"]):
            if error := refusal_of(sql, opened):
                cases.append(case_of(DATABASE, "written", "written", f"written-{number}", sql, error, item))
    return cases


# -------------------------------------------------------------------------- the plan and its folder

FORMAT = 1
CASES, ABOUT, LEARNED = "cases.jsonl", "bench.json", "corpus.db"
SLIPS = {"sqlite": KINDS, "clickhouse": KINDS | FROM_SQLITE}


@dataclass(frozen=True)
class CasePlan:
    """Which cases: ``count`` corruptions of a split's golds, written mistakes (ClickHouse), failures in ``runs``.

    ``learn_from``: BENCHMARK:SPLIT from whose golds ``learn_count`` fixes are made for the arm ``patterns+corpus``.
    """

    benchmark: str = "packaged"
    split: str = "test"
    dialect: str = "sqlite"
    count: int = 300
    seed: int = 0
    runs: tuple[str, ...] = ()
    learn_from: str = ""
    learn_count: int = 1000


@contextmanager
def open_cases(
    folder: Path, plan: CasePlan, *, progress: bool = True, trust: Trust | bool = False
) -> Iterator[tuple[list[RepairCase], Sources]]:
    """The cases of a plan and their databases; made where the folder is new, else read. trust: in the plan's runs.

    Raises UsageError where the folder holds the cases of another plan, or anything else.
    """
    new = not folder.exists()
    with left_as_found(made(folder), new), locked(folder, cut=True):
        sources = Sources(plan.dialect, folder)
        try:
            yield _cases(folder, plan, sources, progress, trust), sources
        finally:
            sources.close()


def _cases(folder: Path, plan: CasePlan, sources: Sources, progress: bool, trust: Trust | bool) -> list[RepairCase]:
    about = {"format": FORMAT, "plan": json.loads(json.dumps(asdict(plan)))}
    if (folder / ABOUT).exists():
        kept = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if kept != about:
            old, new = kept.get("plan", {}), about["plan"]
            changed = ", ".join(f"{name} {old.get(name)!r}" for name in new if old.get(name) != new[name])
            raise UsageError(f"{folder} holds cases of {changed or 'another version'}; name another --out")
        return [RepairCase.from_dict(row) for row in iter_jsonl(folder / CASES)]
    ours = (CASES, LEARNED, DATABASE, "clickhouse", ".")
    if any(not path.name.startswith(ours) for path in folder.iterdir()):
        raise UsageError(f"--out {folder} holds something else; name a new folder")
    name, _, split = plan.learn_from.rpartition(":")
    if plan.learn_from and not name:
        raise UsageError(f"--learn-from {plan.learn_from!r}: expected BENCHMARK:SPLIT, such as packaged:dev")
    if name and split not in LEARNING_SPLITS:
        raise UsageError(f"split {split!r} is not one to learn from; expected {', '.join(sorted(LEARNING_SPLITS))}")
    taught = [question for question in sources.questions(name, split).questions if scorable(question)] if name else []
    cases = _made(plan, sources, progress, trust)
    if name:
        slips, seed = SLIPS[plan.dialect], plan.seed + 1
        made = corrupted_cases(taught, sources.of(name), plan.learn_count, seed, slips=slips, progress=progress)
        (folder / LEARNED).unlink(missing_ok=True)
        with Corpus(folder / LEARNED, create=True) as corpus:
            learn_from(cases, corpus, made)
    lines = [json.dumps(case.to_dict(), ensure_ascii=False) + "\n" for case in cases]
    (folder / CASES).write_text("".join(lines), encoding="utf-8")
    write_json(folder / ABOUT, about)  # last: what is there is complete
    return cases


def _made(plan: CasePlan, sources: Sources, progress: bool, trust: Trust | bool) -> list[RepairCase]:
    cases: list[RepairCase] = []
    if plan.count:
        questions = [q for q in sources.questions(plan.benchmark, plan.split).questions if scorable(q)]
        source = sources.of(plan.benchmark)
        cases += corrupted_cases(questions, source, plan.count, plan.seed, slips=SLIPS[plan.dialect], progress=progress)
    if plan.dialect != "sqlite":
        cases += written_cases(bank(sources.folder), sources.of(DATABASE))
    cases += failed_in_runs(map(Path, plan.runs), trust)
    if not cases:
        raise UsageError("there is nothing to repair: give --cases 1 or more, or --run with failures in it")
    return cases
