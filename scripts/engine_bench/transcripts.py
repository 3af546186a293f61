"""Recorded model calls: what an episode asked, in token ids, and how many tokens came back.

A replay sends the recorded prompts in their order and asks for exactly as many tokens, so every variant computes the
same tokens, whatever it would have answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nl2sql import Config, evaluate
from nl2sql.config import build_config


@dataclass(frozen=True)
class Call:
    """One model call. prompt: token ids. answer: token ids, the stop string's and the end of turn included."""

    prompt: list[int]
    answer: list[int]


Episode = list[Call]


class Recorder:
    """A local model that writes down what is asked of it, per question."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.episodes: dict[str, Episode] = {}

    def for_episode(self, question: str, controller: str) -> Any:
        calls = self.episodes.setdefault(question, [])
        return _View(self.model, calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class _View:
    def __init__(self, model: Any, calls: Episode) -> None:
        self._model, self._calls = model, calls
        self._prompt_ids = model._chat.prompt_ids

    def generate(self, messages: Any, *, prefill: str = "", **options: Any) -> Any:
        found = self._model.generate(messages, prefill=prefill, **options)
        prompt = self._prompt_ids(messages, prefill)
        whole = self._prompt_ids(messages, prefill + found[0].text)
        answer = whole[len(prompt) :] if whole[: len(prompt)] == prompt else whole[len(prompt) - 1 :]
        missing = found[0].usage.completion_tokens - len(answer)  # the end of turn, the stop string
        self._calls.append(Call(prompt, (answer + [0] * max(0, missing))[: found[0].usage.completion_tokens]))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@dataclass
class Recording:
    """Episodes of one configuration of the loop, and what the run that recorded them cost."""

    name: str
    episodes: list[Episode]
    facts: dict[str, Any]

    @property
    def calls(self) -> int:
        return sum(map(len, self.episodes))

    @property
    def prompt_tokens(self) -> int:
        return sum(len(call.prompt) for episode in self.episodes for call in episode)

    @property
    def new_tokens(self) -> int:
        return sum(len(call.answer) for episode in self.episodes for call in episode)

    def unique_prompt_tokens(self) -> int:
        """Tokens of prompts that no earlier prompt or answer has put at the same place after the same tokens.

        A call's last prompt token counts always: its logits are needed.
        """
        trie: dict[int, Any] = {}
        unique = 0
        for step in range(max(map(len, self.episodes))):
            for episode in self.episodes:
                if step < len(episode):
                    node = trie
                    for token in episode[step].prompt[:-1]:
                        unique += token not in node
                        node = node.setdefault(token, {})
                    unique += 1
                    for token in [episode[step].prompt[-1], *episode[step].answer]:
                        node = node.setdefault(token, {})
        return unique


def kept(name: str, args: Any) -> Recording | None:
    """The recording in ``args.transcripts``, where it was made before."""
    if not (where := _place(name, args)).exists():
        return None
    held = json.loads(where.read_text())
    return Recording(name, [[Call(**call) for call in calls] for calls in held["episodes"]], held["facts"])


def _place(name: str, args: Any) -> Path:
    settings = (name, Path(args.model).name, args.benchmark, args.questions, args.max_new_tokens, args.dtype)
    return Path(args.transcripts) / f"{'-'.join(map(str, settings))}.json"


def record(model: Any, name: str, overrides: dict[str, Any], args: Any) -> Recording:
    """Run the loop on ``args.questions`` questions, unless that is recorded; kept in ``args.transcripts``.

    model: a ``LocalModel`` or ``LlamaCppModel``.
    """
    if (found := kept(name, args)) is not None:
        return found
    recorder, where = Recorder(model), _place(name, args)
    clock = getattr(model, "worker_seconds", lambda: (0.0, 0.0))
    before = clock()
    started = time.perf_counter()
    overrides = {**overrides, "react": {"max_new_tokens": args.max_new_tokens, **overrides.get("react", {})}}
    config: Config = build_config(overrides)
    run = evaluate(
        args.benchmark,
        recorder,
        config=config,
        split=args.split,
        limit=args.questions,
        control=False,
        out=where.with_suffix(f".{time.time_ns()}.run"),
        progress=not args.json,
    )
    busy, forward = (now - then for now, then in zip(clock(), before, strict=True))
    usage = run.report["usage"]
    facts = {"wall_s": time.perf_counter() - started, "loop_s": usage["seconds"], "busy_s": busy, "forward_s": forward}
    episodes = [calls for calls in recorder.episodes.values() if calls]
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps({"facts": facts, "episodes": [[asdict(c) for c in e] for e in episodes]}))
    return Recording(name, episodes, facts)


def truncated(episodes: Sequence[Episode], steps: int) -> list[Episode]:
    """The first ``steps`` calls of each episode."""
    return [episode[:steps] for episode in episodes]
