"""Low-rank adapters [36] for a local causal language model: packed examples, loss at learned tokens only.

A step is one optimizer update over about ``batch_tokens`` tokens of packs. The logits are computed where something
is learned, not at every token. Training resumes from ``checkpoint.pt``; the adapter is written in PEFT's format.
Not covered: several devices.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nl2sql.errors import UsageError
from nl2sql.models.adapters import CONFIG, adapter_scale, adapter_tensors
from training.packed_attention import ATTENTION, Flattened, flattened
from training.packing import IGNORED, Pack

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PATIENCE = 3  # evaluations
ROOM = 16384  # tokens computed at once on a GPU
_COUNTED = ("step", "evaluated_at", "before", "best", "worse")


@dataclass(frozen=True)
class Recipe:
    """rank, alpha: of the adapter. rate: peak learning rate. warmup: share of all steps; then a cosine to a tenth.

    batch_tokens: tokens of an update. epochs: passes over the packs. dtype: of the frozen model.
    """

    rank: int = 32
    alpha: int = 64
    dropout: float = 0.0
    rate: float = 5e-4
    warmup: float = 0.05
    batch_tokens: int = 6000
    epochs: int = 2
    seed: int = 0
    dtype: str = "bfloat16"


def add_adapter(model: Any, recipe: Recipe, start: Path | None = None) -> Any:
    """The PEFT model around ``model``, adapters in float32: fresh ones, or those in folder ``start`` to go on with.

    Where ``start`` has a lower rank, directions that change nothing yet are added to it. Raises UsageError without
    peft, or where ``start`` has a higher rank, or another alpha for its rank, than the recipe.
    """
    try:
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    except ImportError:
        raise UsageError("training needs peft: pip install -c constraints.txt 'nl2sql-harness[train]'") from None
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=list(TARGETS),
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    if start is not None:
        set_peft_model_state_dict(adapted, _widened(start, adapted, recipe))
    return adapted


def _widened(start: Path, adapted: Any, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The weights of ``start`` at the recipe's rank: A's new rows as they are in ``adapted``, B's new columns zero."""
    from peft import get_peft_model_state_dict

    kept = json.loads((start / CONFIG).read_text(encoding="utf-8"))
    rank, scale = kept["r"], adapter_scale(kept, start)
    if rank > recipe.rank or not math.isclose(scale, recipe.alpha / recipe.rank):
        needed = f"--rank {rank} --alpha {scale * rank:g}"
        raise UsageError(f"adapter {start} needs {needed}, or more of both in the same ratio")
    weights = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(adapted).items()}
    known = adapter_tensors(start)
    if set(known) != set(weights):
        raise UsageError(f"adapter {start} changes other layers than {', '.join(TARGETS)}: train a fresh one")
    for name, tensor in known.items():
        part = weights[name][:rank] if "lora_A" in name else weights[name][:, :rank]
        part.copy_(tensor)
    return weights


def pack_loss(model: Any, packs: Sequence[Pack]) -> torch.Tensor:
    """Summed cross entropy at the learned tokens of ``packs``. ``model``: a causal LM of transformers, or PEFT's.

    One pack is computed as it is, several in one row of ROOM tokens.
    """
    device = next(model.parameters()).device
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if inner.config._attn_implementation != ATTENTION:
        inner.set_attn_implementation(ATTENTION)
    shape: Pack | Flattened = packs[0]
    if len(packs) > 1 or device.type != "cpu":
        shape = flattened(packs, device, max(ROOM, sum(len(pack.ids) for pack in packs)))
        ids, positions = shape.ids, shape.positions
    else:
        ids, positions = (torch.tensor([each], device=device) for each in (packs[0].ids, packs[0].positions))
    output = inner.model(input_ids=ids, position_ids=positions, use_cache=False, pack=shape)
    before: list[int] = []
    targets: list[int] = []
    start = 0
    for pack in packs:
        indices, learned = predicted(pack)
        before += [start + index for index in indices]
        targets += learned
        start += len(pack.ids)
    logits = inner.lm_head(output.last_hidden_state[0][torch.tensor(before, device=device)]).float()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(targets, device=device), reduction="sum")


