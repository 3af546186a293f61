"""The sections of a configuration: one frozen record per component, and the presets that controllers start from.

>>> Config().react.max_steps, sorted(PRESETS["react_plus"]["react"])[0]
(8, 'auto_finish')
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from nl2sql.machine import MAX_TIMEOUT_S

PROMPT_NAMES = (  # their texts are in agents/prompts.yaml
    *("generate_prefill", "react_system", "react_native_system", "generate_system", "generate_user", "few_shot"),
    *("few_shot_example", "repair_user", "repair_guided_user"),
    *("generate_followup_user", "resolve_system", "resolve_user"),
    *("clarify", "talk", "vizql_system", "vizql_user", "vizql_example", "vizql_refine", "vizql_rules"),
)
COLDEST = 1e-6  # temperature: logits divided by less are no numbers any more


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation in (int, float, int | str):
            raise ValueError("expected a number, not a truth value")  # YAML reads yes, no, on and off as such
        return value


def _from_anywhere(value: str) -> str:
    """A path that means the same file from any folder: a run may be resumed from elsewhere."""
    return str(Path(value).expanduser().absolute())


OwnFile = Annotated[str, AfterValidator(lambda v: _from_anywhere(v) if v and "://" not in v else v)]
OwnPool = Annotated[str, AfterValidator(lambda v: _from_anywhere(v) if v.endswith(".jsonl") else v)]


class SchemaConfig(_Frozen):
    """The form in which a schema is written into prompts."""

    form: Literal["compact", "ddl", "none"] = "compact"  # none: a cut for ablations, no schema is shown at all
    samples: int = Field(0, ge=0, le=20)  # example values per column; 0 = none
    values: int = Field(0, ge=0, le=20)  # cell values that the question names, shown below it (SQLite); 0 = none
    evidence: bool = True  # append the question's evidence (BIRD's external knowledge) where it has one
    max_tokens: int = Field(3000, ge=64)  # budget of the schema text; tables past it are listed by name only


class ReactConfig(_Frozen):
    """The reference loop [16]. The first seven are the specification's parameters (section 5).

    The others are off in preset ``react`` (the specification to the letter) and on in ``react_plus``; each is
    one switch.
    """

    max_steps: int = Field(8, ge=1, le=1000)  # after so many an episode falls back to a fresh query
    max_new_tokens: int = Field(256, ge=1)  # of each call
    do_sample: bool = False  # sampled instead of greedy
    temperature: float = Field(0.2, ge=COLDEST)  # with do_sample
    top_p: float = Field(0.9, gt=0, le=1)  # with do_sample
    use_link_schema: bool = True  # the SQL prompts show the tables that the question is about
    max_clean_reject_retries: int = Field(1, ge=0)  # further queries after one that the guardrails refused

    guardrails: bool = True  # from here to ``vanilla``: parts that an ablation takes out (docs/runs.md)
    postprocess: bool = True  # of the guardrails: one statement, SELECT only, cleaned
    projection_contract: bool = True  # of the guardrails: the columns that the question lists, in its order
    table_casing: bool = True  # of the guardrails: names as the schema writes them
    forced_extraction: bool = True  # extract_constraints is forced where the model leaves it out
    validation_gate: bool = True  # validate_sql checks the query; off: it finds every query valid
    constraints_gate: bool = True  # validate_constraints asks for the structures that the question names
    run_gate: bool = True  # run_sql only after both validations passed
    intent_gate: bool = True  # a query that ran is repaired where its form does not fit the question
    finish_gate: bool = True  # finish only after a successful run
    repair: bool = True  # a failure forces repair_sql
    vanilla: bool = True  # steps used up: a fresh query without the loop, else the last one

    strip_unasked: bool = False  # the letter of 4.1.2: ORDER BY and LIMIT go where no cue asks for a ranking
    explain: bool = False  # validate_sql also asks the engine to compile the query; always on other engines than SQLite
    suggestions: bool = False  # the observation of validate_sql names what may have been meant
    # a query that ran is repaired, once, where the model gave it a lower probability, or a suspicion stands; 0: off
    confident_at: float = Field(0.0, ge=0, le=1)
    # the first repair_sql writes so many queries under another order of the tables, and takes the best; 0: as specified
    repair_samples: int = Field(0, ge=0, le=64)
    best_so_far: bool = False  # steps used up, before ``vanilla``: the SQL that ran, or that runs and was not refused
    repeat_hint: bool = False  # a hint line after a repeated identical action
    forced_next: bool = False  # after an action that a gate blocked, the one that is due is forced
    forced_checks: bool = False  # behind a query its validations and its run are forced, one after another
    skip_forced_calls: bool = False  # do not ask the model for an action that will be overridden
    auto_finish: bool = False  # no model call for ``finish`` after a successful run
    stop_at_action: bool = False  # the model stops behind its first complete action (the parser takes the last one)
    history_order: Literal["spec", "schema_first"] = "spec"  # schema_first: all questions of a database share a prefix
    thought_characters: int = Field(200, ge=1, le=4000)  # the longest thought with constrain action or sql
    native_tools: bool = False  # the model's own form of tool calls in place of Thought/Action lines; in no preset


class SingleShotConfig(_Frozen):
    """The control: the loop's own ``generate_sql`` prompt, once."""

    guardrails: bool = True  # the answer goes through the loop's guardrails
    samples: int = Field(1, ge=1, le=256)  # above 1: sampled candidates, the vote by result decides
    max_new_tokens: int = Field(256, ge=1)  # of each sample
    temperature: float = Field(0.8, ge=COLDEST)  # only for samples > 1
    top_p: float = Field(0.95, gt=0, le=1)  # only for samples > 1


