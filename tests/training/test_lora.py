"""Training: packs lose what single rows lose, a few steps help, a stopped run goes on as if it had not stopped."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import programs
import pytest
import torch
import train_adapter
from models.tiny import saved_tiny, tiny_model
from safetensors.torch import load_file, save_file
from training import lora
from training.packing import IGNORED, Row, packs
from training.publish import average, checked, export

from nl2sql.errors import ModelError, UsageError
from nl2sql.models import load_model
from nl2sql.models.adapters import CONFIG, WEIGHTS, find_adapter, merge_adapter, packaged_adapters
from nl2sql.models.embedded import embedded_models

pytest.importorskip("peft", reason="pip install 'nl2sql-harness[train]'")

SCRIPTS = Path(__file__).parents[2] / "scripts"
RECIPE = lora.Recipe(rank=4, alpha=8, rate=0.01, batch_tokens=300, epochs=1, dtype="float32")


def rows(count: int, shared: int = 20, seed: int = 0) -> list[Row]:
    rng = random.Random(seed)
    head = [rng.randrange(3, 259) for _ in range(shared)]
    made = []
    for n in range(count):
        ids = [*head, 3 + n, *(rng.randrange(3, 40) for _ in range(rng.randrange(4, 30)))]
        answer = len(ids) - 3
        made.append(Row(tuple(ids), tuple(IGNORED if i < answer else token for i, token in enumerate(ids))))
    return made


def test_packs_hold_every_row_once_behind_what_they_share():
    made = rows(7)
    found = packs([made], max_tokens=120)
    assert len(found) > 1
    assert all(len(pack.ids) <= 120 for pack in found)
    again = [(*pack.ids[: pack.shared], *pack.ids[start:end]) for pack in found for start, end in pack.spans]
    assert again == [row.ids for row in made]
    assert sum(pack.learned for pack in found) == 7 * 3
    assert found[0].shared == 20
    for pack in found:
        for start, end in pack.spans:
            assert pack.positions[start:end] == list(range(pack.shared, pack.shared + end - start))


def test_a_pack_takes_as_many_rows_as_fit():
    """Against the definition: what a prefix of the rows begins with, and the most of them that fit behind it."""

    def size(some: list[Row]) -> int:
        limit = min(next((i for i, t in enumerate(r.labels) if t != IGNORED), len(r.ids)) for r in some)
        ends = (i for i in range(limit) if len({r.ids[i] for r in some}) > 1)
        shared = next(ends, limit) if len(some) > 1 else 0
        return shared + sum(len(r.ids) - shared for r in some)

    for seed in range(60):
        left = rows(3, shared=seed % 25, seed=seed) + rows(4, shared=seed % 11, seed=seed)
        random.Random(seed).shuffle(left)
        for pack in packs([left], 60):
            count = len(pack.spans)
            assert len(pack.ids) == size(left[:count]) <= 60
            assert count == len(left) or size(left[: count + 1]) > 60
            left = left[count:]
        assert not left


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_pack_loses_what_its_rows_lose_one_by_one(kind):
    made = rows(5)
    model = tiny_model(kind)
    with torch.no_grad():
        plain = 0.0
        for row in made:
            logits = model(input_ids=torch.tensor([row.ids])).logits[0]
            targets = torch.tensor(row.labels)
            plain += float(torch.nn.functional.cross_entropy(logits[:-1], targets[1:], reduction="sum"))
        packed = sum(float(lora.pack_loss(model, [pack])) for pack in packs([made], 1000))
    assert packed == pytest.approx(plain, rel=1e-4)


def test_packs_in_one_row_lose_what_they_lose_one_by_one(monkeypatch):
    """As a GPU computes them: packs with and without a shared part, and a rest that nothing sees. No gradients:
    FlexAttention has none on a CPU."""
    monkeypatch.setattr(lora, "ROOM", 512)
    found = packs([rows(3), rows(1, seed=1), rows(5, shared=90, seed=2)], 200)
    assert {pack.shared for pack in found} == {0, 20, 90}
    model = tiny_model()
    with torch.no_grad():
        one_by_one = sum(float(lora.pack_loss(model, [pack])) for pack in found)
        assert float(lora.pack_loss(model, found)) == pytest.approx(one_by_one, rel=1e-5)


def test_packs_are_computed_together_as_far_as_there_is_room():
    found = packs([rows(3, seed=n) for n in range(6)], 200)
    longest = max(len(pack.ids) for pack in found)
    for room in (2 * longest, longest, 0):
        made = list(lora.portions(found, room))
        assert [pack for portion in made for pack in portion] == found
        sizes = [sum(len(pack.ids) for pack in portion) for portion in made]
        assert all(size <= room or len(portion) == 1 for size, portion in zip(sizes, made, strict=True))
        following = [len(portion[0].ids) for portion in made[1:]]
        assert all(size + next_one > room for size, next_one in zip(sizes, following, strict=False))
    assert len(list(lora.portions(found, 2 * longest))) < len(list(lora.portions(found, 0))) == len(found)


def test_every_update_has_about_the_tokens_that_were_asked_for():
    found = packs([rows(3, seed=n) for n in range(12)], 200)
    plan = lora.updates(found, RECIPE)
    assert sorted(id(p) for batch in plan for p in batch) == sorted(id(p) for p in found)
    assert plan == lora.updates(found, RECIPE)
    assert all(sum(len(p.ids) for p in batch[:-1]) < RECIPE.batch_tokens for batch in plan)
    assert lora.rate_at(0, 100, RECIPE) < lora.rate_at(5, 100, RECIPE) == pytest.approx(RECIPE.rate)
    assert lora.rate_at(99, 100, RECIPE) == pytest.approx(RECIPE.rate / 10, rel=0.02)


def trained(folder: Path, stops: tuple[int, ...] = (), steps: int = 8) -> tuple[torch.nn.Module, dict]:
    """A training run, which was stopped and resumed after the updates in ``stops``."""
    found = packs([rows(3, seed=n) for n in range(steps)], 400)
    plan = [[pack] for pack in found][:steps]
    for stop in (*stops, steps):
        model = lora.add_adapter(tiny_model(), RECIPE)
        done = []

        def log(record, stop=stop, done=done):
            done.append(record)
            if record["step"] == stop and stop < steps and "held_out" in record:
                raise KeyboardInterrupt

        try:
            outcome = lora.train(model, plan, found[:2], RECIPE, folder, evaluate_every=2, log=log)
        except KeyboardInterrupt:
            if stop == steps:
                raise
    return model, outcome


def test_a_stopped_training_goes_on_as_if_it_had_not_stopped(tmp_path):
    straight, outcome = trained(tmp_path / "straight")
    resumed, again = trained(tmp_path / "resumed", stops=(4,))
    assert outcome["finished"] and again["finished"]
    assert again["best"] == pytest.approx(outcome["best"], rel=1e-5)
    for (name, weight), (_, other) in zip(straight.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.allclose(weight, other, atol=1e-5), name


@pytest.mark.parametrize(("call", "kept"), [(4, 1), (6, 2)], ids=["update", "evaluation"])
def test_an_interrupt_loses_only_what_it_fell_into(tmp_path, monkeypatch, call, kept):
    """Two held-out packs before the first update, two updates, two held-out packs."""
    straight, whole_outcome = trained(tmp_path / "straight")
    whole, calls = lora.pack_loss, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == call:
            raise KeyboardInterrupt
        return whole(*given)

    monkeypatch.setattr(lora, "pack_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped")
    assert torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)["step"] == kept
    resumed, outcome = trained(tmp_path / "stopped")
    assert outcome["finished"] and outcome["best"] == pytest.approx(whole_outcome["best"], rel=1e-5)
    for (name, weight), (_, other) in zip(straight.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.allclose(weight, other, atol=1e-5), name


def test_a_folder_of_another_training_is_refused(tmp_path):
    """Another recipe, as many updates of other data, other weights to begin with."""
    trained(tmp_path)
    found = packs([rows(3, seed=n) for n in range(8)], 400)
    plan, others = [[pack] for pack in found], [[pack] for pack in reversed(found)]
    cases = [(plan, replace(RECIPE, rate=0.02), ""), (others, RECIPE, ""), (plan, RECIPE, "other weights")]
    for steps, recipe, origin in cases:
        with pytest.raises(UsageError, match="another recipe, data or model"):
            lora.train(lora.add_adapter(tiny_model(), recipe), steps, found[:2], recipe, tmp_path, origin=origin)


@pytest.mark.parametrize(("losses", "steps"), [([5, 6, 7, 8, 4, 3, 2, 1], 8), ([5, 4, 3, 2, 3, 3, 3, 9], 7)])
def test_a_training_stops_early_in_its_second_half_only(tmp_path, monkeypatch, losses, steps):
    """A high rate may raise the loss for a while; ``best`` is the lowest after an update."""
    found = packs([rows(3, seed=n) for n in range(8)], 400)
    given = iter([0.5, *losses])
    monkeypatch.setattr(lora, "held_out_loss", lambda model, packs: next(given))
    model = lora.add_adapter(tiny_model(), RECIPE)
    outcome = lora.train(model, [[pack] for pack in found], found[:2], RECIPE, tmp_path, evaluate_every=1)
    best = min(losses[:steps])
    assert outcome == {"step": steps, "steps": 8, "before": 0.5, "best": best, "finished": True}


def test_a_training_without_patience_s_end_goes_to_the_last_update(tmp_path, monkeypatch):
    found = packs([rows(3, seed=n) for n in range(8)], 400)
    given = iter([0.5, 5, 4, 3, 2, 3, 3, 3, 9])
    monkeypatch.setattr(lora, "held_out_loss", lambda model, packs: next(given))
    plan, model = [[pack] for pack in found], lora.add_adapter(tiny_model(), RECIPE)
    outcome = lora.train(model, plan, found[:2], RECIPE, tmp_path, evaluate_every=1, patience=float("inf"))
    assert outcome == {"step": 8, "steps": 8, "before": 0.5, "best": 2, "finished": True}


def test_a_merged_adapter_computes_what_the_adapted_model_does(tmp_path):
    trained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(tiny_model(), tmp_path / "best")
    merged = tiny_model()
    revision = merge_adapter(merged, tmp_path / "best")
    assert revision.startswith("sha256:")
    with torch.no_grad():
        expected, plain = adapted(input_ids=ids).logits, tiny_model()(input_ids=ids).logits
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-4)
        assert not torch.allclose(plain, expected, atol=1e-2)


@pytest.mark.parametrize("layer", ["attn.c_proj", "attn.c_attn"])
def test_a_layer_that_is_stored_transposed_gets_its_change_transposed(tmp_path, layer):
    """GPT-2's ``attn.c_proj`` is square, so no shape shows which way round its weights are."""
    from peft import LoraConfig, PeftModel, get_peft_model

    config = LoraConfig(r=4, target_modules=[layer], fan_in_fan_out=True, init_lora_weights=False)
    get_peft_model(tiny_model("gpt2"), config).save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    merged = tiny_model("gpt2")
    merge_adapter(merged, tmp_path)
    with torch.no_grad():
        expected = PeftModel.from_pretrained(tiny_model("gpt2"), tmp_path)(input_ids=ids).logits
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-3)
        assert not torch.allclose(tiny_model("gpt2")(input_ids=ids).logits, expected, atol=1e-1)


