"""Repair guidance inside the loop: what ``repair_sql`` shows the model, and what it mends without one.

>>> written = {"action": "generate_sql", "observation": {"sql": "SELECT nme FROM customers"}}
>>> refused = {"action": "validate_sql", "observation": {"valid": False, "reason": "unknown_column:nme"}}
>>> refused_candidates([written, refused])
[('SELECT nme FROM customers', 'unknown_column:nme')]

An episode's failures accumulate in the prompt, so that a repair does not undo an earlier one. A question is never
helped by a fix that was stored from itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.agents import prompts
from nl2sql.agents.checks.literal_repair import repair_literals
from nl2sql.agents.task import State, Task
from nl2sql.agents.writing import guard, write_sql
from nl2sql.config import RepairConfig
from nl2sql.errors import DatabaseError, UsageError, one_line
from nl2sql.interfaces import USER, Sampling
from nl2sql.repair.analyzer import ErrorAnalyzer, engine_refusal, engine_version
from nl2sql.repair.deterministic import autofix, fault, valid_part

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus, Repair

CHECKS = frozenset(("validate_sql", "validate_constraints", "run_sql"))  # whose observations judge a candidate
MAX_ATTEMPTS = 3  # earlier failures shown, the youngest
SAMPLED, TOP_P = 0.8, 0.95  # of sampled repairs
MAX_ERROR = 300  # characters of an earlier failure's reason: engines quote whole statements


def check_corpus(config: RepairConfig) -> None:
    """Raises UsageError or DatabaseError before a run whose corpus is not named, not there, or not usable."""
    if config.guidance == "patterns+corpus" or config.learn:
        corpus_of(config)


def corpus_of(config: RepairConfig) -> Corpus:
    """The corpus that ``config`` names; made when it is to be learned into. Raises UsageError, DatabaseError."""
    if not config.corpus:
        needs = "repair.learn=true" if config.learn else "repair.guidance=patterns+corpus"
        raise UsageError(f"{needs} needs a corpus; give -c repair.corpus=FILE")
    path = Path(config.corpus).expanduser().absolute()
    return _opened(path, path.stat().st_ino if path.exists() else 0, config.learn, config.milvus)


def corpus_print(config: RepairConfig) -> str:
    """The content hash of the corpus that decides what repairs are shown; "" where none does, and where the run itself
    writes it (``repair.learn``): then it changes from question to question."""
    return corpus_of(config).content_hash() if config.guidance == "patterns+corpus" and not config.learn else ""


@functools.lru_cache(maxsize=4)
def _opened(path: Path, file: int, create: bool, uri: str) -> Corpus:
    """An open corpus keeps its vectors in memory, so all episodes of a process share it (as they do query workers)."""
    from nl2sql.repair.corpus import Corpus

    if not uri:
        return Corpus(path, create=create)
    from nl2sql.repair.store import milvus

    return Corpus(path, create=create, index=milvus(uri))


def remember(state: State) -> None:
    """With ``repair.learn``: store the episode's repair (last failed attempt, success), unless its question is one
    that a benchmark measures with: those must not help themselves. A user's questions may.

    The episode is over: what keeps the corpus from taking its repair is recorded, and changes nothing else."""
    from nl2sql.repair.corpus import LEARNING_SPLITS, learn, source_of_question

    task = state.task
    question = task.question
    repairs = repairs_of_trace(state.trace, question.text)
    if not task.config.repair.learn or not repairs:
        return
    if question.split not in LEARNING_SPLITS | {USER}:
        task.flags["not_learned"] = f"split {question.split!r}"
        return
    corpus, dialect = task.resources.corpus, task.resources.database.dialect
    try:
        task.flags["learned"] = learn(corpus, repairs, dialect=dialect, source=source_of_question(question))
    except (UsageError, DatabaseError) as error:  # too long a text; a corpus that another process holds, or damaged
        task.flags["not_learned"] = one_line(error, MAX_ERROR)


def fixed(state: State, error: str) -> str | None:
    """The current SQL repaired without the model, with ``repair.deterministic``; None where that is off or fails."""
    task = state.task
    if not task.config.repair.deterministic or not state.last_sql:
        return None
    database = task.resources.database
    repaired = autofix(state.last_sql, error, database, task.schema) or repair_literals(state.last_sql, database)
    if repaired is None or any(repaired.strip() == sql.strip() for sql, _ in refused_candidates(state.trace)):
        return None
    task.count("deterministic_repairs")
    return repaired


def written(state: State, asked: list[dict[str, str]]) -> str:
    """The model's repair as raw text. With ``repair.samples``, one that the engine refuses gives way to the first of so
    many sampled ones that it takes."""
    task = state.task
    config, limit = task.config.repair, task.config.react.max_new_tokens
    options: dict[str, Any] = {"constrained": True} if config.grammar else {}
    raw = write_sql(task, asked, limit, sampling=task.sampling(), **options)[0]
    if not config.samples or _compiles(task, raw):
        return raw
    drawn = write_sql(task, asked, limit, sampling=Sampling(SAMPLED, TOP_P), n=config.samples, **options)
    return next((other for other in drawn if _compiles(task, other)), raw)


def _compiles(task: Task, raw: str) -> bool:
    sql, reason = guard(task, raw, enabled=task.config.react.guardrails)
    return reason is None and not fault(sql, task.resources.database, task.schema)


def messages(state: State, sql: str, error: str) -> list[dict[str, str]] | None:
    """The prompt that repairs ``sql``, the current SQL, for ``repair.guidance``; None for level ``error``, the
    specification's own prompt."""
    task = state.task
    if task.config.repair.guidance == "error":
        return None
    refused = refused_candidates(state.trace)
    earlier = [(tried, why[:MAX_ERROR]) for tried, why in refused if tried.strip() != sql.strip()][-MAX_ATTEMPTS:]
    valid, guide = valid_part(sql, task.resources.database), guidance(state, sql, error)
    shown, overrides = task.schema_text_focus, task.config.prompts
    return prompts.guided_repair_messages(task.nlq, sql or "(none)", error, shown, guide, earlier, valid, overrides)


