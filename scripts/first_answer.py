"""How good is the first answer to an everyday question? Right or not, warned of or not, how fast.

    python scripts/first_answer.py --check                          # no model: the golds run
    python scripts/first_answer.py --half tune --out runs/first     # react and best; again: goes on
    python scripts/first_answer.py --half final --controller best --json
    python scripts/first_answer.py --limit 12 --controller best -c candidates.seconds=1

Questions as a clerk types them, over six made-up databases: ``scripts/everyday/NAME.yaml`` holds
the database as ``sql``, and ``questions``, each {id, level: easy | medium | hard, half: tune |
final, question, gold: every accepted query}. While something is being changed, look at ``tune``
only: the half ``final`` is for the last measurement.

One question after another is asked of a warm model without the response cache. In the tables:
*EX[bag]* is the share of right answers, with its interval; *database errors* are answers whose SQL
does not run, *no query* those without SQL; *wrong, warned* counts, of the wrong answers that run,
those that carry a suspicion, *right, warned* the false alarms. Every controller is compared with
the first one by an exact McNemar test.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml
from tqdm.auto import tqdm

from nl2sql.agents.controllers import NamedController, answer, get_controller
from nl2sql.agents.record import json_text
from nl2sql.agents.resources import part_fingerprints
from nl2sql.benchmarks import draw_sample
from nl2sql.benchmarks.check import check_questions
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.config import Config, load_config
from nl2sql.errors import BenchmarkError, Nl2SqlError, UsageError
from nl2sql.eval import score_many
from nl2sql.eval.scores import ItemScore, Scores
from nl2sql.eval.stats import clustered_interval, percent
from nl2sql.eval.tables import table_markdown
from nl2sql.interfaces import Model, Question, question_key
from nl2sql.machine import cache_dir, from_yaml
from nl2sql.models import load_model
from nl2sql.runs.folder import iter_jsonl, locked
from nl2sql.runs.plan import check_config, run_key

FOLDER = Path(__file__).resolve().parent / "everyday"
LEVELS, HALVES = ("easy", "medium", "hard"), ("tune", "final")
Answers = dict[str, dict[str, Any]]  # question id -> what came of it


# --------------------------------------------------------------------------- questions, databases


def everyday(folder: Path = FOLDER) -> FolderBenchmark:
    """The questions, their databases built into the cache. Raises BenchmarkError, with the file."""
    questions: list[Question] = []
    files: dict[str, Path] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            data = from_yaml(path.read_text(encoding="utf-8"))
            files[path.stem] = built(path.stem, data["sql"])
            questions += [question_of(item, path.stem) for item in data["questions"]]
        except (OSError, yaml.YAMLError, sqlite3.Error, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise BenchmarkError(f"{path}: {reason}; expected sql and questions") from None
    splits = {half: [q.id for q in questions if q.split == half] for half in HALVES}
    return FolderBenchmark("everyday", questions, splits, files, str(folder))


def question_of(item: Mapping[str, Any], db_id: str) -> Question:
    text, id_, half, gold = (item[key] for key in ("question", "id", "half", "gold"))
    meta = {"level": item["level"]}
    return Question(text, db_id, id_, gold=tuple(gold), split=half, meta=meta)


def built(name: str, sql: str) -> Path:
    """The SQLite file of a database's text, made once. Raises BenchmarkError for a broken key."""
    target = cache_dir("everyday", hashlib.sha256(sql.encode()).hexdigest()[:16]) / f"{name}.sqlite"
    if target.exists():
        return target
    handle, beside = tempfile.mkstemp(prefix=f".{name}-", dir=target.parent)
    os.close(handle)
    try:
        with closing(sqlite3.connect(beside)) as connection:
            connection.executescript(sql)
            if broken := connection.execute("PRAGMA foreign_key_check").fetchall():
                raise BenchmarkError(f"database {name}: {len(broken)} broken foreign keys")
        Path(beside).replace(target)
    finally:
        Path(beside).unlink(missing_ok=True)
    return target


# ---------------------------------------------------------------------------------------- answers


