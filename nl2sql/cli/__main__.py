"""``python -m nl2sql.cli`` is the ``nl2sql`` command."""

from nl2sql.cli import main

main()
