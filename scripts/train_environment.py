"""A few steps of GRPO on the packaged benchmark with TRL, on the CPU, and the reward before and after.

    python scripts/train_environment.py                          one turn: the prompt of single_shot
    python scripts/train_environment.py --form loop              episodes of react_plus, of two steps each

The model is a Llama of 180,000 random weights with tokens of its own. Random weights write no SQL, so it first learns
two answers of each question by heart, the gold and a query that runs and is wrong; the reward then has something to
choose between. That it chooses shows that prompts, rewards and gradients are joined the right way round, and nothing
about learning SQL: the questions before and after are the same.

Needs ``pip install 'nl2sql-harness[rl]'``. See docs/environment.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

from nl2sql.config import build_config
from nl2sql.environment import Environment, load_environment, reward_functions, reward_weights, rollout_function
from nl2sql.models.chat import Chat

WRONG = "SELECT 1 FROM {table};"
CONTROLLERS = {"single": "single_shot", "loop": "react_plus"}
Call = tuple[list[int], list[int]]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny(environment: Environment, seed: int) -> tuple[Any, Any]:
    """A Llama with random weights, and a tokenizer whose tokens are pieces of the environment's prompts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces = trainers.BpeTrainer(
        vocab_size=800, special_tokens=special, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    core.train_from_iterator((turn["content"] for row in environment.rows() for turn in row["prompt"]), pieces)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=special[2], pad_token=special[0])
    tokenizer.chat_template, tokenizer.padding_side = TEMPLATE, "left"
    torch.manual_seed(seed)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=8192, **size, **ends)
    ), tokenizer


def answered(environment: Environment, tokenizer: Any, form: str, question_id: str, sql: str) -> list[Call]:
    """An episode whose answer is ``sql``, as the tokens of each prompt and of what is written after it."""
    chat, calls = Chat(tokenizer, None), []
    with environment.episode(question_id, CONTROLLERS[form], tokenizer=tokenizer) as episode:
        while asked := episode.request:
            text = sql.removeprefix("SELECT") if asked.prefill == "SELECT" else "Action: generate_sql[{}]\n"
            written = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            calls.append((chat.prompt_ids(asked.messages, asked.prefill), written))
            episode.answer(text)
    return calls


def learn_by_heart(model: Any, tokenizer: Any, environment: Environment, form: str, steps: int) -> None:
    """Two answers of each question, a right and a wrong one, as likely as each other."""
    import torch

    calls: list[Call] = []
    for question in environment.questions.values():
        table = environment.benchmark.database(question.db_id).schema().tables[0].name
        for sql in (f"{question.gold[0]};", WRONG.format(table=table)):
            asked = answered(environment, tokenizer, form, question.id, sql)
            calls += [call for call in asked if call not in calls]  # the loop's first is the same for both
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        for prompt, written in calls:
            labels = torch.tensor([[-100] * len(prompt) + written])
            model(input_ids=torch.tensor([prompt + written]), labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def trainer_of(environment: Environment, model: Any, tokenizer: Any, form: str, options: argparse.Namespace) -> Any:
    """TRL's trainer over the environment."""
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="nl2sql-grpo-"),
        max_steps=options.steps,
        per_device_train_batch_size=options.samples,
        num_generations=options.samples,
        learning_rate=options.rate,
        lr_scheduler_type="constant",
        max_completion_length=32,
        reward_weights=reward_weights(environment),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        seed=options.seed,
    )
    rollout = rollout_function(environment, CONTROLLERS[form], seed=options.seed) if form == "loop" else None
    return GRPOTrainer(
        model,
        reward_funcs=reward_functions(environment),
        args=settings,
        train_dataset=environment.dataset(tokenizer),
        processing_class=tokenizer,
        rollout_func=rollout,
    )


def mean_parts(environment: Environment, trainer: Any, form: str, each: int) -> dict[str, float]:
    """The mean of the reward and its parts over ``each`` samples of every question."""
    rows = [row for row in environment.rows(trainer.processing_class) for _ in range(each)]
    found = rollout_function(environment, CONTROLLERS[form])([row["prompt"] for row in rows], trainer)
    return {name: sum(found[f"loop_{name}"]) / len(rows) for name in ("total", "ex", "ts", "format", "cost")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--form", choices=("single", "loop"), default="single", help="one turn, or the whole loop")
    parser.add_argument("--steps", type=int, default=10, help="of GRPO")
    parser.add_argument("--questions", type=int, default=1, help="of the packaged development split")
    parser.add_argument("--samples", type=int, default=8, help="completions or episodes per question")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate")
    parser.add_argument("--by-heart", type=int, default=60, help="steps of learning the two answers; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        import trl  # noqa: F401
    except ModuleNotFoundError:
        print("error: TRL is not installed: pip install 'nl2sql-harness[rl]'", file=sys.stderr)
        return 2
    import torch

    torch.set_num_threads(1)  # so small a model loses more by sharing the work than it gains
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # that rollout_func is experimental
    warnings.simplefilter("ignore", FutureWarning)
    config = build_config({"react": {"max_steps": 2, "max_new_tokens": 32}, "single_shot": {"max_new_tokens": 32}})
    environment = load_environment("packaged", limit=options.questions, config=config)
    model, tokenizer = tiny(environment, options.seed)
    learn_by_heart(model, tokenizer, environment, options.form, options.by_heart)
    trainer = trainer_of(environment, model, tokenizer, options.form, options)
    for when in ("before", "after"):
        if when == "after":
            trainer.train()
        parts = mean_parts(environment, trainer, options.form, 16)
        print(f"reward {when}: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