def portions(packs: Sequence[Pack], room: int) -> Iterator[list[Pack]]:
    """``packs`` in their order, those together that have at most ``room`` tokens; a longer one is alone."""
    portion: list[Pack] = []
    for pack in packs:
        if portion and sum(len(each.ids) for each in portion) + len(pack.ids) > room:
            yield portion
            portion = []
        portion.append(pack)
    if portion:
        yield portion


def _room(model: Any) -> int:
    """Tokens computed at once; on a CPU packs are computed one by one."""
    return 0 if next(model.parameters()).device.type == "cpu" else ROOM


def predicted(pack: Pack) -> tuple[list[int], list[int]]:
    """(index of the token before, learned token), for every learned token."""
    before, targets = [], []
    for start, end in pack.spans:
        for i in range(start, end):
            if pack.labels[i] != IGNORED:
                before.append(i - 1 if i > start else pack.shared - 1)
                targets.append(pack.labels[i])
    return before, targets


def updates(found: Sequence[Pack], recipe: Recipe) -> list[list[Pack]]:
    """The packs of every update, all epochs; the same for the same recipe, which is what resuming rests on."""
    rng = random.Random(recipe.seed)
    plan: list[list[Pack]] = []
    for _ in range(recipe.epochs):
        order = list(found)
        rng.shuffle(order)
        size = 0
        plan.append([])
        for pack in order:
            if size >= recipe.batch_tokens:
                plan.append([])
                size = 0
            plan[-1].append(pack)
            size += len(pack.ids)
    return plan


def rate_at(step: int, steps: int, recipe: Recipe) -> float:
    """Learning rate of update ``step`` (from 0) of ``steps``."""
    warmup = max(1, round(steps * recipe.warmup))
    if step < warmup:
        return recipe.rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return recipe.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def held_out_loss(model: Any, found: Sequence[Pack]) -> float:
    """Mean loss per learned token."""
    model.eval()
    with _autocast(model):
        total = sum(float(pack_loss(model, packs)) for packs in portions(found, _room(model)))
    return total / max(1, sum(pack.learned for pack in found))


