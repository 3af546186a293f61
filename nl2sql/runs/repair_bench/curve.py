"""How well the search finds fixes of the same mistake: recall@k, and precision and recall by threshold.

Each case is a failure whose repair is known (``cases``). The fixes of all other databases are searched for it, so that
names cannot give the answer away. A fix counts as relevant if it repaired the same kind of mistake (the slip that made
both); ``lenient``: if its error has the same category, which the patterns know without any corpus. Searched once more
among fixes of other categories only, the same failures say what a corpus shows that has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from nl2sql.repair.corpus import Corpus
from nl2sql.repair.embeddings import Embedder
from nl2sql.runs.repair_bench.cases import RepairCase

SHOWN = 3


@dataclass(frozen=True)
class Found:
    """A fix shown for a case: its cosine, and whether it is relevant."""

    score: float
    relevant: bool
    lenient: bool


@dataclass(frozen=True)
class Point:
    """What a threshold does. ``shown``: fixes per case; ``precision`` of what is shown; ``recall``: share of the cases
    that see a relevant fix, of those that could (at threshold 0, the search's own recall@3); ``needless``: share of the
    cases that see a fix where the corpus has none of their category."""

    threshold: float
    shown: float
    precision: float
    recall: float
    lenient_precision: float
    needless: float


def search_others(
    cases: Sequence[RepairCase],
    folder: Path,
    embedder: Embedder | None = None,
    *,
    other: Callable[[RepairCase], str] = lambda case: case.db_id,
    progress: bool = True,
) -> list[list[Found]]:
    """For each case the ``SHOWN`` closest fixes of those that differ from it in ``other`` (its database); cases whose
    kind no other database has are left out: nothing relevant could be found for them."""
    path = folder / "held_back.db"
    path.unlink(missing_ok=True)
    with Corpus(path, create=True, embedder=embedder) as corpus:
        stored: dict[str, RepairCase] = {}
        with corpus.batch():
            for case in tqdm(cases, desc="fixes", disable=not progress):
                id = corpus.store_fix(
                    case.error, case.sql, case.gold[0], case.question, dialect=case.dialect, source=other(case)
                )
                if id is not None:
                    stored[str(id)] = case
        homes: dict[str, set[str]] = {}
        for case in stored.values():
            homes.setdefault(case.kind, set()).add(case.db_id)
        asked = [case for case in cases if homes.get(case.kind, set()) - {case.db_id}]
        searches = []
        for case in tqdm(asked, desc="searches", disable=not progress):
            fixes = corpus.search(case.error, case.sql, dialect=case.dialect, limit=SHOWN, exclude=other(case))
            twins = [(fix.similarity_score, stored[str(fix.query_id)]) for fix in fixes]
            searches.append([Found(s, twin.kind == case.kind, twin.category == case.category) for s, twin in twins])
    return searches


def curve(
    relevant: Sequence[Sequence[Found]], irrelevant: Sequence[Sequence[Found]], thresholds: Sequence[float]
) -> list[Point]:
    """A point for each threshold; precision is 1 where nothing is shown. ``irrelevant``: what a search among other
    categories finds."""
    points = []
    for threshold in thresholds:
        kept = [[fix for fix in fixes if fix.score >= threshold] for fixes in relevant]
        shown = [fix for fixes in kept for fix in fixes]
        points.append(
            Point(
                threshold=threshold,
                shown=len(shown) / len(relevant),
                precision=sum(fix.relevant for fix in shown) / len(shown) if shown else 1.0,
                recall=sum(any(fix.relevant for fix in fixes) for fixes in kept) / len(relevant),
                lenient_precision=sum(fix.lenient for fix in shown) / len(shown) if shown else 1.0,
                needless=sum(any(fix.score >= threshold for fix in fixes) for fixes in irrelevant) / len(irrelevant),
            )
        )
    return points
