"""Where converted weights, built databases and replicas live: ``NL2SQL_CACHE``, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from nl2sql.errors import Nl2SqlError


def cache_dir(*parts: str) -> Path:
    """The cache folder (or a folder inside it), created when missing."""
    base = os.environ.get("NL2SQL_CACHE")
    if base:
        root = Path(base).expanduser()
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nl2sql"
    path = root.joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "set NL2SQL_CACHE to a folder you can write"
        raise Nl2SqlError(f"cache folder {path} cannot be created ({error.strerror}); {hint}") from None
    return path
