"""What grammars cost and what they bring, on this machine: docs/grammars.md quotes its output.

    python scripts/measure_constrain.py cost                # compile and mask times
    python scripts/measure_constrain.py actions --limit 12  # format errors per 100 turns, none and action
    python scripts/measure_constrain.py sql --limit 40      # VA and EX of single_shot: none, sql and plain

``actions`` and ``sql`` also say which share of the model's time went into grammars. Without a name all three run. The
packaged benchmark's quick split and the embedded model are used, without its adapter unless ``--adapter auto``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from nl2sql.agents.controllers import get_controller
from nl2sql.agents.grammars.select import action_grammar, no_arguments, select_grammar
from nl2sql.agents.record import Episode
from nl2sql.benchmarks import draw_sample, load_benchmark
from nl2sql.config import Config, load_config
from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.eval import score
from nl2sql.interfaces import Grammar, Question, Resources
from nl2sql.models import load_model
from nl2sql.models.constrained import Constrainer, GrammarState


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="default: everything")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--adapter", default="none")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--limit", type=int, default=12, help="questions of the quick split")
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    model: Any = load_model(options.model, adapter=options.adapter, dtype=options.dtype, batch_size=options.batch_size)
    for name in options.what or MEASURES:
        for line in MEASURES[name](model, options):
            print(json.dumps({"measure": name, **line}), flush=True)
    model.close()


# --------------------------------------------------------------------------------------------------- costs


def cost(model: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Milliseconds to compile, microseconds a full mask (where the best token may not come): processor time."""
    constrainer = _constrainer(model)
    benchmark = load_benchmark("packaged", split="quick")
    names = ["get_schema", "generate_sql", "run_sql", "finish"]
    turn = action_grammar(tuple((name, no_arguments([])) for name in names), 200)
    constrainer.start(turn)  # builds the vocabulary, which is not counted
    golds: dict[str, list[str]] = {}
    for question in benchmark.questions:
        golds.setdefault(question.db_id, []).append(question.gold[0])
    largest = max(golds, key=lambda db_id: sum(len(t.columns) for t in benchmark.database(db_id).schema().tables))
    schema = benchmark.database(largest).schema()
    text = "Thought: the schema is known, so a query can be written now.\nAction: generate_sql[{}]"
    cases = {"action": (turn, [text])}
    queries = [gold.removeprefix("SELECT").rstrip(";") for gold in golds[largest] if gold.startswith("SELECT")]
    cases[f"sql, {sum(len(t.columns) for t in schema.tables)} columns"] = (select_grammar(schema), queries)
    wide = Schema(tuple(Table(f"t_{t}", tuple(Column(f"c_{t}_{c}") for c in range(15))) for t in range(20)))
    cases["sql, 300 columns"] = (select_grammar(wide), _simple_queries(9))
    for name, (grammar, texts) in cases.items():
        fresh = replace(grammar, text=grammar.text + "\n")  # not in the cache
        began = time.thread_time()
        constrainer.start(fresh)
        compiled = time.thread_time() - began
        masks = _mask_seconds(model, constrainer, grammar, texts)
        mean = statistics.mean(masks)
        yield {
            "grammar": name,
            "compile_ms": round(1000 * compiled),
            "mask_us": {"mean": round(1e6 * mean), "median": round(1e6 * statistics.median(masks))},
        }


def _simple_queries(count: int) -> list[str]:
    return [f" c_{t}_1, c_{t}_2 FROM t_{t} WHERE c_{t}_3 > 5" for t in range(count)]


def _constrainer(model: Any) -> Constrainer:
    return model._constrainer  # the one that the engine uses


def _mask_seconds(model: Any, constrainer: Constrainer, grammar: Grammar, texts: list[str]) -> list[float]:
    """Per token of ``texts``: mask and follow it. Best of three passes: a busy machine adds what is not ours."""
    tokenizer, width = model._chat._tokenizer, constrainer._n_vocab
    best: dict[tuple[int, int], float] = {}
    logits = torch.zeros(width)
    for _ in range(3):
        for at, text in enumerate(texts):
            state = constrainer.start(grammar)
            for index, token in enumerate(tokenizer(text, add_special_tokens=False)["input_ids"]):
                logits.zero_()
                began = time.thread_time()
                state.mask(logits)
                if logits[token] != 0:
                    break
                state.consume(token)
                seconds = time.thread_time() - began
                best[at, index] = min(best.get((at, index), 1e9), seconds)
    return list(best.values())


