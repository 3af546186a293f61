"""What a run will cost before it is run: ``nl2sql eval --dry-run``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from nl2sql.agents import prompts
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.opening import link, open_task
from nl2sql.agents.task import SQL_STOPS
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import Config
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Resources
from nl2sql.runs.controls import control_stores
from nl2sql.runs.plan import Plan, open_model, pick
from nl2sql.runs.progress import most_calls

PROBED_QUESTIONS = 10
PROBE_TOKENS = 16
OBSERVATION_TOKENS = 60
SQL_CALLS = 3  # generate, one repair, and the fallback or a second repair


def estimate(plan: Plan, config: Config) -> dict[str, Any]:
    """Episodes, tokens, and an estimated time on this machine, from a probe of a few seconds.

    Tokens assume that every step is used, every reply has full length, an observation ``OBSERVATION_TOKENS``, and
    nothing is reused between steps; the time takes half the reply length. Scoring time is not included.
    """
    benchmark = load_benchmark(plan.benchmark, split=plan.split)
    questions = pick(benchmark, plan)
    model = open_model(replace(plan, cache=False))  # a cached answer would time nothing
    opening = generate = 0
    probe: list[dict[str, str]] | None = None
    sample = questions[:: max(1, len(questions) // PROBED_QUESTIONS)][:PROBED_QUESTIONS]
    counted = 0
    for question in sample:
        try:
            task = open_task(question, Resources(model, benchmark.database(question.db_id)), config)
        except Nl2SqlError:
            continue  # the run itself records it as a failed episode
        link(task)
        probe = prompts.generate_messages(task.nlq, task.schema_text_focus, None, config.prompts, task.examples)
        generate += model.count_tokens(probe)
        opening += model.count_tokens(prompts.react_messages(task.schema_text_full + task.schema_text_focus))
        counted += 1
    n, counted = len(questions), max(1, counted)
    calls = most_calls(plan.controller, config)
    written = calls if plan.controller in ("single_shot", "candidates", "best") else None
    stores = control_stores(plan, get_controller(plan.controller))
    loop, control = int(written is None), int(bool(stores))
    steps, reply, sql_calls = config.react.max_steps, config.react.max_new_tokens, SQL_CALLS
    if plan.controller in ("reflect", "vizql"):  # no turns of a loop: generations only
        steps, sql_calls = 0, calls
    grown = steps * opening / counted + (reply + OBSERVATION_TOKENS) * steps * (steps - 1) / 2
    seeds, equal = max(1, len(plan.seeds)), max(1, len(stores))
    loops = n * loop * seeds * equal  # the control at equal tokens costs what the loop costs
    shots = n * (control + (written or 0) * seeds * equal)
    prompt = loops * (grown + sql_calls * generate / counted) + shots * generate / counted
    completion = reply * (loops * (steps + sql_calls) + shots)
    expected: dict[str, Any] = {
        "questions": n,
        "episodes": n * (seeds + control * equal),
        "prompt_tokens": round(prompt),
        "completion_tokens": round(completion),
    }
    if probe is None or hasattr(model, "for_episode"):
        return expected
    started = time.perf_counter()
    rows = min(n, plan.batch_size)
    done = model.generate(probe, stop=SQL_STOPS, max_new_tokens=1, n=rows)
    prefill = time.perf_counter() - started
    started = time.perf_counter()
    done = model.generate(probe, max_new_tokens=PROBE_TOKENS, n=rows)
    decode = max(1e-3, time.perf_counter() - started - prefill)
    tokens = sum(completion.usage.completion_tokens for completion in done)
    per_prompt = prefill / max(1, sum(completion.usage.prompt_tokens for completion in done))
    seconds = prompt * per_prompt + completion / 2 * decode / max(1, tokens)
    return expected | {"seconds_estimated": round(seconds)}
