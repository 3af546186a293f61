"""What ``derive_vizql.py`` is made of: SQL golds read, written as structured queries, and proved."""
