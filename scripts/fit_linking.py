"""The head of learned linking: fits relevance.npz on a benchmark's training questions, and shows how well it ranks.

    export NL2SQL_BENCHMARKS=/path/to/benchmarks
    python scripts/fit_linking.py --states linking/states            # the table, over held-out databases
    python scripts/fit_linking.py --states linking/states --write    # also the packaged weights
    python scripts/fit_linking.py --model FOLDER --states linking/other --write other.npz   # for a model of one's own

The hidden states of each question are kept in the folder ``--states``: a run that was stopped goes on there. Fitted on
at most ``--per-database`` questions of each training database but the six that the packaged adapters have not seen
(``held_out_databases`` of their recipe); all questions of those six are ranked. Labels are the tables and columns that
the gold uses. Half of the questions to fit on have the line of values below them. *All@k*: the share of questions whose
tables (columns) are all among the k best; *mean@k*: the mean share of them; *AUC*: the chance that a used name is held
for more relevant than one that is not used, over all questions.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fitting import auc
from tqdm.auto import tqdm

from nl2sql import load_benchmark, load_model
from nl2sql.agents.context.grounding import with_values
from nl2sql.agents.context.relevance import (
    LONGEST,
    WEIGHTS_FILE,
    beside_one_another,
    features,
    length_of,
    lexical_scores,
    log_odds,
    read_items,
)
from nl2sql.databases.schema import Schema
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Benchmark
from nl2sql.machine import write_whole, written_whole
from nl2sql.models.adapters import packaged_adapters
from nl2sql.sql.uses import Used, names_used

Array = Any  # numpy's
KINDS = {"tables": (1, 2, 3, 4), "columns": (5, 10, 20)}  # what is ranked, and the k of its recall


@dataclass
class Case:
    """A question, what its gold uses, and (once read) what the head weighs of tables and of columns."""

    id: str
    db_id: str
    nlq: str
    schema: Schema
    used: Used
    fitted_on: bool
    seen: Mapping[str, Array] | None = None

    def labels(self, kind: str) -> Array:
        if kind == "tables":
            return np.array([table.name in self.used.tables for table in self.schema.tables])
        named = ((table.name, column.name) for table in self.schema.tables for column in table.columns)
        return np.array([name in self.used.columns for name in named])

    def lexical(self, kind: str) -> Array:
        return lexical_scores(self.nlq, self.schema)[list(KINDS).index(kind)]

    def learned(self, kind: str, weights: Mapping[str, Array]) -> Array:
        assert self.seen is not None
        seen = (self.seen["tables"], self.seen["columns"])
        return log_odds(self.schema, lexical_scores(self.nlq, self.schema), seen, weights)[list(KINDS).index(kind)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="spider")
    parser.add_argument("--split", default="train")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--adapter", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--states", type=Path, required=True, help="folder of the hidden states; a stopped run goes on")
    parser.add_argument("--layers", type=int, nargs="+", default=[22])
    parser.add_argument("--ridge", type=float, default=100.0)
    parser.add_argument("--per-database", type=int, default=11)
    parser.add_argument("--most", type=int, default=0, help="read so many questions only, for a try; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--write", nargs="?", type=Path, const=WEIGHTS_FILE, help="write the weights, packaged or to FILE"
    )
    options = parser.parse_args()
    try:
        benchmark = load_benchmark(options.benchmark, split=options.split)
        cases = list(chosen(benchmark, options.per_database, options.seed))
        random.Random(options.seed).shuffle(cases)
        del cases[options.most or len(cases) :]
        model = read_all(cases, options)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    learned = fit_head([c for c in cases if c.fitted_on], options.ridge)
    print(report([c for c in cases if not c.fitted_on], learned))
    if options.write:
        about = {
            "model": model["name"],
            "revision": model["revision"],
            "layers": model["layers"],
            "ridge": options.ridge,
            "questions": sum(c.fitted_on for c in cases),
            "databases": len({c.db_id for c in cases if c.fitted_on}),
        }
        content = io.BytesIO()
        np.savez_compressed(content, about=np.array(json.dumps(about)), **learned)
        with written_whole(options.write, binary=True) as file:
            file.write(content.getvalue())
    return 0


# ------------------------------------------------------------------------------------------------------- reading


def held_out() -> frozenset[str]:
    """The databases that the packaged adapters were not trained on."""
    recipe = json.loads((packaged_adapters()["smollm2-135m-question"] / "recipe.json").read_text(encoding="utf-8"))
    return frozenset(recipe["data"]["held_out_databases"])


def chosen(benchmark: Benchmark, per_database: int, seed: int) -> Iterator[Case]:
    """The questions to fit on, then those of the held-out databases."""
    rng, aside = random.Random(seed), held_out()
    by_database: dict[str, list[Any]] = {}
    for question in benchmark.questions:
        by_database.setdefault(question.db_id, []).append(question)
    drawn, ranked = [], []
    for db_id, questions in sorted(by_database.items()):
        try:
            schema = benchmark.database(db_id).schema()
        except Nl2SqlError:  # a benchmark may come without some of its databases
            continue
        rng.shuffle(questions)
        usable = [(q, used) for q in questions if (used := names_used(q.gold[0], schema)).tables]
        if db_id in aside:
            ranked += [Case(q.id, db_id, q.text, schema, used, False) for q, used in usable]
        else:
            drawn += [Case(q.id, db_id, q.text, schema, used, True) for q, used in usable[:per_database]]
    rng.shuffle(drawn)
    rng = random.Random(seed + 1)
    for case in drawn:
        if rng.random() < 0.5:
            case.nlq = with_values(case.nlq, benchmark.database(case.db_id), 4)[0]
    yield from drawn + ranked


def read_all(cases: list[Case], options: argparse.Namespace) -> dict[str, Any]:
    """Sets ``seen`` of each case; leaves out those of schemas that one text does not hold. The model's description."""
    folder, layers = options.states, list(options.layers)
    folder.mkdir(parents=True, exist_ok=True)
    cases[:] = [case for case in cases if sum(map(length_of, case.schema.tables)) <= LONGEST]
    files = [folder / f"{case.id.replace('/', '_')}.npy" for case in cases]
    stamp = folder / "about.json"
    about: dict[str, Any] = json.loads(stamp.read_text(encoding="utf-8")) if stamp.exists() else {}
    if about and about["layers"] != layers:
        raise UsageError(f"{folder} holds states of layers {about['layers']}, not {layers}; give another --states")
    if missing := [(case, file) for case, file in zip(cases, files, strict=True) if not file.exists()]:
        model = load_model(options.model, adapter=options.adapter, dtype=options.dtype, cache=False)
        described = {**{key: model.describe()[key] for key in ("name", "revision", "dtype")}, "layers": layers}
        about = about or described
        if about != described:
            raise UsageError(f"{folder} holds states of another model or of other layers; give another --states")
        write_whole(stamp, json.dumps(about))
        for case, file in tqdm(missing, desc="read", disable=None):
            states, _ = read_items(case.nlq, case.schema, model, layers)
            part = file.with_suffix(".part")
            with part.open("wb") as out:
                np.save(out, states.astype(np.float16))
            part.replace(file)
        model.close()
    for case, file in zip(cases, files, strict=True):
        seen = features(lexical_scores(case.nlq, case.schema), np.load(file).astype(np.float32))
        case.seen = dict(zip(KINDS, seen, strict=True))
    return about


