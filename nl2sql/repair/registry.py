"""The error patterns of one dialect, data files in ``patterns/``, and the guidance that they give.

An entry fires when its ``pattern`` is found in the engine's message and its ``sql`` (where it has one) in the failed
statement, case ignored; a name that both capture must be the same. The first entry that fires decides, so special
cases come before general ones. Entries that do not apply to the engine's version (``versions``) are skipped.

Texts hold placeholders: the names that the entry captures, and what the schema knows (``schema_names.FACTS``). What
stands in ``[[ ]]`` is left out where one of its placeholders has no value.

>>> packaged("sqlite").match("no such table: custmers").category
'unknown_table'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from nl2sql.databases.schema import Schema
from nl2sql.errors import UsageError
from nl2sql.interfaces import content_key
from nl2sql.machine import from_yaml
from nl2sql.repair.schema_names import FACTS, SchemaNames

# -------------------------------------------------------------------------- the answer of a dry run


class SimilarFix(BaseModel):
    """A stored query that repaired a similar failure. ``similarity_score`` is a cosine: larger is closer."""

    query_id: UUID
    sql: str
    description: str
    similarity_score: float


class RepairGuidance(BaseModel):
    """The rule that a failed statement broke, what to do instead, and similar failures with their repairs.

    ``category`` is one of ``nl2sql.repair.registry.categories()``; "unknown" where no pattern matched.
    """

    violated_constraint: str | None = None
    alternative_approach: str | None = None
    category: str
    similar_fixes: list[SimilarFix] = []


class ExplainAnalyzeResponse(BaseModel):
    """The outcome of compiling a statement without running it.

    ``explain`` is the engine's plan (``{"plan": [...]}``) of a valid statement; ``error`` the engine's message and
    ``repair_guidance`` what to do about it of an invalid one.
    """

    valid: bool
    explain: dict[str, Any] | None = None
    error: str | None = None
    repair_guidance: RepairGuidance | None = None


# ------------------------------------------------------------------------------------- the patterns

FOLDER = Path(__file__).with_name("patterns")
MAX_MESSAGE = 4000  # characters of a message, and of a statement, that are searched
PLACEHOLDER = re.compile(r"\{(\w+)\}")
OPTIONAL = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda version, bound: version >= bound,
    "<": lambda version, bound: version < bound,
}


class ErrorPattern(BaseModel):
    """One entry of a pattern file.

    ``versions``: in which versions of the engine it fires, e.g. ">=24.3,<25.8"; empty: in every one looked at.
    ``provoke`` causes the error on the tests' schema; ``works`` follows the advice and runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    pattern: str
    constraint: str
    alternative: str
    category: str
    example: str
    provoke: str
    works: str
    sql: str = ""
    versions: str = ""
    source: str = ""  # where the entry comes from, unless it was met on the engine itself
    question: str = ""  # the question that ``provoke`` fails, where the SQL alone is no mistake

    @field_validator("pattern", "sql")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("category")
    @classmethod
    def _listed(cls, value: str) -> str:
        if value not in categories():
            raise ValueError(f"unknown category; known: {', '.join(categories())}")
        return value

    @field_validator("versions")
    @classmethod
    def _versions(cls, value: str) -> str:
        in_versions(value, "0")
        return value

    def captured(self, error: str, sql: str) -> dict[str, str] | None:
        """The names that the entry captures; None where it does not fire."""
        match = _compiled(self.pattern).search(error[:MAX_MESSAGE])
        if match is None:
            return None
        names = {name: value for name, value in match.groupdict().items() if value}
        if not self.sql:
            return names
        for place in _compiled(self.sql).finditer(sql[:MAX_MESSAGE]):
            more = {name: value for name, value in place.groupdict().items() if value}
            if all(names.get(name, value).lower() == value.lower() for name, value in more.items()):
                return more | names
        return None


@dataclass(frozen=True)
class Registry:
    """The patterns of one dialect in the order in which they are tried."""

    dialect: str
    tested: tuple[str, ...]  # engine versions on which every entry was provoked
    patterns: tuple[ErrorPattern, ...]

    def find(self, error: str, sql: str = "", version: str = "") -> tuple[ErrorPattern, dict[str, str]] | None:
        """The first entry that fires, and what it captures. ``version`` of the engine; empty: not known."""
        for pattern in self.patterns:
            if version and not in_versions(pattern.versions, version):
                continue
            captured = pattern.captured(error, sql)
            if captured is not None:
                return pattern, captured
        return None

    def match(
        self, error: str, sql: str = "", schema: Schema | None = None, version: str = ""
    ) -> RepairGuidance | None:
        """Guidance for the engine's message ``error`` about ``sql``, with the schema's names; None: no entry fires."""
        entry = self.find(error, sql, version)
        if entry is None:
            return None
        pattern, captured = entry
        facts: SchemaNames | dict[str, str] = {}
        if schema is not None:
            facts = SchemaNames(schema, sql, self.dialect, captured)
        return RepairGuidance(
            violated_constraint=fill(pattern.constraint, captured, facts),
            alternative_approach=fill(pattern.alternative, captured, facts),
            category=pattern.category,
        )


