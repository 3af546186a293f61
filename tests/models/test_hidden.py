"""Hidden states that LocalModel reads beside its engine: those of transformers, at the characters asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from models.tiny import CONFIGS, tiny_model, tiny_tokenizer

from nl2sql.errors import ModelError
from nl2sql.models.local import LocalModel

TEXT = "Question: Which städte are large?\nSchema:\ncity(name, size)"


@pytest.mark.parametrize("kind", CONFIGS)
def test_they_are_those_of_a_plain_forward_at_the_last_byte_of_each_character(kind: str) -> None:
    ends = [TEXT.index("ä"), TEXT.index("name") + 3, len(TEXT) - 1]
    ids = tiny_tokenizer()(TEXT, add_special_tokens=False)["input_ids"]
    at = [len(TEXT[: end + 1].encode()) - 1 for end in ends]  # one token per byte
    with torch.inference_mode():
        plain = tiny_model(kind)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    model = LocalModel(tiny_model(kind), tiny_tokenizer(), name=kind, revision="test")
    states, usage = model.hidden_states(TEXT, ends, [1, 2, 0])
    model.close()
    expected = torch.stack([plain[layer][0, at] for layer in (1, 2, 0)])
    assert states.shape == (3, 3, plain[0].shape[2])
    torch.testing.assert_close(torch.tensor(states), expected, atol=1e-3, rtol=1e-3)
    assert (usage.prompt_tokens, usage.prefill_tokens, usage.model_calls) == (len(ids), len(ids), 1)


def test_they_are_the_same_while_the_engine_answers() -> None:
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="tiny", revision="test")
    expected = model.hidden_states(TEXT, [10], [1, 2])[0]
    alone = model.generate([{"role": "user", "content": "x"}], max_new_tokens=40)[0].text
    with ThreadPoolExecutor(8) as threads:
        read = [threads.submit(model.hidden_states, TEXT, [10], [1, 2]) for _ in range(8)]
        written = [
            threads.submit(model.generate, [{"role": "user", "content": "x"}], max_new_tokens=40) for _ in range(8)
        ]
        assert all((one.result()[0] == expected).all() for one in read)
        assert {one.result()[0].text for one in written} == {alone}
    model.close()


def test_what_does_not_fit_is_said() -> None:
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="tiny", revision="test")
    with pytest.raises(ModelError, match=r"a text of 1,025 tokens; tiny takes 1,024"):
        model.hidden_states("x" * 1025, [0], [1])
    with pytest.raises(ModelError, match="tiny gives no hidden states"):
        model.hidden_states("x", [0], [9])
    model.close()