def asked(
    options: argparse.Namespace,
    benchmark: FolderBenchmark,
    questions: Sequence[Question],
) -> dict[str, Answers]:
    """Controller -> its answers: those that ``--out`` holds, and the others asked now.

    Raises UsageError for two controllers of one name, Nl2SqlError for a model that cannot be had.
    """
    named = [get_controller(name) for name in options.controller]
    if len({each.name for each in named}) < len(named):
        names = " ".join(each.name for each in named)
        raise UsageError(f"--controller: {names}; expected different names, as in react best")
    configs = [load_config(options.config, options.set, base=each.preset) for each in named]
    where = {"device": options.device, "dtype": options.dtype, "adapter": options.adapter}
    model = load_model(options.model, **where, batch_size=options.batch_size, server=options.server)
    with closing(model), place_of(options.out) as file:
        for config in configs:
            check_config(model, config)
        return {
            each.name: answered(each, config, model, benchmark, questions, file)
            for each, config in zip(named, configs, strict=True)
        }


@contextmanager
def place_of(folder: Path | None) -> Iterator[Path]:
    """The file of the answers, for this process alone; without a folder it is gone afterwards."""
    with tempfile.TemporaryDirectory() as passing:
        place = folder or Path(passing)
        place.mkdir(parents=True, exist_ok=True)
        with locked(place, cut=True):
            yield place / "answers.jsonl"


def answered(
    named: NamedController,
    config: Config,
    model: Model,
    benchmark: FolderBenchmark,
    questions: Sequence[Question],
    file: Path,
) -> Answers:
    """One controller's answers. What is owed is asked in turn, and written down at once."""
    keys = {asking.id: key_of(named, config, model, benchmark, asking) for asking in questions}
    known = {row["key"]: row for row in iter_jsonl(file)}
    pending = [question for question in questions if keys[question.id] not in known]
    if pending:  # the first one twice: its first time warms the model, and does not count
        answer(pending[0], benchmark.database(pending[0].db_id), model, named, config)
    for question in tqdm(pending, desc=named.name, unit="question", disable=None):
        began = time.perf_counter()
        episode = answer(question, benchmark.database(question.db_id), model, named, config)
        seconds = round(time.perf_counter() - began, 4)
        row = {
            "key": keys[question.id],
            "controller": named.name,
            "id": question.id,
            "sql": episode.sql,
            "error": episode.error,
            "suspicions": episode.flags.get("suspicions", []),
            "confidence": episode.flags.get("confidence"),
            "usage": episode.usage.to_dict(),
            "seconds": seconds,
        }
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json_text(row) + "\n")
        known[row["key"]] = row
    return {question.id: known[keys[question.id]] for question in questions}


def key_of(
    named: NamedController,
    config: Config,
    model: Model,
    benchmark: FolderBenchmark,
    question: Question,
) -> str:
    """What decides an answer: controller, config, code, model, question and database."""
    fingerprints = {
        "question": question_key(question),
        question.db_id: benchmark.database(question.db_id).fingerprint,
    }
    return run_key(named, config, model.describe(), fingerprints, part_fingerprints(config))


# ----------------------------------------------------------------------------------------- tables


def judged(
    benchmark: FolderBenchmark,
    questions: Sequence[Question],
    answers: Mapping[str, Answers],
) -> dict[str, Any]:
    """What the tables show, as data."""
    queries = {name: {id_: rows[id_]["sql"] for id_ in rows} for name, rows in answers.items()}
    scores = score_many(benchmark, questions, queries, replicas=0, causes=False)
    first, *others = scores
    return {
        "n": len(questions),
        "controllers": {name: groups_of(scores[name], answers[name], questions) for name in scores},
        "tests": {name: test_of(first, scores[name], scores[first]) for name in others},
        "items": {name: items_of(scores[name], answers[name]) for name in scores},
    }


def items_of(scores: Scores, answers: Answers) -> list[dict[str, Any]]:
    """Every answer with its verdict."""
    return [answers[item.id] | {"right": item.ex, "ran": item.va} for item in scores.items]


def test_of(first: str, ours: Scores, theirs: Scores) -> dict[str, Any]:
    """The paired test of a controller against the first one."""
    return {"against": first, **ours.paired(theirs)["EX[bag]"]}


def groups_of(
    scores: Scores,
    answers: Answers,
    questions: Sequence[Question],
) -> dict[str, dict[str, Any]]:
    """All questions, those of each level and of each database -> the counts over them."""
    level = {question.id: question.meta["level"] for question in questions}
    groups = {"all": list(scores.items)}
    for name in LEVELS:
        groups[name] = [item for item in scores.items if level[item.id] == name]
    for name in sorted({item.db_id for item in scores.items}):
        groups[name] = [item for item in scores.items if item.db_id == name]
    return {name: counts(items, answers) for name, items in groups.items() if items}