def fill(template: str, captured: Mapping[str, str], facts: Mapping[str, str] | SchemaNames) -> str:
    """``template`` with its placeholders filled; optional parts that cannot be filled are left out."""

    def value(name: str) -> str:
        return captured.get(name) or facts.get(name, "")

    def optional(part: re.Match[str]) -> str:
        return part[1] if all(value(name) for name in PLACEHOLDER.findall(part[1])) else ""

    text = OPTIONAL.sub(optional, template)
    return PLACEHOLDER.sub(lambda place: value(place[1]) or "it", text).strip()


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL | re.MULTILINE)


def in_versions(versions: str, version: str) -> bool:
    """Whether ``version`` ("3.40.1") is within ``versions`` (">=3.25,<3.44"). Raises ValueError for a bad range."""
    for part in filter(None, (part.strip() for part in versions.split(","))):
        sign = next((sign for sign in COMPARISONS if part.startswith(sign)), None)
        if sign is None or not re.fullmatch(r"\d+(\.\d+)*", part[len(sign) :]):
            raise ValueError(f"versions {versions!r}: expected e.g. '>=24.3,<25.8'")
        if not COMPARISONS[sign](_numbers(version), _numbers(part[len(sign) :])):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return tuple([*numbers, 0, 0, 0][:3])  # 25.8 is 25.8.0


@functools.cache
def categories() -> dict[str, str]:
    """The closed list of categories, each with its meaning."""
    loaded = yaml.safe_load((FOLDER / "categories.yaml").read_text(encoding="utf-8"))
    return {str(name): str(meaning) for name, meaning in loaded.items()}


def dialects() -> list[str]:
    """The dialects that have a pattern file."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml") if file.stem != "categories")


@functools.cache
def catalogue_print() -> str:
    """The content hash of all packaged patterns, their categories and the rewrites."""
    files = [*sorted(FOLDER.glob("*.yaml")), FOLDER.with_name("rewrites.yaml")]
    return content_key(*((file.name, file.read_text(encoding="utf-8")) for file in files))


@functools.cache
def packaged(dialect: str) -> Registry:
    """The packaged patterns of a dialect; without a file for it, a registry of none."""
    file = FOLDER / f"{dialect}.yaml"
    return read_registry(file) if dialect in dialects() else Registry(dialect, (), ())


def read_registry(file: Path) -> Registry:
    """The patterns of a file. Raises UsageError that names the entry and what is wrong with it."""
    try:
        loaded = from_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"pattern file {file} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict) or not {"dialect", "patterns"} <= set(loaded):
        raise UsageError(f"pattern file {file} needs the keys dialect, tested and patterns")
    patterns: list[ErrorPattern] = []
    for index, entry in enumerate(loaded["patterns"] or ()):
        name = entry.get("id", f"number {index + 1}") if isinstance(entry, dict) else f"number {index + 1}"
        try:
            pattern = ErrorPattern.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise UsageError(f"pattern file {file}, entry {name}, {field}: {first['msg']}") from None
        _check_placeholders(file, pattern)
        patterns.append(pattern)
    ids = [pattern.id for pattern in patterns]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise UsageError(f"pattern file {file}: the id {min(twice)} is used twice")
    return Registry(str(loaded["dialect"]), tuple(map(str, loaded.get("tested") or ())), tuple(patterns))


def _check_placeholders(file: Path, pattern: ErrorPattern) -> None:
    captured = set(_compiled(pattern.pattern).groupindex) | set(_compiled(pattern.sql).groupindex)
    for text in (pattern.constraint, pattern.alternative):
        certain = set(PLACEHOLDER.findall(OPTIONAL.sub("", text)))
        if unknown := (certain - captured) | (set(PLACEHOLDER.findall(text)) - captured - set(FACTS)):
            raise UsageError(
                f"pattern file {file}, entry {pattern.id}: nothing fills {{{min(unknown)}}}; it captures "
                f"{', '.join(sorted(captured)) or 'no names'}, and [[ ]] may hold {', '.join(FACTS)}"
            )
