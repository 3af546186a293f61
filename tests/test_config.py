"""What a configuration refuses, and how the refusal reads."""

import re

import pytest

from nl2sql.config import build_config, load_config
from nl2sql.errors import UsageError


@pytest.mark.parametrize(
    "override",
    [
        "execution.timeout_s=1e7",
        "execution.timeout_s=.inf",
        "eval.timeout_s=.nan",
        "eval.timeout_s=1e12",
        "repair.search_s=1e300",
        "reward.wait_s=1e12",
        "react.temperature=.inf",
        "react.temperature=1e-320",
        "candidates.temperature=0",
        "candidates.vote_weight=.inf",
        "candidates.n=yes",
        "react.max_steps=true",
        "react.top_p=on",
        "eval.replicas=true",
        "eval.replicas=",
        "eval.replicas='  '",
        "seed=no",
    ],
)
def test_a_number_that_nothing_can_be_done_with_is_refused_by_its_key(override: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_config(overrides=[override])
    assert str(refused.value).startswith(f"config {override.partition('=')[0]}=")


@pytest.mark.parametrize(
    ("override", "why"),
    [("react={a: 1, a: 2}", "'a' is given twice"), ("react.max_steps=[1", "expected ',' or ']'")],
)
def test_an_override_that_is_not_yaml_is_told_why(override: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"is not YAML: {re.escape(why)}"):
        load_config(overrides=[override])


def test_numbers_switches_and_folders_are_taken_as_before(tmp_path) -> None:
    config = load_config(overrides=["execution.timeout_s=1e6", "react.repair=no", "react.temperature=0.01", "seed=3"])
    assert (config.execution.timeout_s, config.react.repair, config.seed) == (1e6, False, 3)
    assert build_config({"eval": {"replicas": tmp_path}}).eval.replicas == str(tmp_path)
    assert build_config({"eval": {"replicas": " 4 "}}).eval.replicas == 4


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "react:\n  max_steps: 4\nseed: 1\nreact:\n  keep_order: true\n", "'react' is given twice, again in"),
        ("a.yaml", "react:\n  max_steps: 4\n  max_steps: 5\n", "'max_steps' is given twice, again in line 3"),
        ("a.json", '{"seed": 1, "seed": 2}', "'seed' is given twice"),
        ("a.yaml", "react:\n  max_steps: 4\n   keep_order: true\n", "not allowed here in line 3"),
        ("a.json", '{"seed": }', "line 1 column 10"),
    ],
)
def test_a_file_in_which_something_would_be_lost_names_the_place(name: str, text: str, says: str, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"{name} cannot be read") as refused:
        load_config([tmp_path / name])
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_files_as_editors_save_them_are_read(tmp_path) -> None:
    (tmp_path / "tabs.json").write_text('{\n\t"react": {\n\t\t"max_steps": 4\n\t}\n}\n')
    (tmp_path / "marked.yaml").write_text("seed: 7\n", encoding="utf-8-sig")
    config = load_config([tmp_path / "tabs.json", tmp_path / "marked.yaml"])
    assert (config.react.max_steps, config.seed) == (4, 7)


def test_a_file_or_folder_of_one_s_own_means_the_same_from_any_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "few_shot.pool": "examples.jsonl",
        "repair.corpus": "fixes.db",
        "repair.milvus": "vectors.db",
    }
    config = load_config(overrides=[f"{key}={value}" for key, value in given.items()])
    assert config.few_shot.pool == str(tmp_path / "examples.jsonl")
    assert config.repair.corpus == str(tmp_path / "fixes.db") and config.repair.milvus == str(tmp_path / "vectors.db")
    names = ["few_shot.pool=packaged:dev", "repair.milvus=http://box:19530"]
    kept = load_config(overrides=names)
    assert (kept.few_shot.pool, kept.repair.milvus) == ("packaged:dev", "http://box:19530")