# ------------------------------------------------------------------------------------------------------- fitting


def fit_head(cases: Sequence[Case], ridge: float) -> dict[str, Array]:
    """The four weights of ``relevance.Head``. The second step is fitted on log-odds of names whose database the first
    step, fitted on the other half of the databases, has not seen."""
    weights = {kind: fit(*rows(cases, kind), ridge) for kind in KINDS}
    half = {db_id: at % 2 for at, db_id in enumerate(sorted({case.db_id for case in cases}))}
    halves = [
        {kind: fit(*rows([c for c in cases if half[c.db_id] != n], kind), ridge) for kind in KINDS} for n in range(2)
    ]
    for at, kind in enumerate(KINDS):
        x, y = [], []
        for case in cases:
            own = [case.seen[name] @ w[:-1] + w[-1] for name, w in halves[half[case.db_id]].items()]  # type: ignore[index]
            unknown = np.zeros(11, np.float32)  # of tables, which are fitted first
            lexical = lexical_scores(case.nlq, case.schema)
            seen = beside_one_another(case.schema, lexical, *own, weights.get("tables_beside", unknown))[at]
            used = case.labels(kind)
            pairs = (seen[used][:, None] - seen[~used][None]).reshape(-1, seen.shape[1])
            x += [np.hstack([seen, np.ones((len(seen), 1))]), np.hstack([pairs, np.zeros((len(pairs), 1))])]
            y += [used, np.ones(len(pairs))]
        weights[f"{kind}_beside"] = fit(np.concatenate(x), np.concatenate(y).astype(float), 1.0)
    return weights