def test_a_training_goes_on_with_another_s_adapter(tmp_path):
    trained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    merged = tiny_model()
    merge_adapter(merged, tmp_path / "best")
    started = lora.add_adapter(tiny_model(), RECIPE, tmp_path / "best")
    with torch.no_grad():
        assert torch.allclose(started(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-4)
    assert all(p.dtype == torch.float32 for p in started.parameters() if p.requires_grad)
    assert any(p.requires_grad for p in started.parameters())
    for other in (lora.Recipe(rank=8, alpha=8), lora.Recipe(rank=2, alpha=4)):
        with pytest.raises(UsageError, match="needs --rank 4 --alpha 8"):
            lora.add_adapter(tiny_model(), other, tmp_path / "best")


def test_an_adapter_may_grow_in_rank_and_is_published_in_fewer(tmp_path):
    """Widened it computes the same; cut to the rank that it needs too; cut further it is the closest there is."""
    trained(tmp_path)
    grown = lora.add_adapter(tiny_model(), replace(RECIPE, rank=6, alpha=12), tmp_path / "best")
    grown.save_pretrained(tmp_path / "grown")
    for name, rank in (("again", 4), ("small", 2)):
        export(tmp_path / "grown", tmp_path / name, {"model": {"name": "tiny"}}, rank)
        assert json.loads((tmp_path / name / CONFIG).read_text())["r"] == rank
    found = {}
    for name in ("best", "grown", "again", "small"):
        model = tiny_model()
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        merge_adapter(model, tmp_path / name)
        found[name] = {key: tensor - before[key] for key, tensor in model.state_dict().items()}
    changed = [key for key, tensor in found["best"].items() if tensor.abs().max() > 1e-4]
    assert changed
    for key in changed:
        assert torch.allclose(found["grown"][key], found["best"][key], atol=1e-6)
        assert torch.allclose(found["again"][key], found["best"][key], rtol=1e-2, atol=1e-4)
        u, sizes, v = torch.linalg.svd(found["best"][key])
        closest = (u[:, :2] * sizes[:2]) @ v[:2]
        assert torch.allclose(found["small"][key], closest, rtol=1e-2, atol=1e-3)


def test_the_mean_of_two_adapters_changes_weights_by_the_mean_of_their_changes(tmp_path):
    """Their ranks and scales differ; what is known of both stays with the mean, and the mean of one is refused."""
    trained(tmp_path)
    export(tmp_path / "best", tmp_path / "one", {"model": {"name": "tiny"}, "data": {"checked": ["a", "b"]}})
    other = lora.add_adapter(tiny_model(), replace(RECIPE, rank=2, alpha=16))
    for name, weight in other.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02, generator=torch.Generator().manual_seed(len(name)))
    other.save_pretrained(tmp_path / "other")
    average([tmp_path / "one", tmp_path / "other"], tmp_path / "mean")
    average([tmp_path / "one", tmp_path / "other"], tmp_path / "small", rank=3)
    found = {}
    for name in ("one", "other", "mean"):
        model = tiny_model()
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        merge_adapter(model, tmp_path / name)
        found[name] = {key: tensor - before[key] for key, tensor in model.state_dict().items()}
    assert any(tensor.abs().max() > 1e-3 for tensor in found["mean"].values())
    for key, tensor in found["mean"].items():
        assert torch.allclose(tensor, (found["one"][key] + found["other"][key]) / 2, rtol=1e-2, atol=1e-4), key
    known = json.loads((tmp_path / "mean" / "recipe.json").read_text())
    assert [len(known["average_of"]), known["rank"], known["model"]["name"]] == [2, 6, "tiny"]
    assert checked(known) == []  # nothing is known of the other's data
    assert json.loads((tmp_path / "small" / CONFIG).read_text())["r"] == 3
    with pytest.raises(UsageError, match="two adapters or more"):
        average([tmp_path / "one"], tmp_path / "none")
    tensors = load_file(tmp_path / "other" / WEIGHTS)
    save_file(
        {name: tensor for name, tensor in tensors.items() if "layers.0." not in name}, tmp_path / "other" / WEIGHTS
    )
    with pytest.raises(UsageError, match="same layers"):
        average([tmp_path / "one", tmp_path / "other"], tmp_path / "none")
    options = (tmp_path / "one", tmp_path / "missing", "--out", tmp_path / "none")
    wrong = programs.script("average_adapters.py", *options)
    assert wrong.returncode == 2 and "does not exist" in wrong.stderr and not (tmp_path / "none").exists()


