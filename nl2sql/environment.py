"""The loop as an environment that trains a model by reward (docs/environment.md)."""

from nl2sql.runs.rollouts.environment import DrivenEpisode as DrivenEpisode
from nl2sql.runs.rollouts.environment import Environment as Environment
from nl2sql.runs.rollouts.environment import Outcome as Outcome
from nl2sql.runs.rollouts.environment import Request as Request
from nl2sql.runs.rollouts.environment import Reward as Reward
from nl2sql.runs.rollouts.environment import load_environment as load_environment
from nl2sql.runs.rollouts.environment import outcome_of as outcome_of
from nl2sql.runs.rollouts.environment import reward_functions as reward_functions
from nl2sql.runs.rollouts.environment import reward_weights as reward_weights
from nl2sql.runs.rollouts.environment import rollout_function as rollout_function
