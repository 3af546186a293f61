"""Predictions for Spider's training questions, about half of them right, from gold statements spoiled by rule."""

from __future__ import annotations

import random
import re
from typing import Any


def spoiled(item: dict[str, Any], by_db: dict[str, list[str]], rng: random.Random) -> str:
    """The gold of ``item`` as it is, or wrong in one of the ways that predictions are."""
    gold, others = item["query"], by_db[item["db_id"]]
    table = (re.search(r"\bFROM\s+(\w+)", gold, re.IGNORECASE) or [None, "t"])[1]
    kind = rng.choice(
        ["gold"] * 5
        + [
            "lower",
            "spaces",
            "other",
            "table",
            "column",
            "where",
            "group",
            "order",
            "desc",
            "limit",
            "distinct",
            "distinct_off",
            "agg",
            "number",
            "syntax",
            "blank",
            "multi",
            "star",
            "in",
            "semicolon",
            "projection",
            "left",
            "quotes",
            "swap",
        ]
    )

    def sub(pattern: str, by: str, count: int = 1) -> str:
        return re.sub(pattern, by, gold, count=count, flags=re.IGNORECASE)

    made = {
        "gold": gold,
        "lower": re.sub(r"\b(SELECT|FROM|WHERE|JOIN|ON|AND|GROUP|BY|ORDER|AS)\b", lambda m: m[0].lower(), gold),
        "spaces": "  " + gold.replace(" ", "\n  ", 3),
        "other": rng.choice(others),
        "table": sub(r"\bFROM\s+\w+", "FROM other_table"),
        "column": sub(r"SELECT\s+(DISTINCT\s+)?", "SELECT no_such_column, "),
        "where": sub(r"\s+WHERE\s+.*?(?=\s+(?:GROUP|ORDER|INTERSECT|EXCEPT|UNION)\b|$)", ""),
        "group": sub(r"\s+GROUP BY\s+[\w.]+", ""),
        "order": sub(r"\s+ORDER BY\s+.*$", ""),
        "desc": sub(r"\bDESC\b", "ASC") if "desc" in gold.lower() else f"{gold} ORDER BY 1 DESC",
        "limit": gold + " LIMIT 2" if "limit" not in gold.lower() else sub(r"\bLIMIT\s+\d+", "LIMIT 4"),
        "distinct": sub(r"^SELECT\s+(?!DISTINCT)", "SELECT DISTINCT "),
        "distinct_off": sub(r"\bDISTINCT\s+", ""),
        "agg": sub(r"\bcount\s*\(", "max("),
        "number": re.sub(r"\b\d+\b", lambda m: str(int(m[0]) + 1), gold),
        "syntax": sub(r"\bFROM\b", "FORM"),
        "blank": "",
        "multi": gold + "; SELECT 1",
        "star": f"SELECT * FROM {table}",
        "in": f"SELECT * FROM ({gold.rstrip(';')})",
        "semicolon": gold + " ;",
        "projection": sub(r"^SELECT\s+(.*?)\s+FROM\b", r"SELECT \1, 1 FROM"),
        "left": sub(r"\bJOIN\b", "LEFT JOIN", 0),
        "quotes": gold.replace('"', "'"),
        "swap": sub(r"^SELECT\s+([\w.]+)\s*,\s*([\w.]+)\s+FROM", r"SELECT \2, \1 FROM"),
    }
    return made[kind]