def test_what_was_checked_holds_for_all_data_behind_an_adapter():
    first, second = {"data": {"checked": ["a", "b"]}}, {"data": {"checked": ["b", "c"]}}
    later = second | {"started_from": {"recipe": first}}
    assert [checked(recipe) for recipe in (first, later, {}, None)] == [["a", "b"], ["b"], [], []]
    assert checked(second | {"started_from": {"recipe": None}}) == []  # of an adapter of which nothing is known
    assert checked({"average_of": [{"recipe": first}, {"recipe": later}]}) == ["b"]


def test_a_published_adapter_is_half_as_large_and_computes_nearly_the_same(tmp_path):
    trained(tmp_path)
    export(tmp_path / "best", tmp_path / "release", {"model": {"name": "tiny"}})
    sizes = [(tmp_path / part / WEIGHTS).stat().st_size for part in ("best", "release")]
    assert sizes[1] < 0.6 * sizes[0]
    assert str(tmp_path) not in (tmp_path / "release" / CONFIG).read_text()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    logits = []
    for part in ("best", "release"):
        model = tiny_model()
        merge_adapter(model, tmp_path / part)
        with torch.no_grad():
            logits.append(model(input_ids=ids).logits)
    assert torch.allclose(*logits, atol=5e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "only LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
    ],
)
def test_other_kinds_of_adapter_are_refused_by_name(tmp_path, change, said):
    lora.add_adapter(tiny_model(), RECIPE).save_pretrained(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=said):
        merge_adapter(tiny_model(), tmp_path)


