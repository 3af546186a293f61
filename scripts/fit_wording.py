"""Fit the model of a follow-up's wording (nl2sql/sessions/wording.json), and say how well it does on other authors.

    NL2SQL_BENCHMARKS=... python scripts/fit_wording.py            # the table: each author by a model of the others
    NL2SQL_BENCHMARKS=... python scripts/fit_wording.py --write    # and the packaged model, fitted on all

Fitted on the later turns of ``scripts/wording_turns.jsonl`` (conversations over invented databases, written by hand for
this, by authors who had not seen the rules), on the packaged dialogues that were looked at (dev, test and extra), and
on questions of Spider's training databases, which all stand alone. Without Spider on this machine it is fitted without.
Precision and recall of an author whom the model has not seen; *false alarms*: of 1,500 other questions of Spider, the
share that is held for a follow-up.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.errors import Nl2SqlError
from nl2sql.eval.tables import table_markdown
from nl2sql.sessions.detection import Wording, packaged, plain, schema_stems, tokens_of

ROOT = Path(__file__).resolve().parent.parent
TURNS = ROOT / "scripts" / "wording_turns.jsonl"
MODEL = ROOT / "nl2sql" / "sessions" / "wording.json"
SPIDER = 1500  # questions to fit on, and as many for the false alarms
RIDGE, LEAST, TIMES, SUBJECTS = 0.5, 3, 4, 3
HEAD = ["turns of", "later turns", "precision", "recall", "false alarms"]
STANDS_ALONE = ("first", "topic_change", "stand_alone_with_cue", "independent")  # kinds of turns


@dataclass(frozen=True)
class Case:
    """A later turn: who wrote it, over which database, and whether it leans on an earlier one."""

    author: str
    database: str
    text: str
    schema: Schema
    follows: bool


def written(path: Path = TURNS) -> list[Case]:
    """The later turns of the conversations in ``path``."""
    cases = []
    with path.open(encoding="utf-8") as file:
        for one in map(json.loads, file):
            schema = Schema(tuple(Table(name, tuple(map(Column, names))) for name, names in one["tables"].items()))
            cases += [Case(one["author"], one["db"], turn["q"], schema, turn["follows"]) for turn in one["turns"][1:]]
    return cases


def dialogues(name: str = "packaged-dialogues", splits: Iterable[str] = ("dev", "test", "extra")) -> list[Case]:
    """The later turns of a benchmark's dialogues; each of the batches of ``extra`` is an author."""
    cases = []
    for split in splits:
        benchmark = load_benchmark(name, split=split)
        for turn in filter(lambda question: question.history, benchmark.questions):
            batch = str(turn.meta["interaction_id"]).rsplit("-", 1)[-1][0]
            follows = str(turn.meta["kind"]) not in STANDS_ALONE
            schema = benchmark.database(turn.db_id).schema()
            cases.append(Case(f"dialogues {split} -{batch}", turn.db_id, turn.text, schema, follows))
    return cases


def spider(seed: int = 0) -> list[Case]:
    """Questions of Spider's training databases; none where the benchmark is not on this machine."""
    try:
        benchmark = load_benchmark("spider", split="train")
    except Nl2SqlError as error:
        print(f"without Spider: {error}", file=sys.stderr)
        return []
    known: Any = [question for question in benchmark.questions if question.db_id in benchmark.files]  # type: ignore[attr-defined]
    drawn = random.Random(seed).sample(known, min(2 * SPIDER, len(known)))
    return [Case("spider", one.db_id, one.text, benchmark.database(one.db_id).schema(), False) for one in drawn]


def features(model: Wording, case: Case) -> dict[str, float]:
    return model.features(case.text, *schema_stems(case.schema))


def vocabulary(cases: Sequence[Case]) -> frozenset[str]:
    """The words that several people use over several databases."""
    times: Counter[str] = Counter()
    subjects = defaultdict(set)
    for case in cases:
        for word in set(map(plain, tokens_of(case.text))):
            times[word] += 1
            subjects[word].add(case.database)
    return frozenset(word for word, count in times.items() if count >= TIMES and len(subjects[word]) >= SUBJECTS)


def fit(cases: Sequence[Case]) -> Wording:
    """A logistic regression with a ridge on all weights but the constant."""
    empty = Wording(vocabulary(cases), {}, 0.0)
    seen = [features(empty, case) for case in cases]
    counts = Counter(name for one in seen for name in one)
    names = sorted(name for name, count in counts.items() if count >= LEAST)
    place = {name: at for at, name in enumerate(names)}
    entries = [
        (row, place[name], value) for row, one in enumerate(seen) for name, value in one.items() if name in place
    ]
    rows, columns, values = zip(*entries, strict=True)
    x = csr_matrix((values, (rows, columns)), shape=(len(seen), len(names)))
    sign = np.where([case.follows for case in cases], 1.0, -1.0)

    def loss(weights: Any) -> tuple[float, Any]:
        margin = sign * (x @ weights[:-1] + weights[-1])
        slope = -sign / (1 + np.exp(np.clip(margin, -30, 30)))
        value = np.logaddexp(0, -margin).sum() + RIDGE / 2 * (weights[:-1] ** 2).sum()
        return float(value), np.append(x.T @ slope + RIDGE * weights[:-1], slope.sum())

    found = minimize(loss, np.zeros(len(names) + 1), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    kept = {name: round(float(weight), 3) for name, weight in zip(names, found, strict=False) if abs(weight) >= 0.02}
    return Wording(empty.vocabulary, kept, round(float(found[-1]), 3))


def follows(model: Wording, cases: Sequence[Case]) -> Any:
    return np.array([model.log_odds(features(model, case)) > 0 for case in cases], bool)


def percent(part: Any, whole: Any) -> str:
    return f"{100 * np.sum(part) / max(1, np.sum(whole)):.1f}"


def row(name: str, held: Sequence[Case], found: Any, alarms: Any) -> list[str]:
    leans = np.array([case.follows for case in held], bool)
    both = [percent(found & leans, found), percent(found & leans, leans)]
    return [name, str(len(held)), *both, percent(alarms, np.ones(len(alarms)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="fit on all and write the packaged model")
    parser.add_argument(
        "--held", metavar="FOLDER", help="how the packaged model does on these dialogues (conversations/build.py)"
    )
    options = parser.parse_args()
    if options.held:
        held = dialogues(options.held, ["all"])
        found = follows(packaged(), held)
        print(table_markdown([HEAD[:-1], row("held", held, found, [])[:-1]]))
        return 0
    turns, whole = [*written(), *dialogues()], spider()
    rows = [HEAD]
    for author in dict.fromkeys(case.author for case in turns):
        held = [case for case in turns if case.author == author]
        model = fit([case for case in turns if case.author != author] + whole[:SPIDER])
        rows.append(row(author, held, follows(model, held), follows(model, whole[SPIDER:])))
        print(f"{author}: done", file=sys.stderr, flush=True)
    print(table_markdown(rows))
    if options.write:
        model = fit(turns + whole)
        data = {
            "fitted_on": dict(Counter(case.author for case in turns + whole)),
            "constant": model.constant,
            "vocabulary": sorted(model.vocabulary),
            "weights": dict(sorted(model.weights.items())),
        }
        MODEL.write_text(json.dumps(data, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{MODEL.relative_to(ROOT)}: {len(model.weights)} weights, {len(model.vocabulary)} words")
    return 0


if __name__ == "__main__":
    sys.exit(main())
