"""What every recording reads: scripts of replies, prediction files, a loop, transcripts, weights; made once, kept."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

from behaviour.parts import WEIGHTS
from behaviour.predictions import spoiled
from behaviour.replies import FAILING, KINDS, PLUS, REACT, REFLECT, native, variant
from nl2sql.machine import cache_dir


def make_inputs(repo: Path, folder: Path, benchmarks: str | None) -> None:
    """Fill ``folder`` from the questions and fixtures of ``repo``; add what is missing, change nothing in it.

    benchmarks: the folder of benchmarks; without it there are no predictions for Spider. Prints what was made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "done").exists():
        print(f"{folder} is there already: its scripts are never made anew")
    else:
        _scripts(folder, json.loads((repo / "data" / "questions.json").read_text(encoding="utf-8")))
        shutil.copy(Path(__file__).parent / "my_loop.py", folder / "my_loop.py")
        _transcripts(repo, folder)
        (folder / "done").write_text(time.strftime("%Y-%m-%d %H:%M"), encoding="utf-8")
        print(f"{folder}: scripts, predictions, loop and transcripts")
    _weights(folder / "models" / WEIGHTS)
    if (folder / "spider300" / "train_spider.json").exists():
        return
    if not benchmarks:
        print("no predictions for Spider: NL2SQL_BENCHMARKS is not set (a folder with spider/ in it)")
        return
    _spider(folder, Path(benchmarks) / "spider")
    print(f"{folder}: predictions for Spider")


def _weights(target: Path) -> None:
    if target.is_dir():
        return
    source = cache_dir("models") / WEIGHTS
    if not source.is_dir():
        print(f"no weights: {source} is missing; nl2sql models pull {WEIGHTS}, then run this again")
        return
    half = target.with_name(f"{WEIGHTS}.half")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(source, half)
    half.rename(target)
    print(f"{target}: copied from {source}")


def _transcripts(repo: Path, folder: Path) -> None:
    """The fixtures of the reference loop's tests, and the database that they are about."""
    (folder / "react_fixtures").mkdir(exist_ok=True)
    for path in sorted((repo / "tests" / "fixtures" / "react").glob("*.yaml")):
        shutil.copy(path, folder / "react_fixtures" / path.name)
    places = (repo / "tests" / "people.py", repo / "tests" / "conftest.py")  # the second in older checkouts
    found = (
        re.search(r'SHOP = """(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
        for path in places
        if path.is_file()
    )
    shop = next((match for match in found if match), None)
    if shop is None:
        raise SystemExit(f'error: {repo}/tests/people.py has no SHOP = """...""" (the SQL of the database shop)')
    (folder / "shop.sqlite").unlink(missing_ok=True)
    connection = sqlite3.connect(folder / "shop.sqlite")
    with connection:
        connection.executescript(shop[1])
    connection.close()


def _scripts(folder: Path, items: list[dict[str, Any]]) -> None:
    """Replies for every packaged question of the split quick, and predictions for them."""
    by_db = _by_db(items)
    react, plus, reflect = (_rows(text) for text in (REACT, PLUS, REFLECT))
    plain: dict[str, Any] = {}
    natives: dict[str, Any] = {}
    predictions = []
    for i, item in enumerate(item for item in items if item["split"] == "quick"):
        gold, other = item["query"], random.Random(item["id"]).choice(by_db[item["db_id"]])

        def say(words: list[str], gold: str = gold, other: str = other) -> list[Any]:
            return [variant(word, gold, other) for word in words]

        turned = KINDS[i % len(KINDS) :] + KINDS[: i % len(KINDS)]
        ranked = [*FAILING, "gold", "star", "gold"] if i % 8 == 5 else turned
        plain[item["question"]] = {
            "react": say(react[i % len(react)]),
            "react_plus": say(plus[i % len(plus)]),
            "reflect": say([*reflect[i % len(reflect)], "gold", "gold", "gold"]),
            "candidates": say([*ranked, "gold", "badcol", "gold"]),
            "single_shot": say([turned[0], *turned[1:4]]),
            "my_loop": say([turned[2], "gold"]),
        }
        natives[item["question"]] = {"*": [native(reply) for reply in say(react[i % len(react)])]}
        sql = variant((KINDS + FAILING)[i % 20], gold, other)
        predictions.append({"id": item["id"], "sql": sql})
    _script(folder / "scripts.json", plain)
    _script(folder / "scripts_repeat.json", plain, on_exhausted="repeat")
    _script(folder / "scripts_window.json", plain, context_window=700)
    _script(folder / "scripts_window_800.json", plain, context_window=800)
    _script(folder / "scripts_loop.json", {question: _opened(kinds["my_loop"]) for question, kinds in plain.items()})
    _script(folder / "scripts_native.json", natives)
    _lines(folder / "packaged_quick.jsonl", predictions)


def _opened(replies: list[Any]) -> dict[str, list[Any]]:
    """Without SELECT: my_loop opens the turn with it, as a model's reply then continues it."""
    return {"*": [re.sub(r"^SELECT\b", "", reply) if isinstance(reply, str) else reply for reply in replies]}


def _spider(folder: Path, source: Path) -> None:
    """1,000 predictions for Spider's training questions, half of them right; 300 of them with their own benchmark."""
    if not (source / "train_spider.json").exists():
        raise SystemExit(
            f"error: {source}/train_spider.json is missing; set NL2SQL_BENCHMARKS to a folder with spider/"
        )
    items = json.loads((source / "train_spider.json").read_text(encoding="utf-8"))
    aside = json.loads((source / "splits.json").read_text(encoding="utf-8"))
    held = {*aside["holdout"], *aside["never_train"]}
    by_db, rng = _by_db(items), random.Random(20)
    numbered = [(number, item) for number, item in enumerate(items) if item["db_id"] not in held]
    chosen = sorted(rng.sample(numbered, 1000), key=lambda pair: pair[0])
    rows = [{"id": f"spider-train-{number}", "sql": spoiled(item, by_db, rng)} for number, item in chosen]
    _lines(folder / "spider_1000.jsonl", rows)
    few = [{"id": f"spider300-train-{n}", "sql": row["sql"]} for n, row in enumerate(rows[:300])]
    _lines(folder / "spider_300.jsonl", few)
    golds = [{"id": f"spider300-train-{n}", "sql": item["query"]} for n, (_, item) in enumerate(chosen[:300])]
    _lines(folder / "spider_300_gold.jsonl", golds)
    own = folder / "spider300"
    own.mkdir(exist_ok=True)
    for name in ("tables.json", "database"):
        if not (own / name).exists():
            (own / name).symlink_to((source / name).resolve())
    _json(own / "train_spider.json", [item for _, item in chosen[:300]])  # last: it says that the folder is whole


def _by_db(items: list[dict[str, Any]]) -> dict[str, list[str]]:
    golds: dict[str, list[str]] = {}
    for item in items:
        golds.setdefault(item["db_id"], []).append(item["query"])
    return golds


def _rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def _script(path: Path, replies: dict[str, Any], **settings: Any) -> None:
    _json(path, {"name": "scripted", **settings, "replies": replies})


def _json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