def guidance(state: State, sql: str, error: str) -> Any:
    """Guidance for ``sql``: the engine's own words where it refuses the statement, else the loop's reason."""
    from nl2sql.repair.corpus import source_of_question

    task = state.task
    database, config = task.resources.database, task.config.repair
    corpus = task.resources.corpus if config.guidance == "patterns+corpus" else None
    refused = engine_refusal(sql, database) if sql else ""
    source = source_of_question(task.question)
    analyzer = _analyzer(database.dialect, corpus, config.threshold, engine_version(database), config.search_s)
    return analyzer.analyze_error(refused or error, sql, task.schema, exclude=source)


@functools.lru_cache(maxsize=4)
def _analyzer(dialect: str, corpus: Corpus | None, threshold: float, version: str, search_s: float) -> ErrorAnalyzer:
    """One for all episodes on a corpus, so that an error that was met before is answered without a search."""
    return ErrorAnalyzer(dialect, corpus, threshold=threshold, version=version, search_s=search_s)


def refused_candidates(trace: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The candidates in a trace that a validation or their run refused, each with its last error, in its order."""
    reasons: dict[str, str] = {}
    for _, sql, passed, reason in _judged(trace):
        if sql and not passed:
            reasons.pop(sql, None)  # one that fails again is the youngest
            reasons[sql] = reason
    return list(reasons.items())


def repairs_of_trace(trace: Iterable[Mapping[str, Any]], question: str = "") -> list[Repair]:
    """Each (last failed attempt, success) in a trace: a candidate that a validation or its run refused, and the next
    one that ran and passed the intent check."""
    from nl2sql.repair.corpus import Repair

    repairs: list[Repair] = []
    failed = ("", "")
    for action, written_sql, passed, reason in _judged(trace):
        sql = written_sql.strip().rstrip(";")
        if not passed:
            failed = (sql, reason)
        elif action == "run_sql":
            if failed[0] and failed[0] != sql:
                repairs.append(Repair(question, failed[1], failed[0], sql))
            failed = ("", "")
    return repairs


def _judged(trace: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, bool, str]]:
    """Each check of a candidate: (the check, the candidate, whether it passed, why not)."""
    sql = ""
    for record in trace:
        action, seen = record.get("action"), record.get("observation")
        if not isinstance(seen, Mapping):
            continue
        if action in ("generate_sql", "repair_sql") and seen.get("sql"):
            sql = str(seen["sql"])
        elif action in CHECKS and isinstance(passed := seen.get("valid", seen.get("success")), bool):
            yield action, sql, passed, str(seen.get("reason") or seen.get("error") or "")
