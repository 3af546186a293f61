"""The schema of a database, as a record and as the text of a prompt."""

from nl2sql.databases.schema import Column as Column
from nl2sql.databases.schema import ForeignKey as ForeignKey
from nl2sql.databases.schema import Schema as Schema
from nl2sql.databases.schema import Table as Table
from nl2sql.databases.schema import introspect as introspect
from nl2sql.databases.schema import schema_to_text as schema_to_text
