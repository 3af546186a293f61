"""Databases of any engine behind one door: ``open_database`` (see docs/repair.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nl2sql.config.plugins import made_by_plugin, plugins
from nl2sql.errors import UsageError
from nl2sql.machine import as_path, server_parts

if TYPE_CHECKING:
    from nl2sql.interfaces import Database

FORMS = (
    "FILE.sqlite, packaged:NAME, a CSV, Parquet, JSON or Excel file or a folder of them, duckdb:FILE, "
    "clickhouse:FOLDER, postgresql://USER@HOST/NAME, mysql://USER@HOST/NAME"
)
SERVERS = {"postgres": "postgres", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


def dialect_of(spec: str) -> str:
    """The dialect of the database that a form of ``FORMS`` names, without opening it."""
    form, colon, _ = spec.partition(":")
    known = SERVERS | {"duckdb": "duckdb", "clickhouse": "clickhouse"}
    return known.get(form, "sqlite") if colon else "sqlite"


def open_database(spec: str | Path) -> Database:
    """The database that ``spec`` names, opened read-only; one of ``FORMS``, or a plugin's.

    Raises UsageError for another form or a missing file, DatabaseError where it cannot be opened.
    """
    from nl2sql.databases.engines.database import EngineDatabase

    text = str(spec)
    form, colon, rest = text.partition(":")
    if form in SERVERS and rest.startswith("//"):
        name = server_parts(text, f"a {form} database").path.lstrip("/")
        if not name:
            raise UsageError(f"{form}://... names no database; expected e.g. {form}://USER@HOST/NAME")
        return EngineDatabase(SERVERS[form], text, name)
    if form in ("duckdb", "clickhouse") and colon:
        path, place = as_path(rest), "file" if form == "duckdb" else "folder"
        if path is None or not (path.is_file() if place == "file" else path.is_dir()):
            shown = "..." if "@" in rest or rest.startswith("//") else rest  # an address may hold a password
            raise UsageError(f"{form} database {shown} does not exist; expected a {place}: {form}:{place.upper()}")
        return EngineDatabase(form, str(path.resolve()), path.stem)
    from nl2sql.databases.data_files import as_sqlite, identifier, is_data
    from nl2sql.databases.sqlite.database import SqliteDatabase

    if form == "packaged" and colon:
        from nl2sql.databases.packaged import database_path

        return SqliteDatabase(database_path(rest))
    if colon and form in plugins("engines"):
        database: Database = made_by_plugin("engines", form, text)
        return database
    if "://" in text:
        known = ", ".join([FORMS, *(f"{name}:..." for name in plugins("engines"))])
        raise UsageError(f"no database for {form}://; known forms: {known}")
    file = as_path(text)
    if file is not None and file.exists() and is_data(file):
        return SqliteDatabase(as_sqlite(file), name=identifier(file.stem), origin=file)
    return SqliteDatabase(file or spec)
