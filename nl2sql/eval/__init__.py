"""VA, EM, EX and TS of anybody's predictions. The rules are written down in ``docs/evaluation.md``.

``score(benchmark, questions, predictions)`` executes every statement through the sandbox and
gives ``Scores``; ``score_many`` takes several sets of predictions. Nothing here imports a model library. A metric's
name carries its rule: ``EX[bag]`` compares multisets of rows; ``TS[bag,perturb,N=5]`` asks the same on the database
and on 5 perturbed replicas [18].
"""

from nl2sql.eval.rules import gold_order, order_keys, order_matters, results_match, suites_match
from nl2sql.eval.scores import ItemScore, Scores
from nl2sql.eval.scoring import score, score_many
from nl2sql.eval.stats import Interval
from nl2sql.sql.same import exact_match, normalise_sql

__all__ = [
    "Interval",
    "ItemScore",
    "Scores",
    "exact_match",
    "gold_order",
    "normalise_sql",
    "order_keys",
    "order_matters",
    "results_match",
    "score",
    "score_many",
    "suites_match",
]
