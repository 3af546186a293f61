"""Errors that no pattern knows, put together by what they say, each with the stub of an entry for a pattern file.

A stub is a proposal: constraint, alternative and category are for a person to write, who also finds out in which
versions of the engine it fires. No model is asked.

>>> print(pattern_of("no such column: <name>"))
no such column: (?P<name>\\S+)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nl2sql.repair.analyzer import ErrorAnalyzer
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.embeddings import HashedNgrams, Vectors
from nl2sql.repair.signatures import mask_error

ALIKE = 0.8  # cosine of masked errors from which on they are one cluster
MASK = re.compile(r"<name>|<n>")
WRITE_THIS = "TODO"


@dataclass(frozen=True)
class FailedStatement:
    """A failed statement as it was met; ``repaired`` is "" where nothing is known to work."""

    error: str
    sql: str
    repaired: str = ""
    dialect: str = "sqlite"


@dataclass
class ErrorCluster:
    """Unmatched failures of one kind, named by the masked error of the first."""

    dialect: str
    masked: str
    failures: list[FailedStatement] = field(default_factory=list)

    def stub(self) -> dict[str, str]:
        """An entry for the dialect's pattern file, in its keys."""
        example = next((failed for failed in self.failures if failed.repaired), self.failures[0])
        return {
            "id": "_".join(re.findall(r"[a-z]+", MASK.sub("", self.masked))[:5]) or "unnamed",
            "pattern": pattern_of(self.masked),
            "constraint": WRITE_THIS,
            "alternative": WRITE_THIS,
            "category": "unknown",
            "example": example.error,
            "provoke": example.sql,
            "works": example.repaired or WRITE_THIS,
        }


def discover(failures: Iterable[FailedStatement], least: int = 2) -> list[ErrorCluster]:
    """Clusters of at least ``least`` failures that no packaged pattern matches, the most frequent first."""
    by_mask: dict[tuple[str, str], ErrorCluster] = {}
    analyzers: dict[str, ErrorAnalyzer] = {}
    for failure in failures:
        analyzer = analyzers.setdefault(failure.dialect, ErrorAnalyzer(failure.dialect))
        if analyzer.analyze_error(failure.error, failure.sql).category != "unknown":
            continue
        masked = mask_error(failure.error, failure.sql, failure.dialect)
        by_mask.setdefault((failure.dialect, masked), ErrorCluster(failure.dialect, masked)).failures.append(failure)
    clusters = _merged(sorted(by_mask.values(), key=lambda cluster: (-len(cluster.failures), cluster.masked)))
    clusters.sort(key=lambda cluster: (-len(cluster.failures), cluster.masked))
    return [cluster for cluster in clusters if len(cluster.failures) >= least]


def _merged(clusters: list[ErrorCluster]) -> list[ErrorCluster]:
    """Each cluster joined to the first, more frequent one of its dialect that says nearly the same."""
    vectors: Vectors = HashedNgrams(512)([cluster.masked for cluster in clusters])
    kept: list[int] = []
    for at, cluster in enumerate(clusters):
        twin = next(
            (
                place
                for place in kept
                if clusters[place].dialect == cluster.dialect and float(np.dot(vectors[place], vectors[at])) >= ALIKE
            ),
            None,
        )
        if twin is None:
            kept.append(at)
        else:
            clusters[twin].failures += cluster.failures
    return [clusters[at] for at in kept]


def pattern_of(masked: str) -> str:
    """A regular expression for a masked error; the first name in it is captured as ``name``."""
    parts, named = [], False
    pieces, masks = MASK.split(masked), MASK.findall(masked)
    for piece, mask in zip(pieces, [*masks, ""], strict=True):
        parts.append(re.escape(piece).replace(r"\ ", " "))
        if mask == "<n>":
            parts.append(r"\d+(?:\.\d+)?")
        elif mask:
            parts.append(r"\S+" if named else r"(?P<name>\S+)")
            named = True
    return "".join(parts)


def failures_of_corpus(corpus: Corpus) -> Iterator[FailedStatement]:
    """The fixes of a corpus."""
    for row in corpus.rows():
        if row["kind"] == "fix":
            yield FailedStatement(row["error_msg"], row["failed_sql"], row["successful_sql"], row["dialect"])


def stubs_text(clusters: Iterable[ErrorCluster]) -> str:
    """The stubs as YAML, each with how often it was met and what else was said."""
    import yaml

    parts: list[str] = []
    for cluster in clusters:
        others = sorted({failed.error for failed in cluster.failures} - {cluster.stub()["example"]})
        notes = [
            f"# {cluster.dialect}: met {len(cluster.failures)} times",
            *(f"#   also: {_short(o)}" for o in others[:3]),
        ]
        entry: list[dict[str, Any]] = [cluster.stub()]
        parts.append(
            "\n".join([*notes, yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=110).rstrip()])
        )
    return "\n\n".join(parts)


def _short(error: str) -> str:
    return " ".join(error.split())[:100]