class _Clock:
    """Seconds that the engine spends in grammars, and how many masks it needs."""

    def __init__(self, model: Any) -> None:
        self.model, self.seconds, self.masks = model, 0.0, 0
        self.began = model.worker_seconds()[0]

    def share(self) -> dict[str, Any]:
        busy = self.model.worker_seconds()[0] - self.began
        return {"grammar_percent": round(100 * self.seconds / busy, 2), "masks": self.masks}


@contextmanager
def _clocked(model: Any) -> Iterator[_Clock]:
    clock, names = _Clock(model), ("mask", "allows", "forced", "consume")
    honest = {name: getattr(GrammarState, name) for name in names}

    def timed(name: str) -> Callable[..., Any]:
        def call(state: GrammarState, *args: Any) -> Any:
            began = time.thread_time()
            try:
                return honest[name](state, *args)
            finally:
                clock.seconds += time.thread_time() - began
                clock.masks += name == "mask"

        return call

    for name in names:
        setattr(GrammarState, name, timed(name))
    try:
        yield clock
    finally:
        for name in names:
            setattr(GrammarState, name, honest[name])


# ------------------------------------------------------------------------------------------------- effects


def actions(model: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Turns, format errors, and turns cut at max_new_tokens, of the loop with ``none`` and ``action``."""
    for level in ("none", "action"):
        began = time.perf_counter()
        with _clocked(model) as clock:
            episodes = _episodes(model, "react", load_config((), [f"constrain={level}"]), options)
        turns = [call for episode in episodes.values() for call in episode.calls if call["kind"] == "act"]
        cut = sum(call["finish_reason"] == "length" for call in turns)
        wrong = sum(episode.flags.get("format_errors", 0) for episode in episodes.values())
        yield {
            "constrain": level,
            "episodes": len(episodes),
            "turns": len(turns),
            "format_errors_per_100": round(100 * (wrong - (cut if level == "action" else 0)) / len(turns), 1),
            "cut_per_100": round(100 * cut / len(turns), 1),
            "finish": dict(Counter(episode.finish for episode in episodes.values())),
            "seconds": round(time.perf_counter() - began),
            **clock.share(),
        }


def sql(model: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """VA and EX of single_shot under each level for SQL, and why the rest does not run."""
    benchmark = load_benchmark("packaged", split="quick")
    for level in ("none", "sql", "plain"):
        began = time.perf_counter()
        with _clocked(model) as clock:
            episodes = _episodes(model, "single_shot", load_config((), [f"constrain={level}"]), options)
        questions = [question for question in benchmark.questions if question.id in episodes]
        scores = score(benchmark, questions, {key: e.sql for key, e in episodes.items()}, replicas=0)
        found = scores.metrics()
        yield {
            "constrain": level,
            "n": len(questions),
            "VA": round(found["VA"].value, 3),
            "EX": round(found["EX[bag]"].value, 3),
            "errors": dict(Counter(item.error_kind or "other" for item in scores.items if not item.va)),
            "cut": sum(bool(episode.flags.get("truncated")) for episode in episodes.values()),
            "seconds": round(time.perf_counter() - began),
            **clock.share(),
        }


def _episodes(model: Any, controller: str, config: Config, options: argparse.Namespace) -> dict[str, Episode]:
    benchmark = load_benchmark("packaged", split="quick")
    questions = draw_sample(list(benchmark.questions), options.limit, 0)
    run: Callable[..., Episode] = get_controller(controller).run

    def one(question: Question) -> Episode:
        return run(question, Resources(model, benchmark.database(question.db_id)), config)

    with ThreadPoolExecutor(options.batch_size) as threads:
        return {episode.question.id: episode for episode in threads.map(one, questions)}


MEASURES: dict[str, Callable[[Any, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "cost": cost,
    "actions": actions,
    "sql": sql,
}

if __name__ == "__main__":
    main()
