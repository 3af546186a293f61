"""The specification's state machine on LangGraph: plan, execute_tools, generate_sql, reflect, complete."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nl2sql.agents.reflection import nodes
from nl2sql.agents.reflection.state import Context, ReflectState, workspace
from nl2sql.agents.state_graph import as_node, check_langgraph
from nl2sql.agents.task import State

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

# LangGraph counts the nodes that it visits, and ends an episode at a limit: these are the most of one in order.
ATTEMPT_VISITS = 8  # plan, generate_sql, plan, execute_tools, plan, execute_tools, plan, reflect
OTHER_VISITS = 6  # plan and execute_tools before the first, complete behind the last, and a plan behind a failure


def recursion_limit(max_iterations: int) -> int:
    """The most nodes that an episode may visit: LangGraph's own default would let a mistake go round 10,000 times."""
    return ATTEMPT_VISITS * max_iterations + OTHER_VISITS


@functools.cache
def compiled() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph, built once; any number of threads may run it at once. Raises UsageError where LangGraph is not
    installed."""
    check_installed()
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(ReflectState, context_schema=Context)
    for name in ("plan", "execute_tools", "generate_sql", "reflect", "complete"):
        graph.add_node(name, as_node(getattr(nodes, name), _work))
    graph.add_edge(START, "plan")
    routes = ("execute_tools", "generate_sql", "reflect", "complete")
    graph.add_conditional_edges("plan", nodes.should_execute_or_generate, {name: name for name in routes})
    graph.add_edge("execute_tools", "plan")
    graph.add_edge("generate_sql", "plan")
    graph.add_conditional_edges("reflect", nodes.should_refine, {"refine": "plan", "complete": "complete"})
    graph.add_edge("complete", END)
    return graph.compile()


def check_installed() -> None:
    """Raises UsageError with the command that installs what is missing."""
    check_langgraph("reflect")


def _work(state: ReflectState, context: Context) -> State:
    return workspace(state, context.task)
