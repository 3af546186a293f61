"""The prompts (specification, section 9)."""

from nl2sql.agents.prompts import REACT_SYSTEM_PROMPT as REACT_SYSTEM_PROMPT
from nl2sql.agents.prompts import action_line as action_line
from nl2sql.agents.prompts import generate_messages as generate_messages
from nl2sql.agents.prompts import observation_text as observation_text
from nl2sql.agents.prompts import prompt as prompt
from nl2sql.agents.prompts import prompt_hashes as prompt_hashes
from nl2sql.agents.prompts import react_messages as react_messages
from nl2sql.agents.prompts import repair_messages as repair_messages