class RepairConfig(_Frozen):
    """The guidance of ``repair_sql`` about a failure (docs/repair.md). The defaults are the specification's loop."""

    guidance: Literal["error", "patterns", "patterns+corpus"] = "error"  # besides the failed query
    deterministic: bool = False  # first try repairs that need no model: misspelled names, missing joins, dialects
    samples: int = Field(0, ge=0, le=64)  # where a repair fails again: so many sampled ones, the first that compiles
    grammar: bool = False  # a repair is written under the schema's grammar; SQLite only
    corpus: OwnFile = ""  # file of fixes for patterns+corpus, and for learn
    # after so long without similar fixes, guidance is that of the patterns
    search_s: float = Field(0.5, gt=0, le=MAX_TIMEOUT_S)
    milvus: OwnFile = ""  # search the corpus's vectors at http://HOST:19530 or in a Milvus Lite file; empty: in memory
    learn: bool = False  # store an episode's repair in the corpus; questions of training and development splits only
    threshold: float = Field(0.7, ge=0, le=1)  # cosine from which on a fix is shown


class CandidatesConfig(_Frozen):
    """The candidate-driven agent: ``n`` queries for a question, of which the best is given (docs/candidates.md)."""

    n: int = Field(8, ge=1, le=256)  # candidates per question
    greedy: bool = True  # the first is the control's own greedy answer
    constrained: bool = True  # the last is written under the schema's grammar, where the model takes grammars
    schema_orders: int = Field(1, ge=1, le=64)  # prompts that share them, each with the tables in another order
    temperature: float = Field(0.8, ge=COLDEST)  # of the others
    top_p: float = Field(0.95, gt=0, le=1)  # of the others
    # among those that run
    choose: Literal["first_executable", "vote", "logprob"] = "logprob"
    length_penalty: float = Field(0.0, ge=0, le=1)  # of probability: 1 the mean per token, 0 the whole query's
    # of choose logprob: of log(share of the candidates with the same rows), beside the query's own
    vote_weight: float = Field(1.0, ge=0)
    suspicion_weight: float = Field(2.0, ge=0)  # taken off a suspicious candidate; 0: not looked at
    # of choose logprob: no other candidate is asked for where the greedy one is so likely and not suspicious; 0: never
    confident_at: float = Field(0.0, ge=0, le=1)
    # no further view is asked where so large a share gives the same rows; 0: never
    agree: float = Field(0.0, ge=0, le=1)
    seconds: float = Field(0.0, ge=0)  # no further view is asked that would end later; 0: no limit
    # with choose logprob: no answer below it (docs/candidates.md)
    min_confidence: float = Field(0.0, ge=0, le=1)
    retry: int = Field(1, ge=0, le=10)  # repairs, where no candidate runs

    @property
    def asks_greedy_alone(self) -> bool:
        """Whether the greedy answer is asked for first, and others only where it is not sure."""
        return self.choose == "logprob" and self.confident_at > 0