def rows(cases: Sequence[Case], kind: str) -> tuple[Array, Array]:
    """The first step's features with a column of ones, and whether the gold uses the name."""
    x = np.concatenate([case.seen[kind] for case in cases])  # type: ignore[index]
    return np.hstack([x, np.ones((len(x), 1), np.float32)]), np.concatenate([case.labels(kind) for case in cases])


def fit(x: Array, y: Array, ridge: float) -> Array:
    """Weights of a logistic regression by Newton's method; the last feature is the constant, 0 in rows that are the
    difference of a used name and one that is not (a logistic loss of the ranking).

    ridge: on the weights of features that are scaled by their standard deviation.
    """
    ones = x[:, -1] == 1
    mean, scale = x[ones].mean(0), x[ones].std(0) + 1e-6
    mean[-1], scale[-1] = 0.0, 1.0
    z = ((x - ones[:, None] * mean) / scale).astype(np.float32)
    penalty = ridge * np.eye(z.shape[1])
    penalty[-1, -1] = 1e-6
    weights = np.zeros(z.shape[1])
    for _ in range(12):
        p = 1 / (1 + np.exp(-np.clip(z @ weights.astype(np.float32), -30, 30)))
        slope = z.T @ (y - p) - penalty @ weights
        step = np.linalg.solve((z.T * (p * (1 - p)).astype(np.float32)) @ z + penalty, slope)
        weights += step
        if np.abs(step).max() < 1e-2:
            break
    own = weights / scale
    own[-1] -= mean[:-1] @ own[:-1]
    return own.astype(np.float32)


# ------------------------------------------------------------------------------------------------------- figures


def report(cases: Sequence[Case], learned: Mapping[str, Array]) -> str:
    """The table: lexical and learned ranking, of the schemas of all sizes and of the larger ones."""
    rows = [["what", "schemas", "questions", "ranking", "all@k", "mean@k", "AUC"]]
    for kind, depths in KINDS.items():
        for name, least in (("all", 0), ("7 tables and more", 7)):
            group = [case for case in cases if len(case.schema.tables) >= least and case.labels(kind).any()]
            for way in ("lexical", "learned") if group else ():
                scores = [c.lexical(kind) if way == "lexical" else c.learned(kind, learned) for c in group]
                labels = [case.labels(kind) for case in group]
                whole, share = zip(*(recall(scores, labels, k) for k in depths), strict=True)
                shown = [" / ".join(f"{100 * value:.1f}" for value in values) for values in (whole, share)]
                ranked = f"{way}, k = {', '.join(map(str, depths))}"
                area = auc(np.concatenate(scores), np.concatenate(labels))
                rows.append([kind, name, str(len(group)), ranked, *shown, f"{area:.3f}"])
    return table_markdown(rows)


def recall(scores: Sequence[Array], labels: Sequence[Array], k: int) -> tuple[float, float]:
    """The share of questions whose used names are all among the k best, and the mean share of them."""
    hits = [
        used[np.argsort(-score, kind="stable")[:k]].sum() / used.sum()
        for score, used in zip(scores, labels, strict=True)
    ]
    return float(np.mean([hit == 1 for hit in hits])), float(np.mean(hits))


if __name__ == "__main__":
    sys.exit(main())
