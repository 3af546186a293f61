"""Configuration: one frozen pydantic model per component (``sections``), read from files and overrides (``reading``).

The resolved configuration is written into every run's manifest. An unknown key is an error that lists the known ones.
"""

from nl2sql.config.reading import (
    build_config,
    config_keys,
    known_keys,
    load_config,
    merge,
    read_override,
)
from nl2sql.config.sections import (
    CHECKS,
    PRESETS,
    PROMPT_NAMES,
    CandidatesConfig,
    Config,
    EvalConfig,
    FewShotConfig,
    KnowledgeConfig,
    ReactConfig,
    ReflectConfig,
    RepairConfig,
    RewardConfig,
    SchemaConfig,
    ScoreWeights,
    SessionConfig,
    SingleShotConfig,
    SuspicionsConfig,
    VizqlConfig,
)

__all__ = [
    "CHECKS",
    "PRESETS",
    "PROMPT_NAMES",
    "CandidatesConfig",
    "Config",
    "EvalConfig",
    "FewShotConfig",
    "KnowledgeConfig",
    "ReactConfig",
    "ReflectConfig",
    "RepairConfig",
    "RewardConfig",
    "SchemaConfig",
    "ScoreWeights",
    "SessionConfig",
    "SingleShotConfig",
    "SuspicionsConfig",
    "VizqlConfig",
    "build_config",
    "config_keys",
    "known_keys",
    "load_config",
    "merge",
    "read_override",
]
