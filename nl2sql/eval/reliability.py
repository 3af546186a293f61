"""The reliability score of EHRSQL and TrustSQL: a wrong answer costs more than none.

>>> reliability([1, 1, 0, -1])
{'RS(0)': 0.5, 'RS(5)': -0.75, 'RS(10)': -2.0, 'RS(N)': -0.5}

A question that the database can answer gives 1 where EX holds, 0 without an answer, -c where it is
wrong; one that it cannot answer gives 1 without an answer and -c with one. RS(c) is the mean, for
c = 0, 5, 10, and N, the number of questions. No answer: a missing or blank prediction, or ``null``.

Not covered: intervals, since a mean of points so unlike has no useful one over one database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nl2sql.eval.scores import ItemScore
from nl2sql.interfaces import Question

FLAG = "is_impossible"  # in a question's meta: nothing in the database answers it
NONE = ("", "null")
PENALTIES = (0, 5, 10)


def points(items: Iterable[ItemScore], predictions: Mapping[str, str], questions: Iterable[Question]) -> list[int]:
    """1, 0 or -1 for each scored item, and for each of ``questions`` that has no answer.

    Empty where no question without an answer has a prediction: those were not asked.
    """
    impossible = [question.id for question in questions if question.meta.get(FLAG)]
    if not any(id_ in predictions for id_ in impossible):
        return []
    answered = [1 if i.ex else -1 if _is_answer(predictions.get(i.id)) else 0 for i in items]
    return answered + [-1 if _is_answer(predictions.get(id_)) else 1 for id_ in impossible]


def reliability(points: Sequence[int]) -> dict[str, float]:
    """RS by name, each at most 1; ``points`` as the function of that name gives them, not empty."""
    right, wrong, n = points.count(1), points.count(-1), len(points)
    names = {**{f"RS({cost})": cost for cost in PENALTIES}, "RS(N)": n}
    return {name: (right - cost * wrong) / n for name, cost in names.items()}


def _is_answer(prediction: str | None) -> bool:
    return (prediction or "").strip().lower() not in NONE
