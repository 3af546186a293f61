"""The graph on LangGraph, as the specification draws it, from the query builder on.

query_builder -> validator -> executor -> formatter, with the refiner back to the validator, and the error handler.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from nl2sql.agents.state_graph import as_node, check_langgraph
from nl2sql.agents.vizql import nodes
from nl2sql.agents.vizql.state import Context, VizqlState, work_of

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

RECURSION_LIMIT = 3 * nodes.MOST_ATTEMPTS + 6  # validator, executor, refiner for each attempt; builder and end
_AFTER: dict[Hashable, str] = {
    "execute": "executor",
    "refine": "refiner",
    "format": "formatter",
    "error_handler": "error_handler",
}


@functools.cache
def graph() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The compiled graph; any number of threads may run it at once. Raises UsageError without LangGraph."""
    check_installed()
    from langgraph.graph import END, START, StateGraph

    drawn = StateGraph(VizqlState, context_schema=Context)
    for name in ("query_builder", "validator", "executor", "refiner", "formatter", "error_handler"):
        drawn.add_node(name, as_node(getattr(nodes, name), work_of))

    def after_validation(state: VizqlState, runtime: Any) -> str:
        return nodes.route_after_validation(state, runtime.context.task.config.vizql)

    def after_execution(state: VizqlState, runtime: Any) -> str:
        return nodes.route_after_execution(state, runtime.context.task.config.vizql)

    drawn.add_edge(START, "query_builder")
    drawn.add_edge("query_builder", "validator")
    drawn.add_conditional_edges("validator", after_validation, _AFTER)
    drawn.add_conditional_edges("executor", after_execution, _AFTER)
    drawn.add_edge("refiner", "validator")
    drawn.add_edge("formatter", END)
    drawn.add_edge("error_handler", END)
    return drawn.compile()


def check_installed() -> None:
    """Raises UsageError with the command that installs what is missing."""
    check_langgraph("vizql")
