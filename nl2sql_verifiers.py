"""The plugin by which the verifiers library finds nl2sql: a taskset, and a harness that runs our controllers.

    vf-eval nl2sql_verifiers --env.agent.harness.id nl2sql_verifiers --env.agent.runtime.type subprocess ...

Written against verifiers 0.4 (``verifiers.v1``). A task is a question; its rewards are ``ex``, ``ts``, ``format`` and
``cost``, weighted as ``config.reward`` says unless the run's own config weighs them. The harness drives an episode of
any controller (``single_shot``: one turn; ``react``, ``react_plus``: the loop) and sends each call of the model to the
rollout's own endpoint, where the library records it. Golds are in no task and no trace: they are looked up by the
question's id.

Not covered: grammars; an open turn is quoted in the user's message, since the endpoint continues none; tools of an
MCP server, which our loop does not take. The how-to is docs/environment.md.
"""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import httpx2
import verifiers.v1 as vf
from pydantic import Field

from nl2sql.config import build_config
from nl2sql.errors import ModelError
from nl2sql.interfaces import Completion, Usage
from nl2sql.models.chat import Request, cut_at
from nl2sql.models.http.server import for_chat, quoting, without_echo
from nl2sql.models.http.wire import read_answers, read_counts
from nl2sql.runs.rollouts import Environment, load_environment
from nl2sql.runs.rollouts.driven import PARTS, DrivenEpisode, Outcome, Reward, outcome_of

__all__ = ["LoopHarness", "Questions"]

KEPT = "nl2sql"  # in ``trace.info``: the outcome, and the reward with its parts


class QuestionData(vf.TaskData):
    """A question as a trace holds it: no gold. ``settings``: the environment's own config, as JSON."""

    question_id: str
    db_id: str
    benchmark: str
    split: str
    settings: str = "{}"


class QuestionTask(vf.Task[QuestionData, vf.State, vf.TaskConfig]):
    """Rewards an episode that ``LoopHarness`` has left in ``trace.info``."""

    async def score(self, trace: Any, runtime: Any = None) -> None:
        """Execute the query once for all four rewards, which then only read it."""
        outcome = Outcome(**trace.info.get(KEPT, {"question_id": self.data.question_id, "error": "no episode"}))
        [reward] = await asyncio.to_thread(environment_of(self.data).rewards_of, [outcome])
        self._found: Reward = reward
        trace.info[f"{KEPT}_reward"] = reward.to_dict()
        await super().score(trace, runtime)

    @vf.reward
    async def ex(self) -> float:
        return self._found.ex

    @vf.reward
    async def ts(self) -> float:
        return self._found.ts or 0.0

    @vf.reward
    async def format(self) -> float:
        return self._found.format

    @vf.reward
    async def cost(self) -> float:
        return self._found.cost

    @vf.metric
    async def lucky(self) -> float:
        """Right on the database and not on its copies: what a policy that hacks the reward has more and more of."""
        return float(self._found.lucky)


class QuestionsConfig(vf.TasksetConfig):
    """benchmark, split, limit: as ``load_environment`` takes them. settings: keys of our configuration."""

    benchmark: str = "packaged"
    split: str = ""
    limit: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)


class Questions(vf.Taskset[QuestionTask, QuestionsConfig]):
    """The questions of one split that may be learned from."""

    def load(self) -> Any:
        settings = json.dumps(self.config.settings, sort_keys=True)
        environment = _opened(self.config.benchmark, self.config.split, settings)
        weights = {part: vf.RewardFunctionConfig(weight=getattr(environment.config.reward, part)) for part in PARTS}
        config = self.config.task.model_copy(update={"rewards": {**weights, **self.config.task.rewards}})
        for question in list(environment.questions.values())[: self.config.limit or None]:
            data = QuestionData(
                id=question.id,
                name=question.id,
                prompt=question.text,
                question_id=question.id,
                db_id=question.db_id,
                benchmark=self.config.benchmark,
                split=self.config.split,
                settings=settings,
            )
            yield QuestionTask(data, config)


class LoopConfig(vf.HarnessConfig):
    """controller: ours by name, or one's own as FILE.py:function. context_window: tokens of the served model."""

    controller: str = "react_plus"
    context_window: int = 32_768


class LoopHarness(vf.Harness[LoopConfig]):
    """Runs an episode of a controller in this process; the database's sandbox holds what the model writes."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: QuestionData,
        **_: Any,
    ) -> vf.ProgramResult:
        """One episode. A cancelled rollout abandons it, and its thread ends."""
        environment = environment_of(data)
        window = {"context_window": self.config.context_window}
        episode = await asyncio.to_thread(environment.episode, data.question_id, self.config.controller, **window)
        broken = ""
        try:
            headers = {"Authorization": f"Bearer {secret}"}
            async with httpx2.AsyncClient(base_url=endpoint, headers=headers, timeout=None) as client:
                while episode.request is not None and not broken:
                    broken = await _answer(client, ctx.model, episode)
        finally:
            episode.close()
        assert episode.result is not None, "it has ended"
        trace.info[KEPT] = outcome_of(episode.result).to_dict()
        return vf.ProgramResult(1 if broken else 0, episode.result.sql, broken)


async def _answer(client: Any, model: str, episode: DrivenEpisode) -> str:
    """Ask the endpoint what the episode asks; why that failed, or ""."""
    request = episode.request
    assert request is not None
    try:
        given = [await _complete(client, model, request) for _ in range(request.n)]
    except (httpx2.HTTPError, ModelError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        await asyncio.to_thread(episode.fail, reason)
        return reason
    await asyncio.to_thread(episode.answer, *given)
    return ""


async def _complete(client: Any, model: str, request: Request) -> Completion:
    chat = for_chat(request.messages, True)
    body: dict[str, Any] = {"model": model, "messages": quoting(chat, request.prefill) if request.prefill else chat}
    body["max_tokens"] = request.max_new_tokens
    body |= {"stop": list(request.stop)} if request.stop else {}
    body |= {"tools": [dict(tool) for tool in request.tools]} if request.tools else {}
    reply = await client.post("/chat/completions", json=body)
    reply.raise_for_status()
    said = reply.json()
    [answer] = read_answers(said, request.stop)
    if request.prefill:
        answer = without_echo(answer, request.prefill)
    counts, text = read_counts(said), cut_at(answer.text, request.stop)[0]
    words = counts.completion if counts.completion is not None else len(text.split())
    finish: Any = "length" if answer.finish == "length" else "stop"
    return Completion(text, finish, Usage(counts.prompt or 0, counts.prompt or 0, words, 1))


def environment_of(data: QuestionData) -> Environment:
    """The environment that a task is from; opened once in this process."""
    return _opened(data.benchmark, data.split, data.settings)


@functools.lru_cache(maxsize=8)
def _opened(benchmark: str, split: str, settings: str) -> Environment:
    return load_environment(benchmark, split=split or None, config=build_config(json.loads(settings)))
