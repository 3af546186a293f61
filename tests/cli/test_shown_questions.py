"""Every question that a page or a help text asks is answered right as shipped, or is shown as a failure."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path

import programs
import pytest

from nl2sql.cli.ask import ask
from nl2sql.cli.chat import chat
from nl2sql.databases.engines import open_database
from nl2sql.eval.rules import results_match

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GOLDS = {  # question -> the rows that are right
    "How many customers are there?": "SELECT count(*) FROM customers",
    "How many customers are on hold?": "SELECT count(*) FROM customers WHERE status = 'on hold'",
    "How many people are older than 40?": "SELECT count(*) FROM people WHERE age > 40",
}
FAILURES = {  # shown with what is said about it: (question, controller) -> the page
    ("How many customers are on hold?", "single_shot"): "docs/suspicions.md",
}
ELSEWHERE = r"--model (\w+/|http)|--controller count_all"  # no server is there; tests/test_plugins.py has that package
QUERIES = "[{question: 'How many customers are there?', sql: SELECT COUNT(*) FROM customers}]"
PEOPLE = "name,age,city\nAda,36,Oslo\nBen,41,Bern\nCai,58,Rome\nDee,29,Oslo\n"


def shown() -> dict[tuple[str, ...], str]:
    """The arguments of each ``nl2sql ask`` that is shown with a question -> the first page that shows it."""
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    texts |= {f"--help of {f.__name__}": inspect.getdoc(f) or "" for f in (ask, chat)}
    commands: dict[tuple[str, ...], str] = {}
    for page, text in texts.items():
        for piped, rest in re.findall(r'^\s*(?:\$ )?(?:echo ("[^"]+") \| )?nl2sql ask (.+)$', text, re.MULTILINE):
            words = shlex.split(f"{piped} {rest}", comments=True)
            if "..." not in words[0] and not re.search(ELSEWHERE, rest):
                commands.setdefault(tuple(words), page)
    return commands


def option(words: tuple[str, ...], name: str, default: str = "") -> str:
    return words[words.index(name) + 1] if name in words else default


def test_the_questions_that_are_shown_are_known() -> None:
    commands = shown()
    assert len(commands) >= 8
    unknown = {words[0]: page for words, page in commands.items() if words[0] not in GOLDS}
    assert not unknown, "give each its gold here, or ask one of those that are known"


@pytest.mark.model
@pytest.mark.parametrize("words", shown(), ids=lambda words: " ".join(words)[:100])
def test_a_question_that_is_shown_is_answered_right(words: tuple[str, ...], tmp_path: Path, shop: Path) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE, encoding="utf-8")
    (tmp_path / "shop_queries.yaml").write_text(QUERIES, encoding="utf-8")
    if shop.parent != tmp_path:
        (tmp_path / "shop.sqlite").write_bytes(shop.read_bytes())
    page = shown()[words]
    if "my_loop.py:my_loop" in words:
        code = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert code is not None
        (tmp_path / "my_loop.py").write_text(code[1], encoding="utf-8")
    done = programs.command(
        "ask", *(word for word in words if word not in ("--trace", "--json")), "--json", cwd=tmp_path
    )
    answer = json.loads(done.stdout)
    database = open_database(db if (db := option(words, "--db")).startswith("packaged:") else str(tmp_path / db))
    with database:
        gold, given = database.run(GOLDS[words[0]]), database.run(answer["sql"])
    right = results_match(gold, given, ordered=False)
    if (words[0], option(words, "--controller", "best")) in FAILURES:
        text = (ROOT / page).read_text(encoding="utf-8")
        suspected = [f"-- suspicious, {item['check']}: {item['text']}" for item in answer["flags"]["suspicions"]]
        assert not right and suspected and all(line in text for line in [answer["sql"], *suspected])
    else:
        assert right, answer["sql"]


@pytest.mark.model
def test_the_code_of_the_readme_prints_what_stands_below_it(tmp_path: Path) -> None:
    code, printed = (re.search(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("python", "text"))
    assert code is not None and printed is not None
    as_asked = code[1].replace('load_model("qwen2.5-coder-1.5b")', 'load_model("qwen2.5-coder-1.5b", batch_size=8)')
    assert as_asked != code[1] and programs.code(as_asked, tmp_path).stdout == printed[1]


@pytest.mark.model
def test_ask_gives_the_best_answer_and_how_sure_it_is(tmp_path: Path, shop: Path) -> None:
    asked = ["ask", "How many orders were shipped?", "--db", str(shop), "--json"]
    done = programs.command(*asked, cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["controller"] == "best" and answer["rows"] == [[3]]
    assert 0.5 < answer["flags"]["confidence"] < 1
    refused = programs.command(*asked, "--min-confidence", "1", cwd=tmp_path)
    answer = json.loads(refused.stdout)
    assert refused.returncode == 1 and (answer["sql"], answer["finish"]) == ("", "abstained")
    assert answer["error"].startswith("abstained: confidence 0.") and "SELECT" in answer["error"]