class FewShotConfig(_Frozen):
    """Solved examples in ``generate_sql``'s prompt (docs/runs.md)."""

    k: int = Field(0, ge=0, le=50)  # examples; 0: none
    select: Literal["similar", "random", "fixed"] = "similar"  # fixed: the pool's first
    pool: OwnPool = ""  # NAME[:SPLIT] of a benchmark, or a JSONL file of {question, sql, db_id}
    same_database: bool = False  # also examples over the database that is asked


class KnowledgeConfig(_Frozen):
    """What is known of a database beside its schema, and queries that somebody verified (docs/knowledge.md)."""

    file: OwnFile = ""  # Markdown, or a semantic model of Open Semantic Interchange 1.0 in YAML
    descriptions: bool = False  # what a benchmark says of its columns, those that the question is about
    max_tokens: int = Field(400, ge=16)  # of both in a prompt; what the question is about comes first
    values: bool = True  # cell values that these texts name are looked up too (schema_text.values)
    verified: OwnFile = ""  # a YAML file of verified queries
    reuse: bool = True  # one that asks the same is the answer
    # the least share of the words of two questions that ask the same; 1: case and sentence marks alone may differ
    closeness: float = Field(0.6, ge=0, le=1)
    examples: int = Field(3, ge=0, le=20)  # verified queries shown in the prompt, where none is the answer


class UserConfig(_Frozen):
    """A simulated user, whom a loop asks what an ambiguous question means (docs/benchmarks.md)."""

    simulated: bool = False  # a benchmark's question is asked in its ambiguous form, where it has one
    patience: int = Field(3, ge=0)  # questions to the user above the number of ambiguities


class ReflectConfig(_Frozen):
    """Reflection and retry (docs/reflection.md)."""

    max_iterations: int = Field(3, ge=1, le=100)  # generations, the first one among them
    slow_s: float = Field(5.0, gt=0)  # a query that takes longer is reported as slow


class ExecutionConfig(_Frozen):
    """Bounds of every statement that a controller executes."""

    timeout_s: float = Field(10.0, gt=0, le=MAX_TIMEOUT_S)  # seconds of each statement
    max_rows: int = Field(10_000, ge=1)  # of each statement's result; what is more is cut and said


class SuspicionsConfig(_Frozen):
    """Checks of a query that ran: what is odd about it is said beside the answer (docs/suspicions.md)."""

    unknown_literal: bool = True  # no cell holds a text or number that a column is compared with
    type_mismatch: bool = True  # numbers are compared with texts
    join_beside_key: bool = True  # two tables are joined by other columns than their declared key
    fan_out: bool = True  # a join repeats the rows that a sum or mean is taken over
    empty_result: bool = True  # no row
    null_aggregate: bool = True  # the only values are NULL
    unused_value: bool = True  # the question names a value that the query does not hold
    unused_column: bool = True  # the question names a column that the query does not use
    repeated_column: bool = True  # the answer has a column twice
    low_confidence: float = Field(0.8, ge=0, le=1)  # the answer is held for less likely right than this; 0: off


