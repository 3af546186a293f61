"""How relevant every table and column is to a question, read off the model's own hidden states [17].

The model reads one text, the question first and the schema behind it:

    Question: How many orders were shipped?
    Schema:
    customers(customer_id, name)
    orders(order_id, shipped)

A table is read at its closing parenthesis, where the model has seen its columns, and a column at its last character.
A small head, fitted by ``scripts/fit_linking.py`` on the tables and columns that golds use, turns the hidden states of
a layer into probabilities, in two steps: each name by itself, then each beside the others. A schema of more than
``LONGEST`` characters is read in several texts.

Not covered: another model than the one that the head was fitted for; values of cells that the question does not show.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from nl2sql.agents.context.linking import column_scores, joinable_tables, rank_tables
from nl2sql.config import Config
from nl2sql.databases.schema import Schema, Table
from nl2sql.errors import UsageError
from nl2sql.interfaces import Model, Usage
from nl2sql.sql.uses import names_used

WEIGHTS_FILE = Path(__file__).with_name("relevance.npz")
LONGEST = 6_000  # characters of the schema in one text
WEIGHTS = ("tables", "columns", "tables_beside", "columns_beside")
LOWEST = (-8.0, -8.0)  # log-odds of what is not there
LEAST = 1e-4  # no name is held for less relevant, and none for more than one minus this

Scores = tuple[Any, Any]  # float arrays [tables] and [columns]
ColumnName = tuple[str, str]  # its table's name and its own


@dataclass(frozen=True)
class Relevance:
    """The probability, from 0 to 1, that the answer uses a table or a column; in the schema's order."""

    tables: Mapping[str, float]
    columns: Mapping[ColumnName, float]

    def ranking(self) -> list[tuple[str, float]]:
        """Every table with its probability, the most relevant first; ties keep the schema's order."""
        return sorted(self.tables.items(), key=lambda named: -named[1])

    def log_probability(self, sql: str, schema: Schema) -> float:
        """The log-probability of using just the tables and columns that ``sql`` uses, each by itself."""
        used = names_used(sql, schema)
        chosen = [(p, name in used.tables) for name, p in self.tables.items()]
        chosen += [(p, name in used.columns) for name, p in self.columns.items()]
        return sum(math.log(p if is_used else 1 - p) for p, is_used in chosen)


@dataclass(frozen=True)
class Head:
    """What the hidden states are weighed with.

    weights: ``tables`` and ``columns`` of the first step, ``tables_beside`` and ``columns_beside`` of the second; each
    float32 ``[features + 1]``, the constant last. model, revision: whose hidden states these are. print: of the file.
    """

    model: str
    revision: str
    layers: tuple[int, ...]
    weights: Mapping[str, Any]
    print: str


def relevance(nlq: str, schema: Schema, model: Model, head: Head) -> tuple[Relevance, Usage]:
    """How relevant each name of ``schema`` is to the question ``nlq``, and what reading it cost.

    Raises ModelError where the model fails, or a table is too long for its window.
    """
    states, usage = read_items(nlq, schema, model, head.layers)
    lexical = lexical_scores(nlq, schema)
    tables, columns = log_odds(schema, lexical, features(lexical, states), head.weights)
    names = [table.name for table in schema.tables]
    named = [(table.name, column.name) for table in schema.tables for column in table.columns]
    by_table = dict(zip(names, _probabilities(tables), strict=True))
    return Relevance(by_table, dict(zip(named, _probabilities(columns), strict=True))), usage


