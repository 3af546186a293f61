"""Make the packaged benchmark's rows (data/databases/DB/TABLE.csv) from seeded generators.

    python scripts/build_packaged_data.py            write the files
    python scripts/build_packaged_data.py --check    exit 1 unless the committed files are what would be written
    python scripts/build_packaged_data.py --stats    the tables of data/README.md

``schema.sql`` and ``questions.json`` are written by hand; of the questions only ``difficulty`` is computed here.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from packaged_data.kit import Draw, to_csv

DATA = Path(__file__).resolve().parents[1] / "data"
SEED = "nl2sql-packaged-1"
DATABASES = ("campus_registry", "chess_league", "library_network", "rail_operator", "scale_models", "weather_network")


def database_files(db_id: str) -> dict[Path, str]:
    """Path -> text of every CSV file of one database, after loading the rows with foreign keys checked."""
    folder = DATA / "databases" / db_id
    connection = sqlite3.connect(":memory:")
    connection.executescript((folder / "schema.sql").read_text(encoding="utf-8"))
    tables = import_module(f"packaged_data.{db_id}").tables(Draw(f"{SEED}:{db_id}"))
    expected = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if list(tables) != expected:
        raise SystemExit(f"{db_id}: the generator makes {list(tables)}, schema.sql has {expected}")
    files = {}
    for name, rows in tables.items():
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]
        connection.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', rows)
        files[folder / f"{name}.csv"] = to_csv(columns, rows)
    broken = connection.execute("PRAGMA foreign_key_check").fetchall()
    connection.close()
    if broken:
        raise SystemExit(f"{db_id}: {len(broken)} broken foreign keys, the first: {broken[0]}")
    return files


def questions_text() -> str:
    """questions.json with every ``difficulty`` computed anew: a JSON list, one object per line."""
    from nl2sql.sql.hardness import hardness

    items = json.loads((DATA / "questions.json").read_text(encoding="utf-8"))
    for item in items:
        item["difficulty"] = hardness(item["query"])
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]\n"


def all_files() -> dict[Path, str]:
    files = {path: text for db_id in DATABASES for path, text in database_files(db_id).items()}
    files[DATA / "questions.json"] = questions_text()
    return files


def stale_files() -> list[str]:
    """What on disk differs from what the generators make, as paths relative to data/."""
    wanted = all_files()
    found = set((DATA / "databases").glob("*/*.csv"))
    stale = {path for path, text in wanted.items() if not path.exists() or path.read_bytes() != text.encode()}
    return sorted(str(path.relative_to(DATA)) for path in stale | (found - set(wanted)))


def skeleton(sql: str) -> str:
    """The SQL with every identifier and literal masked, so that only its structure is left."""
    import sqlglot
    from sqlglot import exp

    def masked(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Literal):
            return exp.Placeholder()
        return exp.to_identifier("x") if isinstance(node, exp.Identifier) else node

    return sqlglot.parse_one(sql, read="sqlite").transform(masked).sql("sqlite")


def stats() -> str:
    """The dataset card's tables in Markdown: questions by split, hardness and database; databases by size."""
    items = json.loads((DATA / "questions.json").read_text(encoding="utf-8"))
    levels = ("easy", "medium", "hard", "extra")
    count = Counter((item["split"], item["db_id"], item["difficulty"]) for item in items)
    lines = ["| split | database | easy | medium | hard | extra | all |", "|---|---|--:|--:|--:|--:|--:|"]
    for split in ("quick", "dev", "test"):
        for db_id in (*DATABASES, None):
            per_level = [
                sum(n for (s, d, h), n in count.items() if s == split and d == (db_id or d) and h == level)
                for level in levels
            ]
            cells = " | ".join(map(str, [*per_level, sum(per_level)]))
            lines.append(f"| {split} | {db_id or 'all'} | {cells} |")
    lines += ["", "| database | tables | foreign keys | rows | CSV bytes |", "|---|--:|--:|--:|--:|"]
    for db_id in DATABASES:
        folder = DATA / "databases" / db_id
        schema = (folder / "schema.sql").read_text(encoding="utf-8")
        files = sorted(folder.glob("*.csv"))
        rows = sum(path.read_text(encoding="utf-8").count("\n") - 1 for path in files)
        size = sum(path.stat().st_size for path in files)
        lines.append(f"| {db_id} | {len(files)} | {schema.count('REFERENCES')} | {rows} | {size} |")
    skeletons = len({skeleton(item["query"]) for item in items})
    several = sum("alt_queries" in item for item in items)
    lines += ["", f"{len(items)} questions, {skeletons} SQL skeletons, {several} questions with more than one gold."]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    parser.add_argument("--stats", action="store_true", help="print the dataset card's tables")
    arguments = parser.parse_args()
    if arguments.check:
        stale = stale_files()
        print("\n".join(f"differs: data/{name}" for name in stale) or "data/ is what the generators make")
        return 1 if stale else 0
    if arguments.stats:
        print(stats())
        return 0
    for path, text in all_files().items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
