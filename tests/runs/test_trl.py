"""The environment in TRL's form: its reward functions, and five steps of GRPO on the CPU with the real library."""

from __future__ import annotations

import re

import pytest

from nl2sql.config import build_config
from nl2sql.environment import Environment, load_environment, reward_functions, reward_weights, rollout_function
from nl2sql.errors import UsageError

ID = "campus_registry-001"
RIGHT, LUCKY = " COUNT(*) FROM students WHERE status = 'on leave'", " MIN(22) FROM students"


@pytest.fixture(scope="module")
def campus() -> Environment:
    return load_environment("packaged", limit=1)


def test_a_reward_function_is_a_part_of_the_reward_by_its_name(campus: Environment) -> None:
    functions = {function.__name__: function for function in reward_functions(campus)}
    assert list(functions) == ["ex", "ts", "format", "cost"] and reward_weights(campus) == [0.2, 0.7, 0.1, 0.05]
    columns = {"prompts": ["", ""], "completions": [RIGHT, LUCKY], "question_id": [ID, ID], "trainer_state": None}
    assert [functions[name](**columns) for name in ("ex", "ts", "format")] == [[1, 1], [1, 0], [1, 1]]


def test_messages_are_taken_as_texts_and_tokens_are_counted(campus: Environment) -> None:
    cost = reward_functions(campus)[3]
    said = [[{"role": "assistant", "content": f"```sql\nSELECT{RIGHT}\n```"}]] * 2
    few, many = cost(completions=said, question_id=[ID, ID], completion_ids=[[1] * 10, [1] * 500])
    assert few is not None and many is not None and many < few < 0
    assert reward_functions(campus)[0](completions=said, question_id=[ID, ID]) == [1, 1]


def test_a_batch_is_scored_once_for_all_functions(campus: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    whole = Environment.rewards
    monkeypatch.setattr(Environment, "rewards", lambda self, *batch: batches.append(batch) or whole(self, *batch))
    for function in reward_functions(campus):
        function(completions=[RIGHT], question_id=[ID])
    assert len(batches) == 1


def test_what_the_loop_earned_is_handed_on(campus: Environment) -> None:
    given = {"loop_ex": [0.0], "loop_ts": [0.0], "loop_format": [0.5], "loop_cost": [-0.5]}
    columns = {"completions": [RIGHT], "question_id": [ID], **given}
    assert [function(**columns) for function in reward_functions(campus)] == [[0], [0], [0.5], [-0.5]]


def test_a_prompt_of_another_dataset_is_refused(campus: Environment) -> None:
    from types import SimpleNamespace

    from models.tiny import tiny_model, tiny_tokenizer

    trainer = SimpleNamespace(processing_class=tiny_tokenizer(), model=tiny_model())
    with pytest.raises(UsageError, match=r"train on environment.dataset\(...\)"):
        rollout_function(campus)(["How many?"], trainer)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["single", "loop"])
def test_steps_of_grpo_raise_the_reward_of_answers_known_by_heart(form: str, capsys: pytest.CaptureFixture) -> None:
    """What is held: prompts, rewards and gradients are joined the right way round. It says nothing of learning SQL."""
    pytest.importorskip("trl", reason="pip install 'nl2sql-harness[rl]'")
    from train_environment import main

    assert main(["--form", form, "--steps", "5", "--samples", "4" if form == "loop" else "8"]) == 0
    before, after = re.findall(r"^reward \w+: total ([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    assert 0 < float(before) < float(after) - 0.1


def test_weights_come_from_the_configuration() -> None:
    environment = load_environment("packaged", limit=1, config=build_config({"reward": {"ex": 0.0, "ts": 1.0}}))
    assert reward_weights(environment) == [0.0, 1.0, 0.1, 0.05]


@pytest.mark.parametrize(
    ("text", "ended", "finish", "given"),
    [
        ("Action: get", False, "length", "Action: get"),  # cut by the room that the trainer leaves
        ("Action: get", True, "stop", "Action: get"),
        ("Action: a\nObservation: b", False, "stop", "Action: a\n"),
    ],
)
def test_a_cut_completion_is_told_from_an_ended_one(text: str, ended: bool, finish: str, given: str) -> None:
    from models.tiny import tiny_tokenizer

    from nl2sql.models.chat import Chat, Request
    from nl2sql.runs.rollouts import _completed

    tokenizer = tiny_tokenizer()
    written = tokenizer(text, add_special_tokens=False)["input_ids"]
    request = Request([{"role": "user", "content": "?"}], max_new_tokens=256, stop=("Observation:",))
    _, completion = _completed(Chat(tokenizer, None), request, [1], written, ended)
    assert (completion.finish_reason, completion.text) == (finish, given)
