"""What ``derive_vizql.py`` is made of: structured queries for SQL golds, proved by their rows."""
