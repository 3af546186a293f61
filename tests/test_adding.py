"""The pages of docs/adding: each is one screen, and its code does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import programs
import pytest

from nl2sql.benchmarks import load_benchmark

PAGES = Path(__file__).parents[1] / "docs" / "adding"
REPLIES = [
    "Action: extract_constraints[{}]",
    'Action: look_up[{"word": "active"}]',
    "Action: generate_sql[{}]",
    " * FROM customers",
    *(f"Action: {tool}[{{}}]" for tool in ("validate_sql", "validate_constraints", "run_sql", "finish")),
]
PRINTED = {
    "tool": "['an order in the last 90 days']",
    "gate": "blocked: name the columns that the question asks for",
    "benchmark": "1 1.0",
    "engine": "1.0",
}


def code_of(page: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    return code


@pytest.mark.parametrize("page", PRINTED)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    single = ["SELECT count(*) FROM orders WHERE status = 'open'"]
    replies = {"*": single} if page == "benchmark" else {"*": REPLIES}
    script = {"on_exhausted": "repeat", "replies": replies}
    (tmp_path / "script.json").write_text(json.dumps(script), encoding="utf-8")
    done = programs.code(code_of(page), tmp_path)
    assert done.returncode == 0, done.stderr
    assert PRINTED[page] in done.stdout


def test_a_rule_of_ones_own_scores_and_names_the_metric(tmp_path: Path) -> None:
    (tmp_path / "my_rule.py").write_text(code_of("rule"), encoding="utf-8")
    benchmark = load_benchmark("packaged", split="quick")
    rows = [{"id": q.id, "sql": f"SELECT 1 FROM ({q.gold[0].rstrip(';')})"} for q in benchmark.questions]
    (tmp_path / "theirs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command = ["score", "--benchmark", "packaged", "--split", "quick", "--json"]
    options = ["--predictions", "theirs.jsonl", "--replicas", "0", "--rule", "my_rule.py:same_size"]
    done = programs.command(*command, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    assert metrics["EX[same_size]"]["value"] == 1.0 and "EX[bag]" not in metrics
    wrong = programs.command(*command, *options[:-1], "no.py:such", cwd=tmp_path)
    assert wrong.returncode == 2 and "no.py does not exist" in wrong.stderr


@pytest.mark.parametrize("page", sorted(path.stem for path in PAGES.glob("*.md")))
def test_a_page_is_one_screen(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 68 and max(map(len, text.splitlines())) <= 130
