"""The report of a run scores everything that it compares in one go."""

from pathlib import Path
from typing import Any

import pytest

from nl2sql import summary
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import build_config
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runner import evaluate


def test_run_control_and_refused_candidates_share_one_scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    whole = summary.score_many

    def counted(benchmark: Any, questions: Any, files: Any, **settings: Any) -> Any:
        found = whole(benchmark, questions, files, **settings)
        calls.append({"files": list(files), "executed": next(iter(found.values())).executed})
        return found

    monkeypatch.setattr(summary, "score_many", counted)
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    question = next(q for q in load_benchmark("packaged", split="quick").questions if "SELECT" in q.gold[0])
    wrong = "SELECT 1 AS one FROM nowhere"
    acts = ["Action: extract_constraints[{}]", "Action: generate_sql[{}]", wrong, "Action: validate_sql[{}]"]
    good = [f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")]
    mended = [*acts, "Action: repair_sql[{}]", question.gold[0], *good]
    model = ScriptedModel({question.text: {"react": mended}, "*": {"single_shot": [wrong], "react": ["no"] * 99}})
    config = build_config({"eval": {"replicas": 0}})
    done = evaluate("packaged", model, split="quick", config=config, out=tmp_path / "r", progress=False)
    (call,) = calls
    assert {"run", "run, raw", "control", "control, raw", "refused, 1"} <= set(call["files"])
    assert done.report["flips"]["validate_sql"] == {"refused": 1, "right_to_wrong": 0, "wrong_to_right": 1}
    assert done.report["control_flips"]["guardrails"] == {"right_to_wrong": 0, "wrong_to_right": 0}
    questions = len(done.report["items"])
    assert call["executed"] <= 3 * questions  # each gold once, the control's one answer, the run's