def test_an_adapter_of_another_model_or_no_adapter_is_refused(tmp_path):
    lora.add_adapter(tiny_model(), RECIPE).save_pretrained(tmp_path / "a")
    with pytest.raises(ModelError, match="another model"):
        merge_adapter(tiny_model("gpt2"), tmp_path / "a")
    assert find_adapter("none") is None
    for spec, said in ((tmp_path / "missing", "does not exist"), (tmp_path, "no adapter_config.json")):
        with pytest.raises(UsageError, match=said):
            find_adapter(str(spec))
    with pytest.raises(UsageError, match="local model"):
        load_model("http://localhost:1/v1#m", adapter=str(tmp_path / "a"))


def test_auto_is_the_models_own_adapter_and_packaged_ones_go_by_name():
    assert find_adapter("auto") is None
    for name, folder in packaged_adapters().items():
        assert find_adapter(name) == find_adapter("auto", default=name) == folder
        assert checked(json.loads((folder / "recipe.json").read_text()))  # against what was it checked?
    files = [file for folder in packaged_adapters().values() for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 60_000_000
    for model in embedded_models().values():
        assert model.adapter in ("none", *packaged_adapters())


def test_the_scripts_build_train_resume_and_load(tmp_path):
    """20 updates on packaged data, stopped once: the loss falls, and ``--adapter`` loads what came of it."""
    base, data, out = tmp_path / "base", tmp_path / "data", tmp_path / "out"
    saved_tiny(base)
    options = ["--benchmark", "packaged", "--split", "dev", "--limit", "15", "--rounds", "1", "--act", "0"]
    refused = programs.script("build_training_data.py", *options, "--out", data, "--check", "packaged:test")
    assert refused.returncode == 2  # the same databases: nothing may be learned from them
    assert "nothing is left" in refused.stderr
    built = programs.script("build_training_data.py", *options, "--out", data)
    assert built.returncode == 0, built.stderr
    assert json.loads((data / "card.json").read_text())["examples"]["train write"] > 5
    train = ["--data", data, "--out", out, "--model", base, "--device", "cpu", "--dtype", "float32", "--rank", "4"]
    train += ["--alpha", "8", "--rate", "0.01", "--pack-tokens", "4000", "--batch-tokens", "1", "--evaluate-every", "4"]
    train += ["--epochs", "5", "--held-out-packs", "2"]
    stopped = programs.script("train_adapter.py", *train, "--minutes", "0.0001")
    assert stopped.returncode == 0, stopped.stderr
    finished = programs.script("train_adapter.py", *train)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1])["step"] >= 20
    losses = [r["loss"] for r in map(json.loads, (out / "log.jsonl").read_text().splitlines()) if "loss" in r]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert (out / "loss.png").stat().st_size > 1000
    best = load_file(out / "best" / WEIGHTS)
    save_file({name: 2 * weight for name, weight in best.items()}, out / "best" / WEIGHTS)
    ended = programs.script("train_adapter.py", *train, "--to-the-end")  # nothing is left to train
    assert ended.returncode == 0, ended.stderr
    last = torch.load(out / "checkpoint.pt", weights_only=True)["adapter"]
    published = load_file(out / "release" / WEIGHTS)
    assert all(torch.equal(published[name], weight.half()) for name, weight in last.items())
    model = load_model(str(base), adapter=str(out / "best"))
    plain = load_model(str(base))
    ask = [{"role": "user", "content": "SELECT"}]
    assert model.name == "base+best"
    assert model.revision != plain.revision
    assert not torch.allclose(model.next_logits(ask)[0], plain.next_logits(ask)[0], atol=1e-3)


