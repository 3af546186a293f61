"""Repair guidance: errors explained, fixes remembered (see docs/repair.md)."""

from importlib import import_module
from typing import Any

_HOMES = {
    "ExplainAnalyzeResponse": "nl2sql.repair.guidance",
    "RepairGuidance": "nl2sql.repair.guidance",
    "SimilarFix": "nl2sql.repair.guidance",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nl2sql.repair' has no attribute {name!r}")
