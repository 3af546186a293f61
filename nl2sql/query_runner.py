"""The execution of SQL, read-only and bounded (specification, section 3)."""

from nl2sql.databases.sqlite.database import QueryPool as QueryPool
from nl2sql.databases.sqlite.database import SqliteDatabase as SqliteDatabase
from nl2sql.databases.sqlite.database import default_pool as default_pool
from nl2sql.databases.sqlite.database import fingerprint_sqlite as fingerprint_sqlite
