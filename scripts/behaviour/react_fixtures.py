"""Every scripted transcript of the reference loop's tests, run over their own small database; JSON lines.

A program of its own, run as ``python react_fixtures.py INPUTS`` with the recorded checkout on PYTHONPATH: it uses
public names of nl2sql only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

import nl2sql


def main(inputs: Path) -> None:
    """Print an episode per transcript of ``inputs``."""
    with nl2sql.SqliteDatabase(inputs / "shop.sqlite") as database:
        for path in sorted((inputs / "react_fixtures").glob("*.yaml")):
            case = yaml.safe_load(path.read_text(encoding="utf-8"))
            model = nl2sql.ScriptedModel(case["replies"])
            question = case.get("question", "How many orders were shipped?")
            config = nl2sql.Config.model_validate(case.get("config", {}))
            episode = nl2sql.react_sql(question, database, model, config)
            print(json.dumps({"id": path.stem, **plain(vars(episode))}, ensure_ascii=True))


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it; an object becomes its attributes."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return plain(dict(vars(value))) if hasattr(value, "__dict__") else str(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
