"""Put the column descriptions of defog-data beside the databases of a benchmark folder, as BIRD does.

    git clone https://github.com/defog-ai/defog-data
    python scripts/defog_descriptions.py defog-data $NL2SQL_BENCHMARKS/defog_sql_eval --out runs/described/defog
    nl2sql eval --benchmark runs/described/defog -c knowledge.descriptions=true --out runs/with

The new folder has the questions that a score counts (no empty, changing or wrong golds), the databases as links, and
``database_description/TABLE.csv`` beside each.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

LEFT_OUT = ("db_empty", "db_partly_empty", "time_dependent", "gold_error")
HEAD = ["original_column_name", "column_name", "column_description", "data_format", "value_description"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="a checkout of defog-data")
    parser.add_argument("folder", type=Path, help="questions.json, databases/DB/DB.sqlite")
    parser.add_argument("--out", type=Path, required=True, help="the new folder")
    args = parser.parse_args()
    questions = json.loads((args.folder / "questions.json").read_text(encoding="utf-8"))
    kept = [each for each in questions if each["gold_rows"] and not any(each.get(flag) for flag in LEFT_OUT)]
    args.out.mkdir(parents=True)
    (args.out / "questions.json").write_text(json.dumps(kept), encoding="utf-8")
    described = 0
    for name in sorted({each["db_id"] for each in kept}):
        folder = args.out / "databases" / name
        (folder / "database_description").mkdir(parents=True)
        file = f"{name}.sqlite"
        (folder / file).hardlink_to(args.folder.resolve() / "databases" / name / file)
        said = json.loads((args.data / "defog_data" / name / f"{name}.json").read_text(encoding="utf-8"))
        for table, columns in said["table_metadata"].items():
            rows = [[each["column_name"], "", each["column_description"], "", ""] for each in columns]
            described += sum(bool(row[2]) for row in rows)
            with (folder / "database_description" / f"{table}.csv").open("w", encoding="utf-8", newline="") as target:
                csv.writer(target).writerows([HEAD, *rows])
    print(f"{args.out}: {len(kept)} of {len(questions)} questions, {described} columns described")


if __name__ == "__main__":
    main()
