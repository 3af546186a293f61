"""Which of several candidates are the same query, and which agree in what they return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nl2sql.interfaces import RunResult

FOLDS_CASE = ("sqlite", "duckdb", "postgres")  # of names that are not quoted


def query_key(sql: str, dialect: str = "sqlite") -> str:
    """A text that two writings of one query share: layout, comments, keywords and the case of plain names differ.

    Nothing is taken away that could change what is returned: quotes stay (to SQLite ``= "Oslo"`` is a string and
    ``= Oslo`` a column), aliases and qualifiers too. What cannot be parsed is compared by its words.
    """
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from nl2sql.sql.parse import SLIPS, parse_bounded

    try:
        tree = parse_bounded(sql, dialect)
        for name in tree.find_all(exp.Identifier):
            if dialect in FOLDS_CASE and not name.args.get("quoted"):
                name.set("this", name.name.lower())
        return tree.sql(dialect=dialect, comments=False)
    except (SqlglotError, *SLIPS):
        return " ".join(sql.rstrip("; \n\t").split())


def agreement(results: Sequence[RunResult], weights: Sequence[int] | None = None) -> list[int]:
    """For each result how many results have the same rows, as a multiset, itself among them; 0 for a failed one.

    weights: how often each counts (default: once).
    """
    counts = weights or [1] * len(results)
    kinds = [frozenset(Counter(map(repr, result.rows)).items()) if result.success else None for result in results]
    votes: Counter[object] = Counter()
    for kind, count in zip(kinds, counts, strict=True):
        votes[kind] += count
    return [0 if kind is None else votes[kind] for kind in kinds]
