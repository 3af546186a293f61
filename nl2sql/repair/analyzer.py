"""From an error to guidance: patterns first, then similar fixes, then what the schema says. Always in this order.

Patterns and schema cost a few milliseconds at most. The search of the corpus has a time limit; where it takes longer,
the guidance is that of the patterns, and the search goes on in the background, so that the next one is fast.

>>> ErrorAnalyzer("sqlite").analyze_error("no such table: custmers").category
'unknown_table'
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING

from nl2sql.errors import Nl2SqlError
from nl2sql.repair import registry
from nl2sql.repair.guidance import RepairGuidance, SimilarFix
from nl2sql.repair.schema_advice import schema_advice
from nl2sql.sql.bounds import past_limits

if TYPE_CHECKING:
    from nl2sql.databases.schema import Schema
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
