"""``nl2sql score --cases FILE``: every rule's verdict on a file of single pairs of queries, each with its database.

A case is ``{"id", "schema_sql", "gold", "pred"}``; the statements of ``schema_sql`` make its database, and ``@DIR@``
in any of the texts stands for the temporary folder that it lies in. Optional are what reference evaluators said
(``expect``, ``official``, ``readings``) and what a good evaluator should say (``harness_should``): the rules'
agreement with those is counted.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from nl2sql.errors import UsageError
from nl2sql.eval.rules import RULES, Rule, placed
from nl2sql.interfaces import RunResult
from nl2sql.machine import from_json

if TYPE_CHECKING:
    from nl2sql.databases.sqlite.database import QueryPool

Case = Mapping[str, Any]
Verdicts = dict[str, bool | None]

MAX_ROWS = 1_000_000  # the published evaluators know no bound; this one only keeps memory in check


def run_cases(path: str | Path, *, timeout_s: float = 10.0, pool: QueryPool | None = None) -> dict[str, Any]:
    """The verdicts of all ``RULES`` on the cases in ``path``, and how far they agree with what the file says.

    Returns ``{"cases": [{"id", "verdicts": {rule: bool | None}, "points", "error": str | None}], "agreement": {...}}``:
    None only where the gold fails; ``points`` (0 to 1) of rules that give half points; ``agreement`` per rule
    ``{"n", "agree", "differ": [ids], "refused": [ids]}`` (see ``_agreement``). ``timeout_s`` bounds each statement.
    Gold and prediction are executed separately, also where they are the same text. UsageError for a file that is
    missing or does not have this form.
    """
    cases = _read(Path(path))
    if pool is None:
        from nl2sql.databases.sqlite.database import default_pool

        pool = default_pool()
    with ThreadPoolExecutor(pool.workers, thread_name_prefix="cases") as threads:
        judged = list(threads.map(lambda case: _Judged(case, pool, timeout_s), cases))
    entries = [
        {
            "id": str(number if case.get("id") is None else case["id"]),
            "verdicts": outcome.verdicts,
            "points": outcome.points,
            "error": outcome.error,
        }
        for number, (case, outcome) in enumerate(zip(cases, judged, strict=True))
    ]
    return {"cases": entries, "agreement": _agreement(cases, entries, judged)}


def _read(path: Path) -> list[Case]:
    try:
        data = from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"case file {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"case file {path} is not JSON: {error}") from None
    cases = data.get("cases") if isinstance(data, dict) else data
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UsageError(
            f"case file {path} holds no list of cases; a case is an object with id, schema_sql, gold, pred"
        )
    return cases


class _Judged:
    """One case: its database is made, the statements are executed and the rules consulted; then all is removed."""

    def __init__(self, case: Case, pool: QueryPool, timeout_s: float) -> None:
        self.pool, self.timeout_s = pool, timeout_s
        self.error: str | None = None
        self.refused = False  # the sandbox would not execute the prediction: it writes, or does what no query does
        self.points: dict[str, float] = {}
        self._results: dict[tuple[str, str], RunResult] = {}
        with TemporaryDirectory(prefix="nl2sql-case-") as folder:
            self.database = Path(folder) / "case.sqlite"
            texts = {key: _texts(case.get(key), folder) for key in ("schema_sql", "gold", "pred")}
            trouble = _build(self.database, "\n".join(texts["schema_sql"]), timeout_s)
            if trouble:
                self.error = f"the database cannot be made: {trouble}"
                self.verdicts: Verdicts = dict.fromkeys(RULES)
                return
            before = self.database.read_bytes()
            golds, predicted = texts["gold"], (texts["pred"] or [""])[0]
            question = str(case.get("question") or "")
            self.verdicts = {rule.name: self._verdict(rule, golds, predicted, question) for rule in RULES.values()}
            self.error = self.error and self.error.replace(folder, "@DIR@")
            if self.database.read_bytes() != before or len(list(Path(folder).iterdir())) > 1:
                self.error = "a statement wrote to the disk"
                self.verdicts = dict.fromkeys(RULES, False)

    def _verdict(self, rule: Rule, golds: Sequence[str], predicted: str, question: str) -> bool | None:
        """True where one gold is matched, None where all golds fail and the rule has no verdict on that."""
        actual = self._run("prediction", rule.prepare(predicted))
        blank = not predicted.strip()
        verdicts: list[bool | None] = [None] if not golds else []
        for gold in (accepted for text in golds for accepted in rule.accepts(text)):
            expected = self._run("gold", rule.prepare(gold))
            about = {"gold_sql": gold, "predicted_sql": predicted, "question": question}
            verdict = rule.verdict([expected], [actual], **about)
            if verdict is False and rule.ordered:
                tied = placed(gold, expected, lambda sql: self._run("places", sql))
                verdict = rule.verdict([tied], [actual], **about)
            if rule.half_points:
                points = rule.points([expected], [actual], **about)
                self.points[rule.name] = max(points, self.points.get(rule.name, 0.0))
            verdicts.append(verdict and not (blank and rule.blank_is_wrong))
            self._note(expected if not rule.usable(expected) else actual, "gold: " if not rule.usable(expected) else "")
        self.refused |= actual.error_kind == "denied"
        if any(verdicts):
            return True
        return False if False in verdicts else None

    def _note(self, result: RunResult, prefix: str) -> None:
        if self.error is None and not (result.success and not result.truncated):
            self.error = prefix + (result.error or f"more than {MAX_ROWS} rows")

    def _run(self, role: str, sql: str) -> RunResult:
        key = (role, sql)
        if key not in self._results:
            self._results[key] = self.pool.run(self.database, sql, timeout_s=self.timeout_s, max_rows=MAX_ROWS)
        return self._results[key]


def _texts(value: Any, folder: str) -> list[str]:
    """The texts that a field holds: one, several, or none."""
    values = value if isinstance(value, list) else [value]
    return [str(item).replace("@DIR@", folder) for item in values if item is not None]


def _build(path: Path, script: str, timeout_s: float) -> str | None:
    """Make the case's database; what went wrong, or None."""
    deadline = time.monotonic() + timeout_s
    connection = sqlite3.connect(path)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        connection.executescript(script)
        connection.commit()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return str(error)
    finally:
        connection.close()
    return None


