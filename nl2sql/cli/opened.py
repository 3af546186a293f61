"""The database that a command asks: one of ``databases.engines``, or a data source behind a VizQL Data Service."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nl2sql.interfaces import Database


def open_asked(db: str) -> Database:
    """The database that ``--db`` names; ``vds:URL#LUID`` is a data source. Raises UsageError, DatabaseError."""
    if db.startswith("vds:"):
        from nl2sql.vizql.service import open_service_database

        return open_service_database(db)
    from nl2sql.databases.engines import open_database

    return open_database(db)
