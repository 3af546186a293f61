"""Schema, Table, Column; introspection; and the schema text that models read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ForeignKey:
    """``columns`` of the owning table reference ``ref_columns`` of ``ref_table``."""

    columns: tuple[str, ...]
    ref_table: str
    ref_columns: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    name: str
    type: str = ""  # as declared, upper case; "" when undeclared
    primary_key: bool = False
    not_null: bool = False


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[Column, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()
    is_view: bool = False


@dataclass(frozen=True)
class Schema:
    """Tables in creation order. Look-ups by name ignore case, as SQLite does."""

    tables: tuple[Table, ...]
    dialect: str = "sqlite"

    def table(self, name: str) -> Table | None:
        wanted = name.lower()
        return next((t for t in self.tables if t.name.lower() == wanted), None)