def test_training_without_data_says_how_to_make_it(tmp_path):
    train = ["train_adapter.py", "--data", tmp_path, "--out", tmp_path / "out", "--model"]
    found = programs.script(*train, "nowhere")
    assert found.returncode == 2
    assert "unknown model" in found.stderr
    base = tmp_path / "base"
    saved_tiny(base)
    found = programs.script(*train, base)
    assert found.returncode == 2
    assert "build_training_data.py" in found.stderr
    for option, said in (("--evaluate-every", "give 1 or more"), ("--fraction", "a share above 0")):
        found = programs.script(*train, base, option, "0")
        assert (found.returncode, found.stderr.count("\n")) == (2, 1) and said in found.stderr
    (tmp_path / "file").touch()
    for script, *rest in (
        ["train_adapter.py", "--data", tmp_path, "--model", base],
        ["build_training_data.py", "--benchmark", "packaged"],
    ):
        found = programs.script(script, *rest, "--out", tmp_path / "file")
        assert (found.returncode, found.stderr.count("\n")) == (2, 1) and "is a file" in found.stderr


def test_training_data_are_read_line_by_line_and_in_the_share_asked_for(tmp_path):
    """U+0085 and U+2028 end lines for ``str.splitlines``, not in this file."""
    asked = {"role": "user", "content": "caf\x85 \u2028"}
    example = {
        "messages": [asked],
        "pieces": [["SELECT 1", True]],
        "id": "1",
        "db_id": "shop",
        "task": "write",
        "closed": True,
    }
    group = {"part": "train", "round": 0, "examples": [example]}
    (tmp_path / "groups.jsonl").write_text((json.dumps(group, ensure_ascii=False) + "\n") * 100, encoding="utf-8")
    for fraction in (1.0, 0.9, 0.6, 0.5, 0.25, 0.01):
        [groups], held_out = train_adapter.read_groups(tmp_path, fraction)
        assert (len(groups), held_out) == (100 * fraction, [])
    assert groups[0][0].messages[0]["content"] == asked["content"]
    with pytest.raises(UsageError, match=r"card\.json cannot be read.*copy it along"):
        train_adapter.read_card(tmp_path)
