"""An adapter as it is published: of a lower rank, or the average of several, in float16 and without local paths.

Adapters that were trained on from one another can be averaged weight by weight: the mean is often as good as the best
of them and better off the data that they were trained on [44], at the cost of one. The change that an adapter of rank
r makes to a layer is a matrix of rank r; of several, of the sum of their ranks; and the closest of a lower rank keeps
the largest singular values (Eckart and Young).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nl2sql.errors import UsageError
from nl2sql.models.adapters import CONFIG, WEIGHTS, adapter_revision, adapter_scale, adapter_tensors

RECIPE = "recipe.json"
_DOWN, _UP = ".lora_A.", ".lora_B."


def export(folder: Path, target: Path, about: dict[str, Any], rank: int | None = None) -> None:
    """Write the adapter in ``folder`` to ``target``, with ``about`` beside it as ``recipe.json``.

    Rounding to float16 changes weights by at most 0.05%. rank: the closest adapter of that rank instead.
    """
    tensors = adapter_tensors(folder)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if rank is not None and rank < config["r"]:
        for name in [name for name in tensors if _DOWN in name]:
            other = name.replace(_DOWN, _UP)
            tensors[name], tensors[other] = _closest(tensors[name], tensors[other], rank)
        config["lora_alpha"] = config["lora_alpha"] * rank / config["r"]
        config["r"] = rank
    _write(target, tensors, config, about)


def average(folders: Sequence[Path], target: Path, rank: int | None = None) -> None:
    """Write the mean of the adapters in ``folders`` to ``target``, as the closest adapter of ``rank``.

    rank: default, and at most: the sum of theirs, which loses nothing but digits. What is known of each
    (``recipe.json``) goes beside the result. Raises UsageError for fewer than two adapters, or where they change
    different layers.
    """
    if len(folders) < 2:
        raise UsageError(f"an average takes two adapters or more, not {len(folders)}")
    configs = [json.loads((folder / CONFIG).read_text(encoding="utf-8")) for folder in folders]
    found = [adapter_tensors(folder) for folder in folders]
    sizes = [{name: (t.shape[1] if _DOWN in name else t.shape[0]) for name, t in each.items()} for each in found]
    for folder, size in zip(folders[1:], sizes[1:], strict=True):
        if size != sizes[0]:
            raise UsageError(f"{folders[0]} and {folder} do not change the same layers of one model: no average")
    most = sum(config["r"] for config in configs)
    rank = most if rank is None else min(rank, most)
    shares = [adapter_scale(config, folder) / len(folders) for config, folder in zip(configs, folders, strict=True)]
    tensors = {}
    for name in [name for name in found[0] if _DOWN in name]:
        other = name.replace(_DOWN, _UP)
        down = torch.cat([each[name].float() for each in found])
        up = torch.cat([each[other].float() * share for each, share in zip(found, shares, strict=True)], dim=1)
        tensors[name], tensors[other] = _closest(down, up, rank)
    config = configs[0] | {"r": rank, "lora_alpha": rank, "use_rslora": False}
    _write(target, tensors, config, _averaged(folders, rank))


def origin(folder: Path) -> dict[str, Any]:
    """The hash of the adapter in ``folder`` and, where it is beside it, its recipe: for what is made of it."""
    file = folder / RECIPE
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return {"revision": adapter_revision(folder), "recipe": known}


def checked(recipe: Mapping[str, Any] | None) -> list[str]:
    """The evaluation sets against which all data behind an adapter was checked, that of its predecessors too.

    recipe: what ``recipe.json`` says, as ``origin`` gives it. What is not known was not checked.
    """
    if not recipe:
        return []
    before = [*recipe.get("average_of", ()), *filter(None, [recipe.get("started_from")])]
    found = [checked(part.get("recipe")) for part in before]
    if "average_of" not in recipe:
        found.append(recipe.get("data", {}).get("checked", []))
    return [name for name in found[0] if all(name in others for others in found[1:])]


def _averaged(folders: Sequence[Path], rank: int) -> dict[str, Any]:
    """What goes beside an average."""
    parts = [origin(folder) for folder in folders]
    model = next((part["recipe"]["model"] for part in parts if "model" in (part["recipe"] or {})), {"name": ""})
    return {"average_of": parts, "rank": rank, "model": model}


def _write(target: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], about: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    target.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, target / WEIGHTS)
    config = config | {"base_model_name_or_path": about["model"]["name"]}
    (target / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (target / RECIPE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _closest(down: torch.Tensor, up: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(A, B) of ``rank``, B @ A the matrix of that rank that is closest to ``up @ down``; padded where it has less."""
    left, upper = torch.linalg.qr(up.float())
    right, lower = torch.linalg.qr(down.float().T)
    u, sizes, v = torch.linalg.svd(upper @ lower.T, full_matrices=False)
    roots = sizes[:rank].sqrt()
    a, b = roots[:, None] * (right @ v[:rank].T).T, (left @ u[:, :rank]) * roots
    missing = rank - len(roots)
    return torch.nn.functional.pad(a, (0, 0, 0, missing)), torch.nn.functional.pad(b, (0, missing))
