"""What a run of structured queries reports beside its metrics: validity by version, and what the refinements took.

>>> stages = ["validation", "answered"], ["answered"]
>>> scored = vizql_scores({"flags": {"vizql": {"stages": seen}}} for seen in stages)
>>> scored["valid"]["1"]["value"], scored["valid"]["2"]["value"], scored["versions"]
(0.5, 1.0, 1.5)
>>> vizql_notes(scored)[0]
'valid at the first attempt 50.0 [9.5, 90.5], after refinement 1 100.0 [34.2, 100.0], 2 100.0 [34.2, 100.0], 3 100.0 \
[34.2, 100.0] of 2'

A question counts as valid from the first version on that was; what came of its execution is in VA and EX.

>>> vizql_scores([{"flags": {"vizql": {"stages": ["answered"]}}}, *[{"flags": {}}] * 3])["valid"]["1"]["value"]
0.25
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nl2sql.eval.stats import percent, wilson_interval

VERSIONS = (1, 2, 3, 4)  # built, and three refinements


def vizql_scores(traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The report's ``vizql``: shares of questions with a valid version so far, versions per question, last stages.

    An episode that broke off counts as one without a version. Empty for a run without structured queries.
    """
    told = [trace["flags"].get("vizql") for trace in traces]
    if not any(told):
        return {}
    stages = [said["stages"] if said else [] for said in told]
    first = [next((n for n, stage in enumerate(seen, 1) if stage != "validation"), None) for seen in stages]
    counts = {str(version): sum(n is not None and n <= version for n in first) for version in VERSIONS}
    valid = {version: wilson_interval(count / len(first), len(first)).to_dict() for version, count in counts.items()}
    return {
        "valid": valid,
        "versions": round(sum(map(len, stages)) / len(stages), 3),
        "ended": dict(Counter(seen[-1] if seen else "none" for seen in stages)),
    }


def vizql_notes(told: Mapping[str, Any], name: str = "") -> list[str]:
    """The lines under a table; ``name`` stands in front of them."""
    first, *later = (f"{percent(told['valid'][str(version)])}" for version in VERSIONS)
    after = ", ".join(f"{n} {share}" for n, share in enumerate(later, 1))
    before = f"{name}: " if name else ""
    line = f"{before}valid at the first attempt {first}, after refinement {after} of {told['valid']['1']['n']}"
    ended = ", ".join(f"{stage} {count}" for stage, count in sorted(told["ended"].items()))
    return [line, f"{before}{told['versions']:.2f} versions per question; ended at: {ended}"]
