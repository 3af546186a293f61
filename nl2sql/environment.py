"""The loop as an environment that trains a model by reward (docs/environment.md)."""

from nl2sql.runs.rollouts import DrivenEpisode as DrivenEpisode
from nl2sql.runs.rollouts import Environment as Environment
from nl2sql.runs.rollouts import Outcome as Outcome
from nl2sql.runs.rollouts import Request as Request
from nl2sql.runs.rollouts import Reward as Reward
from nl2sql.runs.rollouts import load_environment as load_environment
from nl2sql.runs.rollouts import outcome_of as outcome_of
from nl2sql.runs.rollouts import reward_functions as reward_functions
from nl2sql.runs.rollouts import reward_weights as reward_weights
from nl2sql.runs.rollouts import rollout_function as rollout_function