# What the file may say of a case -> the rule that should agree with it
REFERENCES = {
    "spider": ("expect", "test_suite_bag"),
    "bird-set": ("expect", "bird_set"),
    "bag": ("harness_should", "verdict"),
}


def _inside(case: Case, part: str, key: str) -> Any:
    return value.get(key) if isinstance(value := case.get(part), Mapping) else None


def _agreement(
    cases: Sequence[Case], entries: Sequence[Mapping[str, Any]], judged: Sequence[_Judged]
) -> dict[str, Any]:
    """Per rule with a reference: on how many cases they agree, and where not.

    A reference's verdict that came from executing what the sandbox refuses (``refused``) counts as "wrong": that is
    the right verdict there. Where the reference crashed or hung there is nothing to agree with.
    """
    result = {}
    for name, place in REFERENCES.items():
        agreed, differing, refused = 0, [], []
        for case, entry, outcome in zip(cases, entries, judged, strict=True):
            wanted = _inside(case, *place)
            if not isinstance(wanted, bool) and not (name == "bag" and case.get("harness_should")):
                continue
            if wanted and (outcome.refused or _wrote(case)):
                refused.append(entry["id"])
                wanted = False
            if entry["verdicts"][name] == wanted:
                agreed += 1
            else:
                differing.append(entry["id"])
        result[name] = {"n": agreed + len(differing), "agree": agreed, "differ": differing, "refused": refused}
    return result


def _wrote(case: Case) -> bool:
    changed = _inside(case, "official", "db_changed")
    return bool(_inside(case, "official", "files_written")) or (isinstance(changed, Mapping) and any(changed.values()))
