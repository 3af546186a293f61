"""From an error to guidance, a dry run of a statement, and the reason in lines for a person.

Patterns and schema cost a few milliseconds at most. The search of the corpus has a time limit; where it takes longer,
the guidance is that of the patterns, and the search goes on in the background, so that the next one is fast.

>>> ErrorAnalyzer("sqlite").analyze_error("no such table: custmers").category
'unknown_table'
"""

from __future__ import annotations

import logging
import sqlite3
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.expressions import Expr

from nl2sql.databases.schema import Schema, Table, quote_name
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database
from nl2sql.repair import registry
from nl2sql.repair.deterministic import autofix, mistaken_name
from nl2sql.repair.readings import UNIT
from nl2sql.repair.registry import ExplainAnalyzeResponse, RepairGuidance, SimilarFix
from nl2sql.repair.schema_names import key_condition, links, similar_columns, similar_names, with_derived
from nl2sql.sql.parse import parse_bounded, past_limits

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus


log = logging.getLogger(__name__)

THRESHOLD = 0.7  # cosine from which on a fix is shown; docs/repair.md says how it was chosen
LIMIT = 3  # fixes shown
SEARCH_S = 0.5  # after which guidance does without similar fixes
CACHED = 256  # frequent errors that are answered without a search
LOOP = "loop"  # the pattern file of the loop's own validators


class ErrorAnalyzer:
    """Guidance for the errors of one engine.

    Args:
        dialect: whose patterns are used (a sqlglot name); without a pattern file only corpus and schema speak.
        corpus: fixes to search; None: patterns and schema only.
        patterns: other patterns than the packaged ones.
        threshold: cosine, between 0 and 1, that a fix must have.
        search_s: seconds that the search may take.
        version: of the engine, so that patterns of other versions are skipped.
    """

    def __init__(
        self,
        dialect: str = "sqlite",
        corpus: Corpus | None = None,
        *,
        patterns: registry.Registry | None = None,
        threshold: float = THRESHOLD,
        limit: int = LIMIT,
        search_s: float = SEARCH_S,
        version: str = "",
    ) -> None:
        self.dialect, self.corpus, self.version = dialect, corpus, version
        self.threshold, self.limit, self.search_s = threshold, limit, search_s
        self._registries = (patterns or registry.packaged(dialect), registry.packaged(LOOP))
        self._cache: OrderedDict[tuple[str, str, str, int], list[SimilarFix]] = OrderedDict()
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="corpus") if corpus is not None else None

    def analyze_error(
        self, error_msg: str, failed_sql: str = "", schema: Schema | None = None, *, exclude: str = ""
    ) -> RepairGuidance:
        """Guidance for ``error_msg`` about ``failed_sql``; the same every time for the same corpus.

        exclude: the source (see ``Corpus``) whose fixes are left out. Never raises for what is in the arguments.
        """
        if past_limits(failed_sql):
            failed_sql = ""
        guidance = self._match_pattern(error_msg, failed_sql, schema)
        if self.corpus is not None:
            guidance.similar_fixes = self._search_similar_fixes(error_msg, failed_sql, exclude)
        if schema is not None and (advice := schema_advice(failed_sql, schema, self.dialect)):
            said = guidance.alternative_approach or ""
            new = [line for line in advice if line not in said]
            guidance.alternative_approach = " ".join([said, *new]).strip() or None
        return guidance

    def close(self) -> None:
        """Wait for nothing; a search that is still running is left to end."""
        if self._searches is not None:
            self._searches.shutdown(wait=False, cancel_futures=True)

    def _match_pattern(self, error: str, sql: str, schema: Schema | None) -> RepairGuidance:
        for patterns in self._registries:
            version = self.version if patterns.dialect == self.dialect else ""
            if (guidance := patterns.match(error, sql, schema, version)) is not None:
                return guidance
        return RepairGuidance(category="unknown")

    def _search_similar_fixes(self, error: str, sql: str, exclude: str) -> list[SimilarFix]:
        assert self._searches is not None
        search: Future[list[SimilarFix]] = self._searches.submit(self._look_up, error, sql, exclude)
        try:
            return list(search.result(self.search_s))
        except NotInTime:
            log.warning("no similar fixes within %g s; guidance by patterns only", self.search_s)
        except Nl2SqlError as error_of_corpus:
            log.warning("no similar fixes: %s", error_of_corpus)
        return []

    def _look_up(self, error: str, sql: str, exclude: str) -> list[SimilarFix]:
        """In the search's own thread: what was found before, as long as nobody has written to the corpus since."""
        assert self.corpus is not None
        key = (error, sql, exclude, self.corpus.changes())
        if key not in self._cache:
            self._cache[key] = self.corpus.search(
                error, sql, dialect=self.dialect, limit=self.limit, threshold=self.threshold, exclude=exclude
            )
        self._cache.move_to_end(key)
        while len(self._cache) > CACHED:
            self._cache.popitem(last=False)
        return self._cache[key]


