"""The likelihood of a question, given a query that may be its answer: the other direction, which ranks candidates.

A model that writes SQL prefers short, usual queries; it leaves out what the question asks for, or adds what it does
not. Read back, such a query makes the question less likely. ``candidates.choose: question`` adds both log-probabilities
(a noisy channel [45]). The question model is local, whatever model writes the candidates: the weights of
``candidates.question_model`` with ``candidates.question_adapter``, loaded once per process.

Not covered: the schema (the query's own names are all it reads), evidence, earlier turns of a dialogue; recurrent
models, which would read the padding.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from nl2sql.agents import prompts
from nl2sql.config import CandidatesConfig
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Model, Usage
from nl2sql.models.spec import resolve_spec

ROWS = 32  # queries in a forward pass
_loading = threading.Lock()


class QuestionModel:
    """A causal LM that says how likely questions are; thread-safe, one forward pass at a time.

    model, tokenizer: loaded transformers objects, the model in eval mode on its device.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str) -> None:
        from nl2sql.models.chat import Chat

        self.name = name
        self._model, self._tokenizer = model, tokenizer
        self._chat = Chat(tokenizer, model.generation_config.eos_token_id)
        self._lock = threading.Lock()

    def logprobs(
        self, question: str, queries: Sequence[str], overrides: Mapping[str, str] | None = None
    ) -> tuple[list[float], Usage]:
        """The log-probability of the question's text after each query, and what that cost.

        overrides: texts in place of the packaged prompts. Raises ModelError where a query and the question do not fit
        into the model's window, or the model fails.
        """
        started = time.perf_counter()
        sums: list[float] = []
        tokens = 0
        with self._lock:
            asked = list(self._tokenizer(question, add_special_tokens=False)["input_ids"])
            prompted = [self._chat.prompt_ids(prompts.question_messages(query, overrides)) for query in queries]
            longest = max(map(len, prompted), default=0) + len(asked)
            window = self._model.config.get_text_config().max_position_embeddings
            if asked and longest > window:
                raise ModelError(f"a query and its question are {longest:,} tokens; {self.name} takes {window:,}")
            for at in range(0, len(prompted) if asked else 0, ROWS):
                sums += self._pass(prompted[at : at + ROWS], asked)
                tokens += sum(len(ids) + len(asked) for ids in prompted[at : at + ROWS])
        usage = Usage(tokens, tokens, model_calls=len(sums), seconds=time.perf_counter() - started)
        return sums or [0.0] * len(queries), usage

    def _pass(self, prompted: Sequence[Sequence[int]], asked: Sequence[int]) -> list[float]:
        """Left-padded rows, so that the question stands at the end of all and only its logits are computed."""
        import torch

        longest = max(map(len, prompted))
        blanks = torch.tensor([longest - len(ids) for ids in prompted])
        rows = torch.tensor([[0] * (longest - len(ids)) + [*ids, *asked] for ids in prompted])
        places = torch.arange(rows.shape[1]) - blanks[:, None]
        inputs = {"input_ids": rows, "attention_mask": (places >= 0).long(), "position_ids": places.clamp(min=0)}
        device = self._model.device
        try:
            with torch.inference_mode():
                kept = {"use_cache": False, "logits_to_keep": len(asked) + 1}
                logits = self._model(**{name: each.to(device) for name, each in inputs.items()}, **kept).logits
                likely = logits[:, -len(asked) - 1 : -1].float().log_softmax(-1)
                targets = rows[:, longest:].to(device)
                sums = likely.gather(2, targets[:, :, None]).sum((1, 2))
        except (RuntimeError, TypeError) as error:
            raise ModelError(f"the question model {self.name} failed: {str(error).splitlines()[0]}") from error
        return [float(each) for each in sums]


def question_model(settings: CandidatesConfig, model: Model) -> QuestionModel:
    """The question model of ``settings``, on the (first) device and in the dtype of ``model`` where that is local.

    Raises UsageError for a spec or an adapter that names nothing, ModelError where weights cannot be loaded.
    """
    described = model.describe()
    local = described.get("backend") == "transformers"
    device, dtype = (described["device"].split("+")[0], described["dtype"]) if local else ("auto", None)
    with _loading:  # many episodes ask at once
        return _loaded(settings.question_model, settings.question_adapter, device, dtype)


@lru_cache(maxsize=2)
def _loaded(spec: str, adapter: str, device: str, dtype: str | None) -> QuestionModel:
    from nl2sql.models.load import load_parts
    from nl2sql.models.packed import pack

    loaded = load_parts(_local(spec), device=device, dtype=dtype, adapter=adapter)
    pack(loaded.parts[0])
    return QuestionModel(*loaded.parts, name=loaded.name)


def question_model_print(settings: CandidatesConfig) -> str:
    """The question model's identity, without loading it. Raises UsageError for an unknown spec or adapter."""
    from nl2sql.models.adapters import adapter_revision, find_adapter

    source = _local(settings.question_model)
    folder = find_adapter(settings.question_adapter)
    return f"{source.value}+{adapter_revision(folder) if folder else 'none'}"


def _local(spec: str) -> Any:
    source = resolve_spec(spec)
    if source.kind in ("http", "scripted", "plugin"):
        raise UsageError(f"candidates.question_model {spec!r}: give a local model, such as smollm2-135m")
    return source