def counts(items: Sequence[ItemScore], answers: Answers) -> dict[str, Any]:
    """Right and wrong answers, warned and not, and the seconds that they took."""
    ran = [item for item in items if item.va]
    right = [item for item in items if item.ex]
    seconds = [answers[item.id]["seconds"] for item in items]
    databases = [item.db_id for item in items]

    def warned(group: Iterable[ItemScore]) -> int:
        return sum(bool(answers[item.id]["suspicions"]) for item in group)

    return {
        "n": len(items),
        "right": len(right),
        "ex": clustered_interval([item.ex for item in items], databases).to_dict(),
        "database_errors": sum(not item.va and bool(item.sql.strip()) for item in items),
        "no_query": sum(not item.sql.strip() for item in items),
        "wrong_ran": len(ran) - len(right),
        "wrong_warned": warned(item for item in ran if not item.ex),
        "right_warned": warned(right),
        "seconds_median": statistics.median(seconds),
        "seconds_mean": statistics.fmean(seconds),
    }


HEAD = "right|EX[bag]|database errors|no query|wrong, warned|right, warned|s, median|s, mean"


def rows_of(name: str, groups: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A controller's table; the first row is the header."""
    rows = [[name, *HEAD.split("|")]]
    for group, data in groups.items():
        n = data["n"]
        cells = [f"{data['right']} of {n}", percent(data["ex"])]
        cells += [
            f"{data['database_errors']} ({100 * data['database_errors'] / n:.0f}%)",
            str(data["no_query"]),
        ]
        cells += [
            f"{data['wrong_warned']} of {data['wrong_ran']}",
            f"{data['right_warned']} of {data['right']}",
        ]
        rows.append([group, *cells, f"{data['seconds_median']:.2f}", f"{data['seconds_mean']:.2f}"])
    return rows


def shown(data: Mapping[str, Any]) -> str:
    """One table per controller, and a line per paired test."""
    parts = [table_markdown(rows_of(name, groups)) for name, groups in data["controllers"].items()]
    for name, test in data["tests"].items():
        outcome = f"{test['wins']} won, {test['losses']} lost, p {test['p']:.2g}, by database {test['p_databases']:.2g}"
        parts.append(f"{name} against {test['against']}: {outcome}")
    return "\n\n".join(parts)


# ----------------------------------------------------------------------------------- command line


def arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--check",
        action="store_true",
        help="build the databases, run the golds on rows in several orders; no model",
    )
    parser.add_argument("--half", choices=(*HALVES, "all"), default="tune")
    parser.add_argument("--limit", type=int, help="a seeded sample of so many questions")
    parser.add_argument(
        "--controller",
        nargs="+",
        default=["react", "best"],
        metavar="NAME",
        help="or FILE.py:function; all are compared with the first (default: react best)",
    )
    parser.add_argument("--model", default="smollm2-135m", help="as nl2sql ask --model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", help="float32 (default on CPU) or bfloat16")
    parser.add_argument("--adapter", default="auto")
    pairs: dict[str, Any] = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument("--server", **pairs, help="of an HTTP model")
    parser.add_argument("--batch-size", type=int, default=8, help="rows decoded at once; ask: 1")
    parser.add_argument("--config", type=Path, action="append", default=[], help="YAML config file")
    parser.add_argument("-c", "--set", **pairs, help="config override")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="keep the answers there; again: only what is owed",
    )
    parser.add_argument("--json", action="store_true", help="all as data, each answer included")
    return parser.parse_args()


def check(benchmark: FolderBenchmark) -> int:
    """Say which golds cannot be relied on; the exit code."""
    faults = check_questions(benchmark, benchmark.questions)
    for fault in faults:
        print(f"{fault.id}: {fault.reason}")
    asked_of = f"{len(benchmark.questions)} questions over {len(benchmark.files)} databases"
    golds = sum(len(question.gold) for question in benchmark.questions)
    print(f"{asked_of}: {golds} golds, {len(faults)} faults")
    return int(bool(faults))


def main() -> int:
    options = arguments()
    try:
        benchmark = everyday()
        if options.check:
            return check(benchmark)
        halves = HALVES if options.half == "all" else (options.half,)
        of_halves = [question for question in benchmark.questions if question.split in halves]
        questions = draw_sample(of_halves, options.limit)
        data = judged(benchmark, questions, asked(options, benchmark, questions))
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; with --out the same command goes on", file=sys.stderr)
        return 130
    data |= {"half": options.half, "model": options.model}
    print(json_text(data, indent=1) if options.json else shown(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
