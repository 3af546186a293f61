"""Ways to have a model answer a follow-up, side by side: which of them finds the gold's rows how often.

    python scripts/conversations/build.py runs/conversations
    NL2SQL_BENCHMARKS=runs python scripts/conversations/ways.py qwen2.5-coder-1.5b fragments --adapter none

Over the later turns of one set, each behind the gold history; no rules, no edits. ``beside``: the question as it is
beside the previous query. ``turns``: the earlier questions and queries as turns of a chat. ``rewrite``: made whole by
the specification's prompt; ``examples``: by a short prompt with six solved examples (both then asked as they are, of
the model with ``--sql-adapter``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from nl2sql.agents import prompts
from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.schema import budget_schema
from nl2sql.eval.rules import gold_order, results_match
from nl2sql.interfaces import Benchmark, Model, Question
from nl2sql.models import load_model

Messages = list[dict[str, str]]
SYSTEM = (
    "Rewrite the last question of a conversation about a database so that it can be understood without the "
    "conversation. Keep every condition of the earlier question that still holds. If the last question is about "
    "something else, repeat it unchanged. Answer with one question and nothing else."
)
EXAMPLES = (
    ("Q: How many books cost more than 20?", "What about 30?", "How many books cost more than 30?"),
    (
        "Q: What is the average salary of engineers in 2021?",
        "and per office?",
        "What is the average salary of engineers in 2021 per office?",
    ),
    (
        "Q: Show the names of the teams from Ohio.\nQ: Show the names of the teams from Ohio that were founded before "
        "1990.",
        "how many are there?",
        "How many teams from Ohio were founded before 1990?",
    ),
    ("Q: How many flights left in May 2020?", "List all pilots older than 50.", "List all pilots older than 50."),
    ("Q: Which product has the highest price?", "sorry, the lowest", "Which product has the lowest price?"),
    ("Q: Total sales by store", "only the web orders, Q2", "Total sales by store of web orders in Q2"),
)
SHOWN = 3  # earlier exchanges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("split")
    parser.add_argument("--adapter", default="none")
    parser.add_argument("--sql-adapter", default="auto", help="of the model that answers rewritten questions")
    options = parser.parse_args()
    benchmark = load_benchmark("conversations", split=options.split)
    later = [question for question in benchmark.questions if question.history]
    schemas = {
        db_id: budget_schema(benchmark.database(db_id).schema(), lambda text: len(text) // 3, 3000)
        for db_id in {question.db_id for question in later}
    }
    asked = _opened(options.model, options.adapter)
    for name, way in (("beside", _beside), ("turns", _turns)):
        _tell(name, benchmark, later, _written(asked, [way(question, schemas[question.db_id]) for question in later]))
    texts = {
        name: _written(asked, [way(question) for question in later], sql=False)
        for name, way in (("rewrite", _rewrite), ("examples", _examples))
    }
    asked.close()
    answers = _opened(options.model, options.sql_adapter)
    for name, said in texts.items():
        whole = [prompts.generate_messages(t, schemas[q.db_id]) for q, t in zip(later, said, strict=True)]
        _tell(name, benchmark, later, _written(answers, whole))
    answers.close()


def _opened(name: str, adapter: str) -> Model:
    local: dict[str, str] = {} if name.startswith("scripted:") else {"engine": "slots", "adapter": adapter}
    return load_model(name, dtype="bfloat16", batch_size=64, **local)  # type: ignore[arg-type]


def _beside(question: Question, schema: str) -> Messages:
    return prompts.generate_messages(question.text, schema, previous_sql=question.history[-1].sql)


def _turns(question: Question, schema: str) -> Messages:
    first, *others = question.history[-SHOWN:]
    told = [*prompts.generate_messages(first.user_query, schema), {"role": "assistant", "content": first.sql}]
    for turn in others:
        told.append({"role": "user", "content": f"Question: {turn.user_query}\nSQL:"})
        told.append({"role": "assistant", "content": turn.sql})
    return [*told, {"role": "user", "content": f"Question: {question.text}\nSQL:"}]


def _rewrite(question: Question) -> Messages:
    history = "\n".join(f"Q: {turn.user_query}\nSQL: {turn.sql}" for turn in question.history[-SHOWN:])
    user = prompts.prompt("resolve_user", history=history, question=question.text)
    return [{"role": "system", "content": prompts.prompt("resolve_system")}, {"role": "user", "content": user}]


def _examples(question: Question) -> Messages:
    told = [{"role": "system", "content": SYSTEM}]
    for history, last, whole in EXAMPLES:
        told.append({"role": "user", "content": f"{history}\nLast question: {last}"})
        told.append({"role": "assistant", "content": whole})
    history = "\n".join(f"Q: {turn.user_query}" for turn in question.history[-SHOWN:])
    return [*told, {"role": "user", "content": f"{history}\nLast question: {question.text}"}]


def _written(model: Model, asked: Sequence[Messages], *, sql: bool = True) -> list[str]:
    """A greedy answer to each: an SQL statement, or a line of text."""
    prefill, stop, most = ("SELECT", (";", "\n\n"), 160) if sql else ("", ("\n",), 80)
    ask: Callable[[Messages], str] = lambda messages: (  # noqa: E731
        prefill + model.generate(messages, prefill=prefill, stop=stop, max_new_tokens=most)[0].text
    ).strip()
    with ThreadPoolExecutor(64) as threads:
        return list(threads.map(ask, asked))


def _tell(name: str, benchmark: Benchmark, later: Sequence[Question], written: Sequence[str]) -> None:
    right = [_is_right(benchmark, question, sql) for question, sql in zip(later, written, strict=True)]
    alone = [hit for question, hit in zip(later, right, strict=True) if question.meta["kind"] == "independent"]
    print(
        f"{name}: {sum(right)} of {len(right)} later turns; independent ones {sum(alone)} of {len(alone)}", flush=True
    )


def _is_right(benchmark: Benchmark, question: Question, sql: str) -> bool:
    database = benchmark.database(question.db_id)
    made = database.run(sql)
    wanted = [(gold, database.run(gold)) for gold in question.gold]
    return any(results_match(rows, made, **gold_order(gold, rows)) for gold, rows in wanted)


if __name__ == "__main__":
    main()