def train(
    model: Any,
    plan: Sequence[Sequence[Pack]],
    held_out: Sequence[Pack],
    recipe: Recipe,
    folder: Path,
    *,
    origin: str = "",
    evaluate_every: int = 50,
    minutes: float | None = None,
    patience: float = PATIENCE,
    log: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train the adapter of ``model`` (from ``add_adapter``) through ``plan``; resumes where ``folder`` stopped.

    Before the first update and after every ``evaluate_every``: the held-out loss, a checkpoint, and the adapter if the
    loss is the best of those after an update (``folder/best``). Early stop: ``patience`` evaluations in a row without a
    better one, in the second half; before it the rate is high, and a loss that goes up may come down again. An
    interrupt leaves a checkpoint of the updates that are done. ``minutes``: stop after so many, to be resumed.
    ``origin``: names the weights that are trained. ``log`` gets a record per update and evaluation. Returns ``{"step",
    "steps", "before", "best", "finished"}``; before and best are held-out losses. Raises UsageError where ``folder``
    holds the checkpoint of another recipe, plan or origin.
    """
    from tqdm.auto import tqdm

    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.rate, weight_decay=0.0, betas=(0.9, 0.99))
    state = _Progress(folder, model, optimizer, recipe, plan, origin, patience)
    began = time.monotonic()
    note = log or (lambda record: None)
    with tqdm(total=len(plan), initial=state.step, desc="training", unit="update") as bar:
        try:
            while True:
                if state.owes_evaluation(evaluate_every):
                    found = held_out_loss(model, held_out)
                    note({"step": state.step, "held_out": found})
                    state.evaluated(found)
                if state.finished or (minutes is not None and time.monotonic() - began > minutes * 60):
                    break
                loss, tokens, seconds = _update(model, weights, optimizer, plan[state.step], state, recipe)
                bar.update()
                bar.set_postfix(loss=f"{loss:.3f}", tokens_s=f"{tokens / seconds:.0f}")
                note({"step": state.step, "loss": loss, "tokens": tokens, "seconds": seconds})
        except KeyboardInterrupt:
            if state.whole:
                state.save()
            raise
    state.save()
    best = None if math.isinf(state.best) else state.best  # None: no evaluation after an update yet
    outcome = {"step": state.step, "steps": len(plan), "before": state.before, "best": best}
    return outcome | {"finished": state.finished}


def _update(
    model: Any, weights: Any, optimizer: Any, batch: Sequence[Pack], state: _Progress, recipe: Recipe
) -> tuple[float, int, float]:
    """(mean loss per learned token, tokens, seconds) of one update."""
    started = time.monotonic()
    model.train()
    learned = max(1, sum(pack.learned for pack in batch))
    total = 0.0
    for packs in portions(batch, _room(model)):
        with _autocast(model):
            loss = pack_loss(model, packs)
        (loss / learned).backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate_at(state.step, state.steps, recipe)
    state.whole = False
    optimizer.step()
    state.step += 1
    state.whole = True
    optimizer.zero_grad(set_to_none=True)
    return total / learned, sum(len(pack.ids) for pack in batch), time.monotonic() - started


def _autocast(model: Any) -> Any:
    parameter = next(model.parameters())
    half = parameter.dtype in (torch.bfloat16, torch.float16)
    return torch.autocast(parameter.device.type, dtype=torch.bfloat16, enabled=half)


class _Progress:
    """Where the training stands; on disk after every evaluation."""

    def __init__(
        self,
        folder: Path,
        model: Any,
        optimizer: Any,
        recipe: Recipe,
        plan: Sequence[Sequence[Pack]],
        origin: str,
        patience: float,
    ) -> None:
        self.patience = patience
        self.folder, self.model, self.optimizer, self.steps = folder, model, optimizer, len(plan)
        self.identity = {"recipe": asdict(recipe), "plan": _fingerprint(plan), "origin": origin}
        self.step, self.evaluated_at = 0, -1
        self.before, self.best, self.worse = math.inf, math.inf, 0  # before: the held-out loss at step 0
        self.whole = True  # False while the optimizer changes the weights
        folder.mkdir(parents=True, exist_ok=True)
        if self.file.is_file():
            self._resume()

    @property
    def file(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def finished(self) -> bool:
        return self.step >= self.steps or self.worse >= self.patience

    def _resume(self) -> None:
        from peft import set_peft_model_state_dict

        saved = torch.load(self.file, weights_only=True)
        if saved.get("identity") != self.identity:
            raise UsageError(
                f"{self.folder} holds a training of another recipe, data or model; give another --out, or remove it"
            )
        set_peft_model_state_dict(self.model, saved["adapter"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for name in _COUNTED:
            setattr(self, name, saved[name])

    def owes_evaluation(self, every: int) -> bool:
        return self.step > self.evaluated_at and (self.step % every == 0 or self.step == self.steps)

    def evaluated(self, loss: float) -> None:
        if self.step == 0:
            self.before = loss
        elif loss < self.best:
            self.model.save_pretrained(self.folder / "best")
            self.best, self.worse = loss, 0
        elif 2 * self.step > self.steps:
            self.worse += 1
        self.evaluated_at = self.step
        self.save()

    def save(self) -> None:
        from peft import get_peft_model_state_dict

        saved = {
            "identity": self.identity,
            **{name: getattr(self, name) for name in _COUNTED},
            "adapter": get_peft_model_state_dict(self.model),
            "optimizer": self.optimizer.state_dict(),
        }
        temporary = self.file.with_suffix(".tmp")
        torch.save(saved, temporary)
        temporary.replace(self.file)


def _fingerprint(plan: Sequence[Sequence[Pack]]) -> str:
    """A hash of every token that is seen, in order."""
    digest = hashlib.sha256()
    for batch in plan:
        for pack in batch:
            digest.update(array("q", pack.ids).tobytes())
    return digest.hexdigest()
