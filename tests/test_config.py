"""What a configuration refuses, and how the refusal reads."""

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
        "candidates.weights.vote=.inf",
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


def test_numbers_switches_and_folders_are_taken_as_before(tmp_path) -> None:
    config = load_config(overrides=["execution.timeout_s=1e6", "react.repair=no", "react.temperature=0.01", "seed=3"])
    assert (config.execution.timeout_s, config.react.repair, config.seed) == (1e6, False, 3)
    assert build_config({"eval": {"replicas": tmp_path}}).eval.replicas == str(tmp_path)
    assert build_config({"eval": {"replicas": " 4 "}}).eval.replicas == 4