def log_odds(schema: Schema, lexical: Scores, seen: tuple[Any, Any], weights: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of tables and of columns, from their ``features``: each by itself first, then beside the others."""
    first, second = _weighed(seen[0], weights["tables"]), _weighed(seen[1], weights["columns"])
    tables, columns = beside_one_another(schema, lexical, first, second, weights["tables_beside"])
    return _weighed(tables, weights["tables_beside"]), _weighed(columns, weights["columns_beside"])


def read_items(nlq: str, schema: Schema, model: Model, layers: Sequence[int]) -> tuple[Any, Usage]:
    """Hidden states float32 ``[tables + columns, layers * width]``: of the tables, then of all columns."""
    import numpy as np

    read: Any = model.hidden_states  # type: ignore[attr-defined]  # ``check_linking`` asks for it
    usage, tables, columns = Usage(), [], []
    for part in _parts(schema):
        text, table_ends, column_ends = item_text(nlq, part)
        states, cost = read(text, [*table_ends, *column_ends], layers)
        flat = np.moveaxis(states, 0, 1).reshape(states.shape[1], -1)
        tables.append(flat[: len(table_ends)])
        columns.append(flat[len(table_ends) :])
        usage = usage + cost
    return np.concatenate([*tables, *columns]), usage


def item_text(nlq: str, tables: Sequence[Table]) -> tuple[str, list[int], list[int]]:
    """The text that the model reads, and the characters at which tables and columns are read.

    >>> from nl2sql.databases.schema import Column
    >>> text, tables, columns = item_text("How many?", [Table("city", (Column("id"), Column("name")))])
    >>> text.splitlines()[-1], text[tables[0]], [text[end] for end in columns]
    ('city(id, name)', ')', ['d', 'e'])
    """
    text = f"Question: {nlq}\nSchema:\n"
    table_ends, column_ends = [], []
    for table in tables:
        text += f"{table.name}("
        for at, column in enumerate(table.columns):
            text += (", " if at else "") + column.name
            column_ends.append(len(text) - 1)
        text += ")"
        table_ends.append(len(text) - 1)
        text += "\n"
    return text, table_ends, column_ends


def _parts(schema: Schema) -> list[list[Table]]:
    """The tables in texts of at most ``LONGEST`` characters, or of one table."""
    parts: list[list[Table]] = [[]]
    length = 0
    for table in schema.tables:
        own = length_of(table)
        if length + own > LONGEST and parts[-1]:
            parts.append([])
            length = 0
        parts[-1].append(table)
        length += own
    return parts


def length_of(table: Table) -> int:
    """Its characters in the text, about."""
    return len(table.name) + sum(len(column.name) + 2 for column in table.columns)


def lexical_scores(nlq: str, schema: Schema) -> Scores:
    """Those of tables and of columns by their words, in the schema's order."""
    import numpy as np

    tables = dict(rank_tables(nlq, schema))
    return np.array([tables[table.name] for table in schema.tables]), np.array(column_scores(nlq, schema, tables))


def features(lexical: Scores, states: Any) -> tuple[Any, Any]:
    """What the head weighs, of tables and of columns: the hidden states, and beside them the lexical ranking."""
    import numpy as np

    count = len(lexical[0])
    read = zip((states[:count], states[count:]), lexical, strict=True)
    seen = [np.hstack([part, _ranks(scores)]).astype(np.float32) for part, scores in read]
    return seen[0], seen[1]


def _ranks(scores: Any) -> Any:
    """Lexical scores as features: beside the best, as they are, first, second, and one over the rank."""
    import numpy as np

    rank = np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
    best = max(float(scores.max(initial=0.0)), 1e-9)
    return np.stack([scores / best, scores, rank == 0, rank == 1, 1 / (1 + rank)], axis=1)


def beside_one_another(schema: Schema, lexical: Scores, tables: Any, columns: Any, weights: Any) -> tuple[Any, Any]:
    """The second step's features, of tables and of columns, each name seen beside the others.

    tables, columns: log-odds of the first step. Of a table: its own, those of its two best columns, of the best other
    table and of the best table that it is joined to, and the lexical rank. Of a column: its own, its table's (by
    ``weights``, the second step's of tables), its distance to the best column, and the lexical scores.
    """
    import numpy as np

    ranks, words = _ranks(lexical[0]), lexical[1]
    seen, at = [], 0
    for i, (table, near) in enumerate(zip(schema.tables, joinable_tables(schema), strict=True)):
        own = sorted([*columns[at : at + len(table.columns)], *LOWEST], reverse=True)[:2]
        others = max([*np.delete(tables, i), LOWEST[0]])
        seen.append([tables[i], *own, others, max([*(tables[j] for j in near), LOWEST[0]]), *ranks[i]])
        at += len(table.columns)
    of_tables = np.array(seen)
    counts = [len(table.columns) for table in schema.tables]
    shares = [np.repeat(each, counts) for each in (_weighed(of_tables, weights), ranks[:, 0])]
    best, told = columns.max(initial=LOWEST[0]), words.max(initial=0.0)
    return of_tables, np.stack([columns, *shares, columns - best, columns == best, words, words - told], axis=1)


def _weighed(seen: Any, weights: Any) -> Any:
    """Log-odds: the constant is the last weight."""
    return seen @ weights[:-1] + weights[-1]


def _probabilities(log_odds: Any) -> list[float]:
    import numpy as np

    p = 1 / (1 + np.exp(-np.clip(log_odds, -30, 30)))
    return [float(each) for each in np.clip(p, LEAST, 1 - LEAST)]


# ------------------------------------------------------------------------------------------------------- weights


def uses_relevance(config: Config) -> bool:
    """Whether anything in ``config`` asks how relevant tables and columns are."""
    linking = config.linking
    return linking.learned or linking.order == "relevance" or config.candidates.linked_weight > 0


def head_of(config: Config) -> Head:
    """The head that ``config`` names. Raises UsageError for a file that is none."""
    file = Path(config.linking.weights or WEIGHTS_FILE)
    try:
        return _head(file.read_bytes())
    except (OSError, EOFError, BadZipFile, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"linking.weights {str(file)!r} is no file of scripts/fit_linking.py ({error})") from None


@lru_cache(maxsize=4)
def _head(content: bytes) -> Head:
    import numpy as np

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        weights = {name: arrays[name].astype(np.float32) for name in WEIGHTS}
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Head(about["model"], about["revision"], tuple(about["layers"]), weights, digest)


def check_relevance(model: Model, config: Config) -> None:
    """Raises UsageError where ``config`` asks for relevance, and ``model`` is not the one that its head is for."""
    if not uses_relevance(config):
        return
    head, described = head_of(config), model.describe()
    fit = "fit one with scripts/fit_linking.py (docs/linking.md), or leave linking.* as it is"
    if not hasattr(model, "hidden_states"):
        raise UsageError(f"linking.* needs hidden states, and {model.name} is not run here; {fit}")
    if described.get("revision") != head.revision:
        raise UsageError(f"linking.*: the weights are for {head.model}, and the model is {model.name}; {fit}")


def relevance_print(config: Config) -> str | None:
    """The hash of the head's file; None where nothing asks for relevance."""
    return head_of(config).print if uses_relevance(config) else None
