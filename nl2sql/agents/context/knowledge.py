"""What is known of a database beside its schema, as facts; a prompt shows those it is asked about.

>>> facts = [Fact("Revenue is the sum of orders.total."), Fact("A regular has two orders or more.")]
>>> [fact.text for fact in chosen(facts, "What is the revenue?", len, 100)]
['Revenue is the sum of orders.total.']

A file is Markdown, or a semantic model of Open Semantic Interchange 1.0 in YAML. Of Markdown each
paragraph, list item and row of a table is a fact, which also counts the words of its headings; what
stands before the first heading of the second level is shown whatever is asked. Of a semantic model
each dataset, field, relationship and metric is one, and the model's own description and
instructions are shown whatever is asked.

Not covered: expressions in other dialects than ANSI_SQL, ``custom_extensions``, and pictures. A
dataset whose source is a query is shown as it is.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nl2sql.agents.context.linking import STOP_WORDS, question_stems
from nl2sql.databases.schema import Schema
from nl2sql.errors import UsageError, one_line
from nl2sql.interfaces import content_key
from nl2sql.machine import file_version, from_yaml
from nl2sql.sql.text import stem, words

ENDINGS = (".md", ".markdown", ".yaml", ".yml")
LARGEST = 4_000_000  # bytes of a file
_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
_STARTS = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+|\s*\|")  # a list's item, a table's row
_RULE = re.compile(r"[\s|:=-]*$")  # a line under a table's head, or across the page


@dataclass(frozen=True)
class Fact:
    """A text of the prompt, the table that it is about in lower case ("": none), its headings."""

    text: str
    table: str = ""
    headings: str = ""
    always: bool = False  # shown whatever is asked, where there is room


def chosen(facts: Sequence[Fact], question: str, count: Callable[[str], int], budget: int) -> list[Fact]:
    """The facts that ``question`` is about, in their own order, within ``budget`` tokens.

    count: text -> tokens. Facts with more of the question's rarer words come first into the budget;
    one that does not fit is left out for the next that does.
    """
    scores = relevance(question, [f"{fact.headings} {fact.text}" for fact in facts])
    order = sorted(range(len(facts)), key=lambda at: (not facts[at].always, -scores[at], at))
    kept: list[int] = []
    for at in order:
        if (facts[at].always or scores[at] > 0) and count(lines([facts[i] for i in sorted([*kept, at])])) <= budget:
            kept.append(at)
    return [facts[at] for at in sorted(kept)]


def lines(facts: Iterable[Fact]) -> str:
    """The facts as a prompt shows them."""
    return "\n".join(fact.text for fact in facts)


def relevance(question: str, texts: Sequence[str]) -> list[float]:
    """How much each text is about a question: a sum over the stems they share, rarer ones first."""
    asked = set(question_stems(question))
    shared = [asked & {stem(word) for word in words(text) if word not in STOP_WORDS} for text in texts]
    rarity = {word: math.log(1 + len(texts) / sum(word in held for held in shared)) for held in shared for word in held}
    return [sum(rarity[word] for word in held) for held in shared]


def facts_for(file: str, schema: Schema, *, descriptions: bool = False) -> list[Fact]:
    """The facts of a file ("": none), and with ``descriptions`` what the schema says of its columns.

    A fact about a table that the schema does not have is left out. Raises UsageError.
    """
    facts = list(read_knowledge(file).facts) if file else []
    if descriptions:
        for table in schema.tables:
            described = [column for column in table.columns if column.description]
            facts += [Fact(f"{table.name}.{c.name}: {c.description}", table.name.lower()) for c in described]
    names = {"", *(table.name.lower() for table in schema.tables)}
    return [fact for fact in facts if fact.table in names]


# ------------------------------------------------------------------------------------------------------ the file


@dataclass(frozen=True)
class Knowledge:
    """The facts of a file, in its order."""

    facts: tuple[Fact, ...]

    @property
    def fingerprint(self) -> str:
        return content_key([[fact.text, fact.table, fact.headings, fact.always] for fact in self.facts])


def read_knowledge(path: str | Path) -> Knowledge:
    """The facts of a file, read once while it does not change.

    Raises UsageError for one that is missing or broken.
    """
    file, version = file_version(path, f"knowledge {path}: there is no such file; write one, e.g. shop.md")
    size = version[1]
    if file.suffix.lower() not in ENDINGS or size > LARGEST:
        expected = f"a file {', '.join(ENDINGS)} of at most {LARGEST:,} bytes"
        raise UsageError(f"knowledge {path} has {size:,} bytes; expected {expected}")
    return _read(file, version)


@functools.lru_cache(maxsize=8)
def _read(file: Path, written: tuple[int, int]) -> Knowledge:
    try:
        text = file.read_text(encoding="utf-8-sig")
        facts = tuple(_of_markdown(text) if file.suffix.lower() in ENDINGS[:2] else _of_osi(from_yaml(text)))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"knowledge {file} cannot be read: {one_line(error, 200)}") from None
    if not facts:
        raise UsageError(f"knowledge {file} says nothing; expected paragraphs, or a semantic model with datasets")
    return Knowledge(facts)


def _of_markdown(text: str) -> Iterator[Fact]:
    headings: dict[int, str] = {}
    block: list[str] = []

    def paragraph() -> Iterator[Fact]:
        if block:
            above = " ".join(headings.values())
            yield Fact(" ".join(block), headings=above, always=all(level < 2 for level in headings))
            block.clear()

    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading or _RULE.match(line) or _STARTS.match(line):
            yield from paragraph()
        if heading:
            level = len(heading[1])
            headings = {depth: name for depth, name in headings.items() if depth < level} | {level: heading[2]}
        elif not _RULE.match(line) and not line.lstrip().startswith(("```", "~~~")):
            block.append(" ".join(line.split()))
    yield from paragraph()


def _of_osi(document: Any) -> Iterator[Fact]:
    """The facts of ``semantic_model: [...]``, or of a document that is one model (later drafts)."""
    models = document.get("semantic_model", [document]) if isinstance(document, dict) else None
    if not isinstance(models, list) or not all(isinstance(model, dict) and model.get("datasets") for model in models):
        raise ValueError("expected semantic_model: [{name, datasets: [{name, source, fields}]}]")
    try:
        for model in models:
            yield from _of_model(model)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no semantic model of OSI 1.0: {error!r}") from None


def _of_model(model: Mapping[str, Any]) -> Iterator[Fact]:
    for text in (model.get("description"), _context(model).get("instructions")):
        if text:
            yield Fact(_flat(text), always=True)
    tables: dict[str, str] = {}
    for dataset in model["datasets"]:
        source = str(dataset.get("source") or dataset["name"])
        query = bool(re.search(r"\s", source.strip()))
        table = tables[dataset["name"]] = dataset["name"] if query else source.rpartition(".")[2].strip('"`[]')
        about = "" if query else table.lower()
        head = f"{dataset['name']} = ({_flat(source)})" if query else table
        if text := _said(head, dataset, named=dataset["name"]):
            yield Fact(text, about)
        for item in dataset.get("fields") or ():
            expression = _expression(item)
            plain = expression in ("", item["name"])
            head = f"{table}.{item['name']}" if plain else f"{item['name']} of {table} = {expression}"
            if text := _said(head, item, named=item["name"], always=not plain):
                yield Fact(text, about)
    for join in model.get("relationships") or ():
        one, other = (tables.get(join[side], join[side]) for side in ("from", "to"))
        pairs = zip(join["from_columns"], join["to_columns"], strict=False)
        yield Fact(" and ".join(f"{one}.{left} = {other}.{right}" for left, right in pairs), one.lower())
    for metric in model.get("metrics") or ():
        head = f"{metric['name'].replace('_', ' ')} = {_expression(metric)}".removesuffix(" = ")
        yield Fact(_said(head, metric, named=metric["name"], always=True))


def _said(head: str, item: Mapping[str, Any], *, named: str, always: bool = False) -> str:
    """``head: description; note; also called a, b``; where nothing is said, "" or the head."""
    context = _context(item)
    also = [str(word) for word in context.get("synonyms") or () if str(word).casefold() != str(named).casefold()]
    parts = [item.get("description"), context.get("instructions"), f"also called {', '.join(also)}" if also else ""]
    text = "; ".join(_flat(part) for part in parts if part)
    return f"{head}: {text}" if text else head * always


def _context(item: Mapping[str, Any]) -> Mapping[str, Any]:
    context = item.get("ai_context") or {}
    return context if isinstance(context, dict) else {"instructions": context}


def _expression(item: Mapping[str, Any]) -> str:
    """The ANSI_SQL expression of a field or metric, from a list under ``dialects`` or alone."""
    expression = item.get("expression") or []
    entries = expression.get("dialects") or [] if isinstance(expression, dict) else expression
    return next((_flat(e["expression"]) for e in entries if e.get("dialect", "ANSI_SQL") == "ANSI_SQL"), "")


def _flat(text: Any) -> str:
    return " ".join(str(text).split())
