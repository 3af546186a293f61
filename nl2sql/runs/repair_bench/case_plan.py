"""What decides the cases of a benchmark of repairs, the folder that keeps them, and those written by hand.

``cases.jsonl`` is written once; ``bench.json`` says what it was made from; ``corpus.db`` holds what was learned for
it; ``clickhouse/`` and ``bank.sqlite`` its databases. Results of further arms and models are added to the same folder.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.errors import BenchmarkError, UsageError
from nl2sql.interfaces import Benchmark, Database, Question
from nl2sql.repair.corpus import Corpus
from nl2sql.runs.folder import exclusive, iter_jsonl, left_as_found, write_json
from nl2sql.runs.named import Trust
from nl2sql.runs.repair_bench.cases import (
    MAX_ROWS,
    TIMEOUT_S,
    Asked,
    CaseSource,
    RepairCase,
    SqliteSource,
    case_of,
    corrupted_cases,
    failed_in_runs,
    learn_from,
    learning_questions,
    refusal_of,
)
from nl2sql.runs.repair_bench.slips import FROM_SQLITE, KINDS

# ----------------------------------------------------------------------- the cases of ``bank.yaml``

FILE = Path(__file__).with_name("bank.yaml")
DATABASE = "bank"


def bank(folder: Path) -> FolderBenchmark:
    """The questions over a SQLite file in ``folder``, which is made where it is not there. Golds are ClickHouse's."""
    data = _read()
    path = folder / f"{DATABASE}.sqlite"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(data["schema"])
    questions = tuple(
        Question(entry["question"], DATABASE, f"{DATABASE}-{number}", gold=(entry["gold"].strip(),))
        for number, entry in enumerate(data["questions"])
    )
    return FolderBenchmark(DATABASE, questions, {}, {DATABASE: path}, source=str(FILE))


def written_cases(questions: FolderBenchmark, source: CaseSource) -> list[RepairCase]:
    """Those of the mistakes that fail on this version of the engine. Raises BenchmarkError for a gold that does."""
    wrong = {f"{DATABASE}-{number}": entry["wrong"] for number, entry in enumerate(_read()["questions"])}
    cases = []
    for question in questions.questions:
        opened = source.database(question.db_id)
        result = opened.run(question.gold[0], timeout_s=TIMEOUT_S, max_rows=MAX_ROWS)
        if not result.success:
            raise BenchmarkError(f"{FILE.name}, {question.id}: its gold fails: {result.error}")
        item = Asked(question, opened, question.gold, lambda sql: sql)
        for number, sql in enumerate(wrong[question.id]):
            if error := refusal_of(sql, opened):
                cases.append(case_of(DATABASE, "written", "written", f"written-{number}", sql, error, item))
    return cases


def _read() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


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


class Sources:
    """The databases of the cases, opened by the benchmark's name."""

    def __init__(self, dialect: str, folder: Path) -> None:
        self.dialect, self.folder = dialect, folder
        self._open: dict[tuple[str, str], CaseSource] = {}
        self._questions: dict[tuple[str, str], Benchmark] = {}

    def of(self, name: str, dialect: str = "") -> CaseSource:
        """The databases of a benchmark on an engine (default: the plan's)."""
        key = (name, dialect or self.dialect)
        if key not in self._open:
            benchmark = self.questions(name)
            if key[1] == "sqlite":
                self._open[key] = SqliteSource(name, benchmark)
            else:
                from nl2sql.runs.repair_bench.clickhouse import ClickHouseCopies

                folder = self.folder / "clickhouse" / Path(name).name
                self._open[key] = ClickHouseCopies(name, benchmark, folder)
        return self._open[key]

    def questions(self, name: str, split: str = "all") -> Benchmark:
        """The benchmark, or the written questions."""
        if (name, split) not in self._questions:
            benchmark = bank(self.folder) if name == DATABASE else load_benchmark(name, split=split)
            self._questions[name, split] = benchmark
        return self._questions[name, split]

    def database(self, case: RepairCase) -> Database:
        return self.of(case.benchmark, case.dialect).database(case.db_id)

    def close(self) -> None:
        for source in self._open.values():
            source.close()


@contextmanager
def open_cases(
    folder: Path, plan: CasePlan, *, progress: bool = True, trust: Trust | bool = False
) -> Iterator[tuple[list[RepairCase], Sources]]:
    """The cases of a plan and their databases; made where the folder is new, else read. trust: in the plan's runs.

    Raises UsageError where the folder holds the cases of another plan, or anything else.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be created: {error.strerror}") from None
    with left_as_found(folder, new), exclusive(folder):
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
    taught = learning_questions(sources.questions(name, split), split) if name else []
    cases = _made(plan, sources, progress, trust)
    if name:
        _learn(folder / LEARNED, plan, cases, (sources.of(name), taught), progress)
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


def _learn(
    path: Path, plan: CasePlan, cases: list[RepairCase], taught: tuple[CaseSource, list[Question]], progress: bool
) -> None:
    source, questions = taught
    slips, seed = SLIPS[plan.dialect], plan.seed + 1
    usable = [question for question in questions if scorable(question)]
    made = corrupted_cases(usable, source, plan.learn_count, seed, slips=slips, progress=progress)
    path.unlink(missing_ok=True)
    with Corpus(path, create=True) as corpus:
        learn_from(cases, corpus, made)
