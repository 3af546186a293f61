"""Repair guidance: errors explained, fixes remembered (see docs/repair.md)."""

from importlib import import_module
from typing import Any

_HOMES = {
    "Corpus": "nl2sql.repair.corpus",
    "ErrorAnalyzer": "nl2sql.repair.analyzer",
    "ExplainAnalyzeResponse": "nl2sql.repair.registry",
    "QueryCorpus": "nl2sql.repair.corpus",
    "RepairGuidance": "nl2sql.repair.registry",
    "SimilarFix": "nl2sql.repair.registry",
    "explain_analyze": "nl2sql.repair.analyzer",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nl2sql.repair' has no attribute {name!r}")
