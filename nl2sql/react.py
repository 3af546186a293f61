"""The reference loop (specification, section 7)."""

from nl2sql.agents.react import AFTER as AFTER
from nl2sql.agents.react import GATES as GATES
from nl2sql.agents.react import OVERRIDES as OVERRIDES
from nl2sql.agents.react import Override as Override
from nl2sql.agents.react import act as act
from nl2sql.agents.react import blocked as blocked
from nl2sql.agents.react import bootstrap as bootstrap
from nl2sql.agents.react import close_episode as close_episode
from nl2sql.agents.react import fall_back as fall_back
from nl2sql.agents.react import override as override
from nl2sql.agents.react import pending_override as pending_override
from nl2sql.agents.react import react as react
from nl2sql.agents.react import react_sql as react_sql
from nl2sql.agents.react import think as think
