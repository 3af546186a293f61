"""SQLite: statements of models and users run read-only in killable worker processes."""
