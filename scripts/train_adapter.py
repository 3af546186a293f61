"""Train an adapter on what ``build_training_data.py`` wrote; resumes where it stopped.

    python scripts/train_adapter.py --data training/spider --out training/run [--minutes 60]

Writes into --out: ``best/`` (the adapter with the lowest held-out loss, PEFT format: use it with ``--adapter``),
``checkpoint.pt``, ``log.jsonl``, and at the end, or after ``--minutes``, ``recipe.json`` and ``loss.png``. Interrupt
it at will; the same command goes on. At the end ``release/`` holds the adapter in float16, as it is published.
``--start-from`` trains an adapter further, on other data, with ``--skip-tokens`` on the part of the data that it has
not seen, or at a higher rank; ``--release-rank`` publishes the closest adapter of a lower one. ``--to-the-end``: the
held-out loss of a long training goes up while its answers still get better; nothing ends it early, and the last
weights are published.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from training.examples import Example
from training.packing import Pack, packs, row

from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.models.adapters import find_adapter
from nl2sql.models.embedded import embedded_models
from nl2sql.runs.folder import iter_jsonl

RECORDED = (
    "pack_tokens",
    "fraction",
    "tokens",
    "skip_tokens",
    "evaluate_every",
    "held_out_packs",
    "release_rank",
    "to_the_end",
)


def main() -> int:
    from training.lora import Recipe

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", required=True, type=Path, metavar="DIR")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--model", default="smollm2-135m", help="an embedded name, a folder, or a hub id")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pack-tokens", type=int, default=1024, help="tokens of a pack at most")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the groups; default: all")
    parser.add_argument("--tokens", type=int, help="end after about so many tokens of the data; default: all of it")
    parser.add_argument("--start-from", default="none", metavar="ADAPTER", help="a packaged name or a folder")
    parser.add_argument("--skip-tokens", type=int, default=0, help="leave out about so many tokens at the beginning")
    parser.add_argument("--evaluate-every", type=int, default=50, help="updates between two held-out losses")
    parser.add_argument("--held-out-packs", type=int, default=24)
    parser.add_argument(
        "--to-the-end", action="store_true", help="no early stop; publish the last weights, not the best"
    )
    parser.add_argument("--release-rank", type=int, metavar="N", help="publish the closest adapter of this rank")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command resumes")
    for field in fields(Recipe):
        kind = {"int": int, "float": float}.get(str(field.type), str)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    options = parser.parse_args()
    recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    try:
        return run(options, recipe)
    except Nl2SqlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command resumes from the last checkpoint", file=sys.stderr)
        return 130


def run(options: argparse.Namespace, recipe: Any) -> int:
    import torch

    for name in ("release_rank", "evaluate_every", "held_out_packs", "pack_tokens", "tokens"):
        if (given := getattr(options, name)) is not None and given < 1:
            raise UsageError(f"--{name.replace('_', '-')} {given}: give 1 or more")
    if options.out.is_file():
        raise UsageError(f"--out {options.out} is a file; expected a folder")
    if not 0 < options.fraction <= 1:
        raise UsageError(f"--fraction {options.fraction}: give a share above 0 and at most 1")
    known = embedded_models().get(options.model)
    start = find_adapter(options.start_from, known.adapter if known else "none")
    from training import lora, publish

    from nl2sql.models.chat import Chat
    from nl2sql.models.load import load_parts
    from nl2sql.models.spec import resolve_spec

    loaded = load_parts(resolve_spec(options.model), device=options.device, dtype=recipe.dtype)
    model, tokenizer = loaded.parts
    chat = Chat(tokenizer, model.generation_config.eos_token_id)

    def tokenize(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def packed(groups: list[list[Example]]) -> list[Pack]:
        rows = [[row(e, chat.prompt_ids, tokenize, tokenizer.eos_token_id) for e in group] for group in groups]
        lengths = [len(each.ids) for group in rows for each in group]
        if longer := sum(length > options.pack_tokens for length in lengths):
            print(f"{longer} of {len(lengths)} examples are longer than --pack-tokens {options.pack_tokens}: left out")
        return packs(rows, options.pack_tokens)

    rounds, held_out_groups = read_groups(options.data, options.fraction)
    card = read_card(options.data)
    held_out = packed(held_out_groups)[: options.held_out_packs]
    plan: list[list[Pack]] = []
    for number, groups in enumerate(rounds):
        plan += lora.updates(packed(groups), replace(recipe, seed=recipe.seed + number))
    sizes = list(itertools.accumulate(sum(len(pack.ids) for pack in batch) for batch in plan))
    last = options.skip_tokens + options.tokens if options.tokens else math.inf
    plan = [batch for batch, size in zip(plan, sizes, strict=True) if options.skip_tokens < size <= last]
    if not sizes or not held_out:
        raise UsageError(
            f"{options.data} holds no training groups, or none held out: build it anew, with a larger --limit or from "
            "questions over two databases at least"
        )
    if not plan:
        raise UsageError(f"--skip-tokens and --tokens leave nothing of the {sizes[-1]:,} tokens of {options.data}")
    options.out.mkdir(parents=True, exist_ok=True)
    started_from = publish.origin(start) if start else None
    about = {
        "started_from": started_from,
        "recipe": asdict(recipe),
        "data": card,
        "model": {"name": loaded.name, "revision": loaded.revision},
        "updates": len(plan),
        "tokens": sum(len(pack.ids) for batch in plan for pack in batch),
        "examples": sum(len(pack.spans) for batch in plan for pack in batch),
        "options": {name: getattr(options, name) for name in RECORDED},
        "torch": torch.__version__,
    }
    print(json.dumps({k: about[k] for k in ("updates", "tokens", "examples")}))
    trained = lora.add_adapter(model, recipe, start)
    with (options.out / "log.jsonl").open("a", encoding="utf-8") as file:

        def log(record: dict[str, Any]) -> None:
            file.write(json.dumps(record) + "\n")
            file.flush()

        outcome = lora.train(
            trained,
            plan,
            held_out,
            recipe,
            options.out,
            origin=f"{loaded.revision} {started_from['revision'] if started_from else 'none'}",
            evaluate_every=options.evaluate_every,
            minutes=options.minutes,
            patience=math.inf if options.to_the_end else lora.PATIENCE,
            log=log,
        )
    about["outcome"] = outcome
    (options.out / "recipe.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    kept = options.out / ("last" if options.to_the_end else "best")
    if options.to_the_end and outcome["finished"]:
        trained.save_pretrained(kept)
    if kept.is_dir():  # there is no best before the first evaluation after an update
        publish.export(kept, options.out / "release", about, options.release_rank)
        if not options.to_the_end and outcome["best"] >= outcome["before"]:
            print("on the held-out examples it is no better than what it started from", file=sys.stderr)
    plot(list(iter_jsonl(options.out / "log.jsonl")), options.out / "loss.png")
    print(json.dumps({**outcome, "adapter": str(options.out / "release") if kept.is_dir() else None}))
    return 0


def read_groups(folder: Path, fraction: float) -> tuple[list[list[list[Example]]], list[list[Example]]]:
    """(groups of every round, held-out groups)."""
    path = folder / "groups.jsonl"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; make it with scripts/build_training_data.py --out {folder}")
    rounds: dict[int, list[list[Example]]] = {}
    held_out: list[list[Example]] = []
    with path.open(encoding="utf-8") as file:  # str.splitlines would also break at U+0085 and U+2028
        for line in file:
            group = json.loads(line)
            examples = [Example.from_dict(data) for data in group["examples"]]
            (held_out if group["part"] == "held_out" else rounds.setdefault(group["round"], [])).append(examples)
    return [share_of(rounds[n], fraction) for n in sorted(rounds)], held_out


def read_card(folder: Path) -> Any:
    """What the data was made of, for the adapter's recipe."""
    path = folder / "card.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = f"{path} cannot be read; it belongs to groups.jsonl: copy it along, or build the data anew"
        raise UsageError(told) from None


def share_of(groups: list[list[Example]], fraction: float) -> list[list[Example]]:
    """``fraction`` of the groups, evenly drawn, the first among them."""
    return [group for at, group in enumerate(groups) if math.ceil((at + 1) * fraction) > math.ceil(at * fraction)]


def plot(records: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, label in (("loss", "training"), ("held_out", "held out")):
        points = [(record["step"], record[name]) for record in records if name in record]
        axes.plot(*zip(*points, strict=True), label=label)
    axes.set(xlabel="update", ylabel="loss per learned token")
    axes.legend()
    figure.savefig(file, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    sys.exit(main())
