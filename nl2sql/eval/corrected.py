"""Scores as published and as corrected, side by side: which verdicts changed, and who overtakes whom.

>>> ranks({"a": 0.5, "b": 0.7, "c": 0.5})
{'a': 2, 'b': 1, 'c': 2}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from nl2sql.eval.scores import Scores
from nl2sql.eval.stats import percent
from nl2sql.eval.tables import table_text


@dataclass(frozen=True)
class Overlay:
    """One prediction file scored twice. ``to_right``, ``to_wrong``, ``left_out``, ``added``: ids whose EX changed, or
    that only one of the two scorings has."""

    predictions: str
    published: dict[str, float]
    corrected: dict[str, float]
    rank: tuple[int, int]
    to_right: list[str]
    to_wrong: list[str]
    left_out: list[str]
    added: list[str]


def overlays(published: Mapping[str, Scores], corrected: Mapping[str, Scores]) -> list[Overlay]:
    """An overlay for each prediction file, in the order of ``published``."""
    before, after = (
        {
            name: next(value for metric, value in scores.metrics().items() if metric.startswith("EX"))
            for name, scores in of.items()
        }
        for of in (published, corrected)
    )
    places = [ranks({name: interval.value for name, interval in of.items()}) for of in (before, after)]
    return [
        Overlay(
            name,
            before[name].to_dict(),
            after[name].to_dict(),
            (places[0][name], places[1][name]),
            *_changed(published[name], corrected[name]),
        )
        for name in published
    ]


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest value; equal values share the better rank."""
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def _changed(published: Scores, corrected: Scores) -> tuple[list[str], list[str], list[str], list[str]]:
    was, now = ({item.id: item.ex for item in scores.items} for scores in (published, corrected))
    both = [id_ for id_ in was if id_ in now]
    return (
        [id_ for id_ in both if now[id_] and not was[id_]],
        [id_ for id_ in both if was[id_] and not now[id_]],
        [id_ for id_ in was if id_ not in now],
        [id_ for id_ in now if id_ not in was],
    )


def overlay_text(rule: str, items: int, found: Sequence[Overlay]) -> str:
    """The table that is printed. ``items``: how many questions have a correction."""
    header = [
        f"EX[{rule}], {items} questions corrected",
        "as published",
        "as corrected",
        "to right",
        "to wrong",
        "rank",
    ]
    rows = [
        [
            overlay.predictions,
            f"{percent(overlay.published)} of {overlay.published['n']}",
            f"{percent(overlay.corrected)} of {overlay.corrected['n']}",
            str(len(overlay.to_right)),
            str(len(overlay.to_wrong)),
            str(overlay.rank[0]) if overlay.rank[0] == overlay.rank[1] else "{} to {}".format(*overlay.rank),
        ]
        for overlay in found
    ]
    return "\n".join(table_text([header, *rows]))


def overlay_record(items: int, found: Sequence[Overlay]) -> dict[str, object]:
    """The same for JSON."""
    return {"questions": items, "runs": [asdict(overlay) for overlay in found]}
