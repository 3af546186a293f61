"""The tools of the loop (specification, section 3)."""

from nl2sql.agents.agent_tools import TOOLS as TOOLS
from nl2sql.agents.agent_tools import dispatch as dispatch
from nl2sql.agents.agent_tools import extract_constraints as extract_constraints
from nl2sql.agents.agent_tools import finish as finish
from nl2sql.agents.agent_tools import generate_sql as generate_sql
from nl2sql.agents.agent_tools import get_schema as get_schema
from nl2sql.agents.agent_tools import get_table_samples as get_table_samples
from nl2sql.agents.agent_tools import link_schema as link_schema
from nl2sql.agents.agent_tools import repair_sql as repair_sql
from nl2sql.agents.agent_tools import run_sql as run_sql
from nl2sql.agents.agent_tools import validate_constraints as validate_constraints
from nl2sql.agents.agent_tools import validate_sql as validate_sql
from nl2sql.agents.forms import ACTIONS as ACTIONS
from nl2sql.agents.forms import ToolRecord as ToolRecord
from nl2sql.agents.forms import action_space as action_space
