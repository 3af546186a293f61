"""The controls of a run: what each is called, where its episodes lie, and which of their texts is scored.

A loop gets credit only for what it adds to the same model asked once. One greedy call gives two controls (with and
without guardrails); with ``--equal-tokens`` there is a third, sampled at the loop's own token budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nl2sql.agents.controllers import NamedController, get_controller
from nl2sql.runs.plan import Plan


@dataclass(frozen=True)
class Control:
    """name: its key in ``report["control"]``. label: the heading of its column. item: its verdict in an item of the
    report. paired: the report's key of the run's paired tests against it. store: whose episodes, a key of ``FOLDERS``.
    text: the field of a prediction that is scored.
    """

    name: str
    label: str
    item: str
    paired: str
    store: str
    text: str = "sql"


CONTROLS = (
    Control("with_guardrails", "single_shot", "ex_single_shot", "paired", "single_shot"),
    Control(
        "without_guardrails",
        "single_shot, raw",
        "ex_single_shot_raw",
        "paired_without_guardrails",
        "single_shot",
        text="raw_sql",
    ),
    Control("equal_tokens", "single_shot, equal tokens", "ex_equal_tokens", "paired_equal_tokens", "equal_tokens"),
)


def control_stores(plan: Plan, controller: NamedController) -> tuple[str, ...]:
    """The controls that a run of ``plan`` asks beside its controller, in their order: keys of ``FOLDERS``."""
    if not plan.control or controller.identity == get_controller("single_shot").identity:
        return ()
    return ("single_shot", "equal_tokens") if plan.equal_tokens else ("single_shot",)


def systems_of(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The run and its controls, by the names that tables give them; a controller may have the name of a control."""
    present = {c.label: report["control"][c.name] for c in CONTROLS if c.name in report["control"]}
    name = report["controller"]
    return {f"{name} (the run)" if name in present else name: report, **present}