# --------------------------------------------------------------------------- advice from the schema
# Over the packaged ``scale_models`` database, ``SELECT city FROM custmers`` gives
# ``["There is no table custmers; the closest is customers."]``.

SENTENCES = 3


def schema_advice(sql: str, schema: Schema, dialect: str) -> list[str]:
    """Advice from the schema on a failed statement, whatever the error, in at most three sentences.

    Columns that another table has, with the way to it; unknown tables and columns (units of time in a call are none)
    with the closest real ones; and for tables that are joined by other columns than their foreign key, that key. Empty
    where the statement cannot be parsed or nothing is odd.
    """
    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        return []
    schema = with_derived(schema, sql, dialect)
    parts = (_misplaced, _tables, _columns, _joins)
    return [sentence for part in parts for sentence in part(tree, schema, dialect)][:SENTENCES]


def _defined(tree: Expr) -> set[str]:
    """Names that the statement itself gives: WITH parts, aliases."""
    named = [*tree.find_all(exp.CTE), *tree.find_all(exp.Alias), *tree.find_all(exp.TableAlias)]
    columns = [column.name for alias in tree.find_all(exp.TableAlias) for column in alias.columns]
    return {node.alias_or_name.lower() for node in named} | {name.lower() for name in columns}


def _misplaced(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    """For a column of another table: how it is written where that table is in FROM, else how that table is joined."""
    sentences = []
    for column in tree.find_all(exp.Column):
        near = _in_reach(column, schema)
        name, beside = column.name, near.get(column.table)
        if not near or (column.table and beside is None) or (not column.table and name in _defined(tree)):
            continue
        owners = [alias for alias, table in near.items() if table.column(name)]
        if beside.column(name) if beside else owners:
            continue
        if owners and beside is not None and column.find_ancestor(exp.Join) is not None:
            sentences.append(_no_such_join(beside, near[owners[0]], name, schema, dialect))
        elif owners:
            right = ".".join(quote_name(part, dialect) for part in (owners[0], name))
            sentences.append(f"Write {right}, not {column.sql(dialect)}.")
        elif others := [table for table in schema.tables if table.column(name)]:
            sentences.append(_way_to(others, near, name, dialect))
    return list(dict.fromkeys(sentences))


def _in_reach(column: Expr, schema: Schema) -> dict[str, Table]:
    """Alias -> table of the FROM clauses around a column."""
    reach: dict[str, Table] = {}
    select = column.find_ancestor(exp.Select)
    while select is not None:
        for source in (select.args.get("from_"), *select.args.get("joins", ())):
            if source is not None and (table := schema.table(source.this.name)) is not None:
                reach.setdefault(source.this.alias_or_name, table)
        select = select.find_ancestor(exp.Select)
    return reach


def _no_such_join(table: Table, other: Table, column: str, schema: Schema, dialect: str) -> str:
    """``Research_Staff has no role_code: join it through Project_Staff, or leave it out.``"""
    ends = {table.name.lower(), other.name.lower()}
    middle = [m for m in schema.tables if ends <= {key.ref_table.lower() for key in m.foreign_keys}]
    way = f"join it through {quote_name(middle[0].name, dialect)}, or leave it out" if middle else "leave it out"
    return f"{quote_name(table.name, dialect)} has no {column}: {way}."


def _way_to(others: list[Table], near: dict[str, Table], column: str, dialect: str) -> str:
    """``HS is a column of Player: JOIN Player ON Player.pID = Tryout.pID, or select from Player alone.``"""
    for other in others:
        for alias, table in near.items():
            if on := next(links(other, table, alias, dialect), ""):
                there = quote_name(other.name, dialect)
                return f"{column} is a column of {there}: JOIN {there} ON {on}, or select from {there} alone."
    return (
        f"{column} is a column of {' and of '.join(quote_name(o.name, dialect) for o in others[:2])}: use that table."
    )


def _tables(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    known = {table.name.lower() for table in schema.tables} | _defined(tree)
    names = dict.fromkeys(table.name for table in tree.find_all(exp.Table) if table.name)
    sentences = []
    for name in names:
        if name.lower() not in known and (close := similar_names(name, (t.name for t in schema.tables), 1)):
            sentences.append(f"There is no table {name}; the closest is {quote_name(close[0], dialect)}.")
    return sentences


def _columns(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    known = {column.name.lower() for table in schema.tables for column in table.columns} | _defined(tree)
    columns = (c for c in tree.find_all(exp.Column) if isinstance(c.this, exp.Identifier))
    names = dict.fromkeys(c.name for c in columns if not (isinstance(c.parent, exp.Func) and UNIT.fullmatch(c.name)))
    named = {table.name.lower() for table in tree.find_all(exp.Table)}
    used = [table for table in schema.tables if table.name.lower() in named]
    sentences = []
    for name in names:
        if name.lower() not in known and (close := similar_columns(name, schema, None, used)):
            full = ".".join(quote_name(part, dialect) for part in close[0])
            sentences.append(f"No table has a column {name}; the closest is {full}.")
    return sentences


def _joins(tree: Expr, schema: Schema, dialect: str) -> list[str]:
    """For two joined tables that foreign keys link, the keys where the statement names the columns of none."""
    joined = {table.name.lower() for table in tree.find_all(exp.Table)}
    if not any(tree.find_all(exp.Join)):
        return []
    named = {column.name.lower() for column in tree.find_all(exp.Column)}
    named |= {using.name.lower() for join in tree.find_all(exp.Join) for using in join.args.get("using") or ()}
    keys: dict[tuple[str, str], list[str]] = {}
    linked: set[tuple[str, str]] = set()
    for table in schema.tables:
        for key in table.foreign_keys:
            pair = (table.name, key.ref_table)
            if len(lower := {part.lower() for part in pair}) < 2 or not lower <= joined:
                continue
            if {c.lower() for c in (*key.columns, *key.ref_columns)} <= named:
                linked.add(pair)
            keys.setdefault(pair, []).append(key_condition(key, *pair, dialect))
    return [
        f"Join {' and '.join(quote_name(name, dialect) for name in pair)} ON {' or '.join(conditions)}."
        for pair, conditions in keys.items()
        if pair not in linked
    ]


# ----------------------------------------------------------------- ``explain_analyze``: the dry run
# ``explain_analyze("SELECT nam FROM t", database)`` gives ``valid=False``, ``error="no such column:
# nam"`` and guidance.


def explain_analyze(
    sql: str, database: Database, *, analyzer: ErrorAnalyzer | None = None, timeout_s: float = 5.0, exclude: str = ""
) -> ExplainAnalyzeResponse:
    """Compile ``sql`` with the engine's EXPLAIN, in its sandbox: ``{valid, explain, error, repair_guidance}``.

    On SQLite, which reads a mistyped name in double quotes as a text, the names are checked as well.
    Without an ``analyzer`` the packaged patterns give the guidance. Not covered: errors that only values cause.
    """
    compiled = database.explain(sql, timeout_s=timeout_s)
    error = compiled.error or compiled.error_kind or "the statement failed"
    if compiled.success:
        error = mistaken_name(sql, database)
    if not error:
        plan = [dict(zip(compiled.columns, row, strict=True)) for row in compiled.rows]
        return ExplainAnalyzeResponse(valid=True, explain={"plan": plan})
    mine = analyzer or ErrorAnalyzer(database.dialect, version=engine_version(database))
    guidance = mine.analyze_error(error, sql, database.schema(), exclude=exclude)
    return ExplainAnalyzeResponse(valid=False, error=error, repair_guidance=guidance)


def engine_refusal(sql: str, database: Database) -> str:
    """The engine's own words against ``sql``; "" where it compiles it, or says nothing."""
    compiled = database.explain(sql)
    return "" if compiled.success else compiled.error or ""


def engine_version(database: Database) -> str:
    """The version of a database's engine; "" where it is not known."""
    return sqlite3.sqlite_version if database.dialect == "sqlite" else str(getattr(database, "version", ""))


# ------------------------------------------------------------------------------- ``nl2sql data explain``
# On the packaged ``scale_models`` database, ``SELECT nam FROM product_lines`` gives the error, its
# category, the violated constraint, an alternative and, where a repair without a model is known,
# the mended statement.

PATIENT_SEARCH_S = 60.0  # for similar fixes: a person waits, and the one search of a process first reads all vectors


@dataclass(frozen=True)
class Explanation:
    """What is known of a statement: the dry run's response, and the statement mended without a model ("" without)."""

    response: ExplainAnalyzeResponse
    fixed: str = ""

    def lines(self) -> list[str]:
        """The error, its category, what it violates, what to do instead, similar fixes; ``valid`` for a sound one."""
        if self.response.valid:
            return ["valid"]
        lines = [f"error: {self.response.error}"]
        if guidance := self.response.repair_guidance:
            lines += [
                f"category: {guidance.category}",
                f"violated constraint: {guidance.violated_constraint or 'N/A'}",
                f"alternative approach: {guidance.alternative_approach or 'N/A'}",
            ]
            fixes = guidance.similar_fixes
            lines += [f"similar fix ({fix.similarity_score:.3f}): {' '.join(fix.sql.split())}" for fix in fixes]
        return lines


def explanation(
    sql: str, database: Database, *, corpus: Corpus | None = None, threshold: float = 0.7, fix: bool = True
) -> Explanation:
    """Dry-run a statement; with ``fix`` also repair an invalid one without a model. Raises DatabaseError."""
    version = engine_version(database)
    analyzer = ErrorAnalyzer(database.dialect, corpus, threshold=threshold, search_s=PATIENT_SEARCH_S, version=version)
    try:
        response = explain_analyze(sql, database, analyzer=analyzer)
    finally:
        analyzer.close()
    if response.valid or not fix:
        return Explanation(response)
    return Explanation(response, autofix(sql, response.error or "", database, database.schema()) or "")