class SessionConfig(_Frozen):
    """Conversations: what a follow-up question becomes before a controller sees it (docs/sessions.md)."""

    # auto: beside, or rules for an embedded model with an adapter; rewrite: the specification's prompt; oracle: the
    # benchmark's own
    resolve: Literal["auto", "beside", "rules", "rewrite", "concat", "none", "oracle"] = "auto"
    shown: int = Field(3, ge=1, le=10)  # earlier exchanges that concat and rewrite show
    shows: Literal["resolved_query", "user_query"] = "resolved_query"  # the question that rewrite shows of each
    max_tokens: int = Field(200, ge=1)  # of a rewritten question
    clarify: bool = False  # ask back where nothing of a question is in the schema, the values or the history


class VizqlConfig(_Frozen):
    """Structured queries: how they are checked, and how they are written and refined (docs/vizql.md)."""

    strict: bool = False  # the letter of the specification: no function on a dimension at all
    check_values: bool = True  # do values of SET and MATCH filters exist? one query, where there is a database
    api: Literal[20261, 20263] = 20263  # version of the service whose rules hold
    source: OwnFile = ""  # the data source, as YAML; empty: inferred from the database
    constrain: Literal["auto", "schema", "none"] = "auto"  # a JSON schema; auto: where the model takes one
    draft: Literal["json", "sql"] = "json"  # sql: the model drafts SQL, which is translated
    max_new_tokens: int = Field(300, ge=1)  # of a query, or of the SQL that it is drafted in
    refinements: int = Field(3, ge=0, le=3)  # the specification's most
    suggestions: bool = True  # the refiner is shown them
    apply_suggestions: bool = False  # the likeliest ones are carried out first; the model is asked where that fails
    # from here on, three of the specification's five improvements:
    accumulate: bool = True  # the refiner is shown the errors of earlier versions, and which one came back
    feedback: bool = True  # errors of execution, and odd results, are refined as well
    keep_valid: bool = True  # what was valid stays while the rest is mended


class EvalConfig(_Frozen):
    """Scoring, wherever it happens: what decides a verdict (docs/evaluation.md)."""

    # when two answers are the same: bag, bag~REL, spider, bird-set, bird-soft-f1, defog-subset, or a comparison of
    # one's own as FILE.py:function, package.module:function or a plugin's name (docs/adding/rule.md)
    rule: str = "bag"
    method: Literal["perturb", "suite"] = "perturb"  # replicas per database, or databases per question
    # how many, for TS; 0 = no TS; or a folder with databases in FOLDER/DB_ID/, or one that
    # ``nl2sql data replicas build --out`` wrote
    replicas: int | str = 5
    timeout_s: float = Field(30.0, gt=0, le=MAX_TIMEOUT_S)  # of each statement
    max_rows: int = Field(100_000, ge=1)  # of each statement's result

    @field_validator("rule")
    @classmethod
    def _own_rule_from_anywhere(cls, value: str) -> str:
        file, sep, function = value.partition(".py:")
        return f"{_from_anywhere(file + '.py')}:{function}" if sep else value

    @field_validator("replicas", mode="before")
    @classmethod
    def _number_or_folder(cls, value: Any) -> Any:
        text = str(value).strip() if isinstance(value, (str, Path)) else value
        number = int(text) if str(text).lstrip("-").isdigit() else text
        if number == "" or (isinstance(number, int) and number < 0):
            raise ValueError("expected 0 (no TS) or more, or a folder of databases")
        return _from_anywhere(number) if isinstance(number, str) else number  # scored again from elsewhere


