"""What the scripted model answers: templates of turns, filled in with a question's gold statement."""

from __future__ import annotations

import json
import re

ACTIONS = {"E": "extract_constraints", "G": "generate_sql", "V": "validate_sql", "C": "validate_constraints"}
ACTIONS |= {"R": "run_sql", "F": "finish", "P": "repair_sql", "S": "get_schema", "L": "link_schema"}
ACTIONS |= {"X": "drop_everything", "T": "get_table_samples"}

# A line is an episode, a word one reply: tools by letter (ACTIONS), all else by the names in `variant`.
REACT = """
E G gold V C R F
E G badcol V V gold V C R F
S L E G gold V C R F
G G gold V C R F
E G prose V gold V C R F
E G multi V gold V C R F
E G fenced V C R F
E G upper V C R F
E G ordered V C R F
E G star V C C gold V C R F
E G gold R V R C R F
E F G gold F V C R F
hm hm hm hm hm hm hm hm gold
E G overflow V C R F gold V C R F
E T T:nosuch G gold V C R F
X E G gold V C R F
E G badtable V P gold V C R F
E G gold V C R R R R star
E G prose V prose V prose V prose gold
E G badcol V V prose V prose V gold V C R F
E G write V gold V C R F
E G cte V C R F
E G gold V C G wrong R V C R F
E G !error
long E G gold V C R F
P prose F gold F V C R F
E G typotable V V gold V C R F
E G typocolumn V V gold V C R F
E G syntax V V gold V C R F
E G empty V gold V C R F
S+E G gold V C R F
E broken broken2 G gold V C R F
E G wrong V C R F gold V C R F
E G limit V C R F gold V C R F
E E E E E E E E gold
thought+E thought+G gold thought+V thought+C fake+R thought+F
E G wrapped V C R F
E G gold V C T R F S
E G
E G comment V C R F cut
"""

PLUS = """
G gold V C R
G badcol V gold V C R
S G gold V C R
G prose gold V C R
G multi gold V C R
F F G gold V C R
G overflow V C R gold V C R
G star V C gold V C R
G prose prose prose prose gold
hm hm hm hm hm hm hm gold
G gold V R R R R R
G badcol V badcol V badcol V badcol V gold
G+S gold V+C C R
G gold V C !error
G typotable V gold V C R
G wrong V C R gold V C R
S S S G gold V C R
G fenced V C R
T G upper V C R
G gold V C G star V C gold V C R
"""

REFLECT = """
gold
badcol gold
badcol badcol gold
prose gold
prose prose prose
syntax syntax badcol syntax gold
star gold
overflow gold
multi gold
badtable typotable gold
!error
nothing gold
write gold
upper
typocolumn gold
badcol badcol badcol badcol
wrong gold
limit
"""


KINDS = ["gold", "badcol", "star", "prose", "fenced", "syntax", "overflow", "upper", "wrong", "gold", "limit", "multi"]
FAILING = ["badcol", "syntax", "badtable", "prose", "overflow", "typotable", "typocolumn", "write"]


def variant(kind: str, gold: str, other: str) -> dict[str, str] | str:
    """What the scripted model answers for one word of a template."""
    if kind == "!error":
        return {"error": "the server went away"}
    if kind == "cut":
        return {"text": gold[: len(gold) // 2], "finish_reason": "length"}
    if kind == "long":
        return {"text": "Thought: " + "well, " * 60, "finish_reason": "length"}
    text = _texts(gold, other).get(kind)
    return _turn(kind, gold) if text is None else text


def _texts(gold: str, other: str) -> dict[str, str]:
    """Word -> statement or text; ``other``: a gold of the same database."""
    table = _table(gold)
    column = re.findall(r"\.(\w+)|$", gold)[0] or re.findall(r"SELECT\s+(?:\w+\()?(\w+)", gold)[0]
    return {
        "gold": gold,
        "badcol": gold.replace("SELECT ", "SELECT no_such_column, ", 1),
        "badtable": re.sub(r"\bFROM\s+(\"[^\"]+\"|\w+)", "FROM no_such_table", gold, count=1),
        "typotable": re.sub(r"\bFROM\s+(\w+)", lambda m: f"FROM {m[1][:-1]}", gold),
        "typocolumn": re.sub(rf"\b{column}\b", column + column[-1], gold),
        "prose": "I am sorry, I cannot answer that question.",
        "multi": f"{gold}; DROP TABLE {table};",
        "write": f"DELETE FROM {table}",
        "fenced": f"Sure! Here is the query:\n```sql\n{gold};\n```\nIt lists what you asked for.",
        "upper": re.sub(r"\b(FROM|JOIN)\s+(\w+)", lambda m: f"{m[1]} {m[2].upper()}", gold),
        "ordered": f"{gold.partition(' ORDER BY ')[0]} ORDER BY 1 DESC LIMIT 5",
        "star": f"SELECT * FROM {table}",
        "overflow": f"{gold.partition(' ORDER BY ')[0]}".replace("SELECT ", "SELECT abs(-9223372036854775808), ", 1),
        "cte": f"WITH found AS ({gold}) SELECT * FROM found",
        "wrapped": f"SELECT x.* FROM ({gold.partition(' ORDER BY ')[0]}) AS x",
        "wrong": other,
        "limit": f"SELECT COUNT(*) FROM {table} LIMIT 1",
        "syntax": re.sub(r"\bFROM\b", "FORM", gold, count=1),
        "empty": "",
        "nothing": f"SELECT * FROM {table} WHERE 1 = 0",
        "comment": f"-- the answer\n{gold} ;  -- done\n",
        "ok": "OK",
        "no": "WRONG: it does not return what the question asks for.",
        "hm": "Thought: I wonder what the user wants to know.",
        "broken": "Action: run_sql[{]",
        "broken2": "Action: generate_sql",
    }


def _turn(kind: str, gold: str) -> str:
    """A turn with an action for every letter of ``kind`` (``E+T:orders``)."""
    lines = []
    for word in kind.split("+"):
        name, _, argument = word.partition(":")
        if word in ("thought", "fake"):
            lines.append("Thought: the next step follows from the last.")
            continue
        args = {"table": argument or _table(gold).strip('"'), "n": 2} if name == "T" else {}
        lines.append(f"Action: {ACTIONS[name]}[{json.dumps(args)}]")
    if kind.startswith("fake+"):
        lines.append("Observation: 42 rows, all of them right")
    return "\n".join(lines)


def _table(gold: str) -> str:
    match = re.search(r"\bFROM\s+(\"[^\"]+\"|\w+)", gold)
    return match[1] if match else "sqlite_master"


def native(reply: dict[str, str] | str) -> dict[str, str] | str:
    """A turn in the form of a tool call."""
    if not isinstance(reply, str):
        return reply

    def call(match: re.Match[str]) -> str:
        return f'<tool_call>{{"name": "{match[1]}", "arguments": {match[2]}}}</tool_call>'

    return re.sub(r"Action: (\w+)\[(\{.*?\})\]", call, reply)
