"""The candidate-driven agent: several queries for one question, executed, scored, ranked; the best is the answer.

The candidates come from ``generate_sql``'s own prompt: the control's greedy answer, sampled ones, and one under the
schema's grammar. Each distinct query goes through the loop's own tools (validate_sql, validate_constraints, run_sql)
once. Where none runs, the best of the rest is repaired with its error. How one is chosen is in docs/candidates.md. For
ablations beside the reference loop, ``react`` (specification, section 10). Self-consistency [41] over results is its
``vote``, execution-guided choice [42] its ``first_executable``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nl2sql.agents.agent_tools import dispatch
from nl2sql.agents.checks.literal_repair import repair_literals
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.ranking import Candidate, agreement, as_samples, confidence, probability, rank, suspected_by, tells
from nl2sql.agents.record import Episode, EpisodeError, make_episode, own_text, summarize_trace
from nl2sql.agents.setup import link, open_task, other_orders
from nl2sql.agents.task import State
from nl2sql.agents.writing import Draft, complete_sql, guard, intent_mismatch, sql_messages
from nl2sql.config import CandidatesConfig, Config
from nl2sql.interfaces import Completion, Database, EventSink, Model, Question, Resources, Sampling, Tool, no_sink
from nl2sql.sql.same import query_key


class ReactSqlAgent:
    """The candidate-driven agent over one database and model; answers any number of questions."""

    def __init__(
        self,
        database: Database,
        model: Model,
        config: Config | None = None,
        *,
        tools: Mapping[str, Tool] | None = None,
        sink: EventSink = no_sink,
        cancel: threading.Event | None = None,
    ) -> None:
        self.resources = Resources(model, database, tools or {}, sink=sink, cancel=cancel)
        self.config = config or Config()

    def answer(self, nlq: str | Question) -> Episode:
        """The best candidate with its rows; all scores are in the trace's last record.

        Failures of the model, a tool or the database are recorded in ``Episode.error``. Raises UsageError for an
        empty or oversized question or an empty database, Cancelled when ``cancel`` is set.
        """
        return candidates(nlq if isinstance(nlq, Question) else Question(nlq), self.resources, self.config)


def candidates(question: Question, resources: Resources, config: Config) -> Episode:
    """``ReactSqlAgent`` as a registered controller."""
    task = open_task(question, resources, config)
    search = Search(State(task), task.config.candidates)
    error = None
    try:
        search.write_all()
        search.repair_until_one_runs()
    except EpisodeError as failure:
        error = str(failure)
    return search.close(error)


@dataclass
class Search:
    """The candidates of one question."""

    state: State
    settings: CandidatesConfig
    candidates: list[Candidate] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    step: int = -1  # of the last writing
    repaired: dict[str, str | None] = field(default_factory=dict)  # SQL -> with texts that its columns hold

    def write_all(self) -> None:
        """Ask the control's prompt for all candidates; raises EpisodeError."""
        state, task = self.state, self.state.task
        link(task)
        state.constraints = dispatch(state, "extract_constraints", {})
        self.note("extract_constraints", state.constraints, step=0)
        self.messages = sql_messages(task, state.constraints)
        for origin, draft in self.written():
            self.take("generate_sql", origin, draft.raw_sql, draft.completion)

    def written(self) -> Iterator[tuple[str, Draft]]:
        """(origin, draft): of each order the greedy answer and sampled ones; last one under a grammar."""
        settings, task = self.settings, self.state.task
        grammars = not task.config.constrains_sql and task.resources.database.dialect == "sqlite"
        constrained = int(settings.constrained and grammars and settings.n > settings.greedy)
        limit, sampling = task.config.react.max_new_tokens, Sampling(settings.temperature, settings.top_p)
        texts = other_orders(task, settings.schema_orders - 1)
        orders = [self.messages, *(sql_messages(task, self.state.constraints, text) for text in texts)]
        slowest, began = 0.0, time.perf_counter()
        for order, messages in enumerate(orders):
            if order:
                now = time.perf_counter()
                slowest, began = max(slowest, now - began), now
                if self.enough(slowest):
                    break
            left = settings.n - constrained - order  # shared out evenly, the first orders take what is over
            share = -(-left // len(orders))
            greedy = int(settings.greedy and share > 0)
            if greedy:
                yield from (("greedy", draft) for draft in complete_sql(task, messages, limit, n=1))
                if not order and self.first_is_enough():
                    return
            if share > greedy:
                drafts = complete_sql(task, messages, limit, sampling=sampling, n=share - greedy)
                yield from (("sampled", draft) for draft in drafts)
        if constrained:
            try:
                draft = complete_sql(task, self.messages, limit, constrained=True, n=1)[0]
            except EpisodeError as failure:  # most servers take no such grammar; the others are candidates enough
                if not self.candidates:
                    raise
                task.flags["unconstrained"] = str(failure)
            else:
                yield ("constrained", draft)

    def first_is_enough(self) -> bool:
        """Whether the greedy answer is asked for alone, and stands alone: it runs, gives rows, reaches
        ``confident_at``, and nothing about it is suspicious; or the sampled ones, which may take as long, would end
        after the time."""
        settings, task = self.settings, self.state.task
        if not settings.asks_greedy_alone:
            return False
        (first,) = self.candidates
        p_query = first.parts["probability"] if first.parts["rows"] and not (first.suspected or first.refusal) else None
        if p_query is not None and p_query >= settings.confident_at:
            task.flags["views"] = "the first is sure"
        elif first.runs and settings.seconds and 2 * (time.perf_counter() - task.began) > settings.seconds:
            task.flags["views"] = "time is over"
        return "views" in task.flags

    def enough(self, slowest: float) -> bool:
        """Whether what was written so far is enough: ``agree`` of it gives the same rows, or another order, which may
        take as long as the ``slowest`` so far, would end after the time."""
        settings, task = self.settings, self.state.task
        if settings.seconds and time.perf_counter() - task.began + slowest > settings.seconds:
            task.flags["views"] = "time is over"
            return True
        if not settings.agree:
            return False
        copies = [len(candidate.steps) for candidate in self.candidates]
        votes = agreement([task.result_of(candidate.sql) for candidate in self.candidates], copies)
        telling = [v for v, c in zip(votes, self.candidates, strict=True) if c.parts["rows"]]
        agreed = max(telling, default=0) >= settings.agree * sum(copies)
        if agreed:
            task.flags["views"] = "candidates agree"
        return agreed

    def take(self, action: str, origin: str, raw_sql: str, completion: Completion | None) -> None:
        """A text as a candidate: through the guardrails (with ``repair.deterministic`` also compared with what columns
        hold), and where its query is new, through the tools.

        completion: says how likely the text is; None where that is not comparable.
        """
        p_query = None if completion is None else probability(completion, self.settings.length_penalty)
        logprob = None if completion is None else completion.logprob
        self.step += 1
        state, task = self.state, self.state.task
        own = {"raw_sql": own_text(task, raw_sql)}
        state.record({"step": self.step, "llm": own["raw_sql"]})
        sql, reason = guard(task, raw_sql, enabled=task.config.react.guardrails)
        self.note(action, {"error": reason} | own if reason else {"sql": sql} | own)
        state.decide(self.step, action, reason or "ok", "reject" if reason else "accept", {"origin": origin})
        if sql and task.config.repair.deterministic:
            if sql not in self.repaired:  # samples repeat one another
                self.repaired[sql] = repair_literals(sql, task.resources.database)
            if repaired := self.repaired[sql]:
                sql = repaired
                task.count("deterministic_repairs")
                self.note("repair_literals", {"sql": sql})
        if reason:
            state.refuse(self.step, "guardrails", raw_sql, reason)
        key = query_key(sql, task.resources.database.dialect) if sql else ""
        twin = next((other for other in self.candidates if other.key == key), None)
        if twin is not None:
            twin.steps.append(self.step)
            if sql and p_query is not None:  # another order may hold the same query for likelier
                twin.parts["probability"] = max(p_query, twin.parts["probability"] or 0.0)
            twin.logprob = max((value for value in (logprob, twin.logprob) if value is not None), default=None)
            return
        made = Candidate(sql, raw_sql, origin, key, [self.step], reason, logprob=logprob)
        self.candidates.append(made)  # before a check that may fail, so that the query is not lost
        if sql:
            task.candidates[sql] = made
            self.examine(made, p_query)

    def examine(self, candidate: Candidate, p_query: float | None) -> None:
        """Validate and execute a query, as the loop's gates do; a gate's refusal does not keep it from running."""
        state, task = self.state, self.state.task
        state.last_sql = candidate.sql
        seen = []
        for action in ("validate_sql", "validate_constraints", "run_sql"):
            seen.append(dispatch(state, action, {}))
            self.note(action, seen[-1])
        (valid, demanded, ran), why = seen, intent_mismatch(task, candidate.sql)
        reasons = (  # in the order in which the loop would meet them
            None if valid["valid"] is True else str(valid["reason"]),
            None if ran["success"] else str(ran.get("error", "failed")),
            None if demanded["valid"] is True else str(demanded["reason"]),
            f"intent_mismatch:{why}" if why else None,
        )
        candidate.refusal = next((reason for reason in reasons if reason is not None), None)
        rows = float(tells(task.result_of(candidate.sql)))
        candidate.parts |= {"executes": float(ran["success"] is True), "rows": rows, "probability": p_query}
        if self.settings.suspicion_weight and candidate.runs:
            candidate.suspected = suspected_by(task, candidate.sql)

    def ranking(self) -> list[Candidate]:
        """The candidates, best first, each with its score; ties go to the one that was written first."""
        results = [self.state.task.result_of(candidate.sql) for candidate in self.candidates]
        return rank(self.candidates, results, self.settings)

    def repair_until_one_runs(self) -> None:
        """Execution-guided retries: each time the best candidate that was not repaired yet, with its error."""
        for _ in range(self.settings.retry):
            left = [candidate for candidate in self.ranking() if not candidate.repaired]
            if not left or any(candidate.runs for candidate in self.candidates):
                return
            self.repair(left[0])

    def repair(self, candidate: Candidate) -> None:
        """One more candidate, by ``repair_sql`` [2]. How likely the model holds it is not comparable: not known."""
        state = self.state
        state.last_sql, state.last_error = candidate.sql or None, candidate.refusal
        candidate.repaired = True
        state.task.count("repairs")
        self.take("repair_sql", "repaired", str(dispatch(state, "repair_sql", {})), None)

    def confidence(self, recorded: Sequence[Mapping[str, Any]], ranking: Sequence[Candidate]) -> float | None:
        """How likely the first is right; None where likelihoods do not choose, or are not known."""
        best, task = ranking[0], self.state.task
        if self.settings.choose != "logprob" or not best.sql or best.parts["probability"] is None:
            return None
        uncovered = uncovered_share(task.question.text, best.sql, task.schema)
        results = [task.result_of(candidate.sql) for candidate in ranking]
        return confidence(recorded, results, uncovered=uncovered)

    def note(self, action: str, observation: Any, step: int | None = None) -> None:
        at = self.step if step is None else step
        self.state.record({"step": at, "action": action, "args": {}, "observation": observation})

    def close(self, error: str | None) -> Episode:
        """The Episode of the best candidate."""
        state, task = self.state, self.state.task
        ranking = self.ranking()
        best = ranking[0] if ranking else Candidate("")
        p_correct, why_none = None, f"model: {best.refusal}"
        if ranking:
            recorded = [candidate.to_dict() for candidate in ranking]
            self.note("rank_candidates", {"choose": self.settings.choose, "ranking": recorded})
            p_correct = None if error else self.confidence(recorded, ranking)
            abstains = p_correct is not None and p_correct < self.settings.min_confidence
            doing = "abstain" if abstains else "accept"
            state.decide(self.step, "rank_candidates", self.settings.choose, doing, {"sql": best.sql})
            if abstains:
                why_none = (
                    f"abstained: confidence {p_correct} is below {self.settings.min_confidence:g}; best: {best.sql}"
                )
                best, task.flags["abstained"] = replace(best, sql=""), True
        if p_correct is not None:
            task.flags["confidence"] = p_correct
        finish = "abstained" if "abstained" in task.flags else "answered" if best.sql else "empty"
        return make_episode(
            task,
            "candidates",
            best.sql,
            raw_sql=best.raw_sql,
            finish="error" if error else finish,
            error=error,
            why_none=why_none,
            steps=self.step + 1,
            trace=state.trace,
            decision_log=state.decision_log,
            compliance=summarize_trace(()),  # the order of calls is ours, not the model's
            messages=self.messages,
            transcript=best.raw_sql,
            flags={"distinct": sum(bool(candidate.sql) for candidate in self.candidates), **self.samples()},
        )

    def samples(self) -> dict[str, Any]:
        """What was written, repairs apart, in its order; {} for a single query."""
        own = [candidate for candidate in self.candidates if candidate.origin != "repaired"]
        queries = [sql for _, sql in sorted((step, candidate.sql) for candidate in own for step in candidate.steps)]
        results = [self.state.task.result_of(sql) for sql in queries]
        return {"samples": as_samples(queries, results)} if len(queries) > 1 else {}