class RewardConfig(_Frozen):
    """The reward of an episode in training: the sum of its parts, each times its weight (docs/environment.md).

    The weights are chosen and not measured; an answer that runs never earns less than one that does not.
    """

    ex: float = Field(0.2, ge=0)  # weight of EX: the rows are the gold's on the database
    ts: float = Field(0.7, ge=0)  # weight of TS: they are on each of its perturbed copies too
    format: float = Field(0.1, ge=0)  # weight of a query that runs, times the share of turns that could be read
    cost: float = Field(0.05, ge=0)  # weight of what is taken off for steps and tokens, half each; at most format's
    steps: int = Field(8, ge=1)  # from so many steps on, their half of the cost is taken off whole
    tokens: int = Field(1000, ge=1)  # from so many written tokens on, the other half is
    # seconds that a driven episode waits for the next completion before it ends
    wait_s: float = Field(600.0, gt=0, le=MAX_TIMEOUT_S)

    @model_validator(mode="after")
    def _what_runs_earns_something(self) -> RewardConfig:
        if self.cost > self.format:
            raise ValueError(f"reward.cost={self.cost:g} is above reward.format={self.format:g}: expected at most that")
        return self


class Config(_Frozen):
    """The whole resolved configuration of a run."""

    react: ReactConfig = ReactConfig()
    single_shot: SingleShotConfig = SingleShotConfig()
    schema_text: SchemaConfig = SchemaConfig()
    repair: RepairConfig = RepairConfig()
    candidates: CandidatesConfig = CandidatesConfig()
    few_shot: FewShotConfig = FewShotConfig()
    knowledge: KnowledgeConfig = KnowledgeConfig()
    user: UserConfig = UserConfig()
    reflect: ReflectConfig = ReflectConfig()
    suspicions: SuspicionsConfig = SuspicionsConfig()
    execution: ExecutionConfig = ExecutionConfig()
    session: SessionConfig = SessionConfig()
    vizql: VizqlConfig = VizqlConfig()
    eval: EvalConfig = EvalConfig()
    reward: RewardConfig = RewardConfig()
    prompts: dict[str, str] = {}  # prompt name -> text that replaces the packaged one
    # grammars, each level within the one before: the loop's turns, the SQL, SQL in one plain style (docs/grammars.md)
    # auto: plain on SQLite where the model takes grammars, none elsewhere
    constrain: Literal["none", "action", "sql", "plain", "auto"] = "none"
    seed: int = 0  # of sampling, and of the order of few-shot examples

    @property
    def constrains_sql(self) -> bool:
        """Whether every generated query is written under a grammar, which knows SQLite only."""
        return self.constrain in ("sql", "plain")

    @field_validator("prompts")
    @classmethod
    def _known_prompts(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - set(PROMPT_NAMES))
        if unknown:
            raise ValueError(f"unknown prompt {unknown[0]!r}; known prompts: {', '.join(PROMPT_NAMES)}")
        return value


CHECKS: dict[str, Any] = {"explain": True, "suggestions": True}  # beyond the specification's
LIKELIEST: dict[str, Any] = {"temperature": 1.3}  # samples that differ
HELPED: dict[str, Any] = {"schema_text": {"values": 4}, "repair": {"deterministic": True}}
SWITCHES = (  # of react_plus: on
    *("best_so_far", "repeat_hint", "skip_forced_calls", "auto_finish", "stop_at_action"),
    *("forced_checks", "forced_next"),
)
PRESETS: dict[str, dict[str, Any]] = {  # controller -> the config that it starts from; others start from the defaults
    "react_plus": {
        "react": dict.fromkeys(SWITCHES, True)
        | CHECKS
        | {"history_order": "schema_first", "max_steps": 16, "confident_at": 0.8, "repair_samples": 5},
        **HELPED,
        "candidates": LIKELIEST,
    },
    "reflect": {"react": CHECKS},
    "candidates": {"react": CHECKS},
    "vizql": {
        "constrain": "auto",
        "schema_text": {"values": 4},
        "few_shot": {"k": 3, "pool": "vizql:dev"},
        "vizql": {"draft": "sql"},
    },
    "best": {  # the best that this machine can: what `ask` does where nothing else is asked for (docs/candidates.md)
        "constrain": "auto",
        "react": {**CHECKS, "max_new_tokens": 128},
        **HELPED,
        "candidates": LIKELIEST | {"n": 24, "schema_orders": 4, "confident_at": 0.8, "agree": 0.8, "seconds": 8.0},
    },
}
