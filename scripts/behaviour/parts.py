"""The parts of a recording: a name, and the command line of ``nl2sql`` that is recorded under it."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = "smollm2-135m"  # the embedded model, by the name nl2sql knows
QUICK = ["eval", "--benchmark", "packaged", "--split", "quick", "-q", "--out", "run"]
MAKE_EVAL = [*QUICK, "--limit", "40", "--batch-size", "40", "--model", WEIGHTS, "--constrain", "plain"]
REAL = [
    "eval",
    "--benchmark",
    "packaged",
    "--split",
    "dev",
    "-q",
    "--out",
    "run",
    "--limit",
    "20",
    "--batch-size",
    "20",
]
REAL += ["--model", WEIGHTS, "--dtype", "float32", "--no-control", "--no-cache"]
SCORE = ["score", "--json", "--benchmark"]


def sets(*pairs: str) -> list[str]:
    """The words that set ``pairs`` (``key=value``) in the configuration."""
    return [word for pair in pairs for word in ("-c", pair)]


def parts(inputs: Path) -> dict[str, list[str]]:
    """Part -> command line of nl2sql, over the files of ``inputs``; ``_fixtures`` is react_fixtures.py."""

    def scripted(controller: str, *more: str, script: str = "scripts.json", control: bool = False) -> list[str]:
        model = f"scripted:{inputs / script}"
        words = [*QUICK, "--limit", "40", "--controller", controller, "--model", model, "--no-cache", *more]
        return words if control else [*words, "--no-control"]

    loop = f"{inputs / 'my_loop.py'}:my_loop"
    s16, patterns = "react.max_steps=16", "repair.guidance=patterns"
    full = sets("reflect.max_iterations=5", patterns)
    return {
        "eval_float32": [*MAKE_EVAL, "--dtype", "float32"],
        # -- every controller, scripted
        "scripted_react": scripted("react", control=True),
        "scripted_react_16_steps": scripted("react", *sets(s16)),
        "scripted_react_equal_tokens": scripted("react", "--equal-tokens", script="scripts_repeat.json", control=True),
        "scripted_react_deterministic": scripted("react", *sets(s16, "repair.deterministic=true")),
        "scripted_react_patterns": scripted("react", *sets(s16, patterns)),
        "scripted_react_bare": scripted(
            "react",
            *sets("react.guardrails=false", "react.repair=false", "react.vanilla=false", "react.run_gate=false"),
            *sets("react.forced_extraction=false", "react.finish_gate=false", "react.intent_gate=false"),
        ),
        "scripted_react_no_gates": scripted(
            "react",
            *sets("react.validation_gate=false", "react.constraints_gate=false", "react.use_link_schema=false"),
            *sets("react.postprocess=false", "react.projection_contract=false", "react.table_casing=false"),
        ),
        "scripted_react_no_constraints_gate": scripted("react", *sets(s16, "react.constraints_gate=false")),
        "scripted_react_schema_ddl": scripted(
            "react", *sets("schema_text.form=ddl", "schema_text.samples=2", "schema_text.values=4")
        ),
        "scripted_react_schema_none": scripted("react", *sets("schema_text.form=none", "schema_text.evidence=false")),
        "scripted_react_schema_small": scripted("react", *sets("schema_text.max_tokens=64")),
        "scripted_react_few_shot": scripted("react", *sets("few_shot.k=3", "few_shot.pool=packaged:dev")),
        "scripted_react_constrain_action": scripted("react", "--constrain", "action"),
        "scripted_react_constrain_sql": scripted("react", "--constrain", "sql"),
        "scripted_react_native_tools": scripted(
            "react", *sets("react.native_tools=true", s16), script="scripts_native.json"
        ),
        "scripted_react_small_window": scripted("react", *sets(s16), script="scripts_window.json"),
        "scripted_react_middle_window": scripted("react", *sets(s16), script="scripts_window_800.json"),
        "scripted_react_plus": scripted("react_plus", control=True),
        "scripted_react_plus_12_steps": scripted(
            "react_plus", *sets("react.max_steps=12", "repair.deterministic=true")
        ),
        "scripted_reflect": scripted("reflect", control=True),
        "scripted_reflect_full": scripted("reflect", *full),
        "scripted_reflect_deterministic": scripted("reflect", *sets("repair.deterministic=true")),
        "scripted_candidates": scripted("candidates", control=True),
        "scripted_candidates_vote": scripted("candidates", *sets("candidates.choose=vote", "candidates.retry=2")),
        "scripted_candidates_first": scripted("candidates", *sets("candidates.choose=first_executable")),
        "scripted_candidates_logprob": scripted(
            "candidates", *sets("candidates.choose=logprob", "candidates.schema_orders=2")
        ),
        "scripted_candidates_deterministic": scripted(
            "candidates", *sets("repair.deterministic=true", "candidates.n=3", "schema_text.values=4")
        ),
        "scripted_single_shot": scripted("single_shot"),
        "scripted_single_shot_raw": scripted("single_shot", *sets("single_shot.guardrails=false")),
        "scripted_single_shot_vote": scripted("single_shot", *sets("single_shot.samples=4")),
        "scripted_my_loop": scripted(loop, script="scripts_loop.json"),
        "scripted_seeds": scripted("react", "--seeds", "1,2", *sets("react.do_sample=true")),
        "react_fixtures": ["_fixtures"],
        # -- scoring
        "score_spider_1000": [*SCORE, "spider", "--split", "train", "-p", str(inputs / "spider_1000.jsonl")],
        "score_spider_300_rule_spider": [
            *SCORE,
            str(inputs / "spider300"),
            "--rule",
            "spider",
            "-p",
            str(inputs / "spider_300.jsonl"),
        ],
        "score_spider_300_rule_bird": [
            *SCORE,
            str(inputs / "spider300"),
            "--rule",
            "bird-set",
            "--replicas",
            "0",
            "-p",
            str(inputs / "spider_300.jsonl"),
            str(inputs / "spider_300_gold.jsonl"),
        ],
        "score_packaged_suite": [
            *SCORE,
            "packaged",
            "--split",
            "quick",
            "--method",
            "suite",
            "-p",
            str(inputs / "packaged_quick.jsonl"),
        ],
        "score_packaged_soft_f1": [
            *SCORE,
            "packaged",
            "--split",
            "quick",
            "--rule",
            "bird-soft-f1",
            "-p",
            str(inputs / "packaged_quick.jsonl"),
        ],
        # -- repairs that need no model
        "bench_repair": ["corpus", "bench", "--arms", "deterministic", "--out", "run", "--json", "-q"],
        "bench_repair_spider": [
            "corpus",
            "bench",
            "--arms",
            "deterministic",
            "--benchmark",
            "spider",
            "--split",
            "holdout",
            "--cases",
            "300",
            "--seed",
            "3",
            "--out",
            "run",
            "--json",
            "-q",
        ],
        "bench_repair_clickhouse": [
            "corpus",
            "bench",
            "--arms",
            "deterministic",
            "--dialect",
            "clickhouse",
            "--cases",
            "60",
            "--out",
            "{here}/run",
            "--json",
            "-q",  # a relative --out fails in the baseline: chdb's process opens an empty database
        ],
        # -- every controller, the embedded model
        "real_single_shot": [*REAL, "--controller", "single_shot"],
        "real_react_action": [*REAL, "--controller", "react", "--constrain", "action"],
        "real_react": [*REAL, "--controller", "react"],
        "real_react_plus": [*REAL, "--controller", "react_plus"],
        "real_reflect": [*REAL, "--controller", "reflect"],
        "real_candidates_logprob": [*REAL, "--controller", "candidates", *sets("candidates.choose=logprob")],
        "real_react_native_tools": [*REAL, "--controller", "react", *sets("react.native_tools=true")],
        "real_my_loop": [*REAL, "--controller", loop],
        # -- last: text in bfloat16 may hang on the batch, and float32 once more shows what is deterministic
        "eval_float32_again": [*MAKE_EVAL, "--dtype", "float32"],
        "eval_bfloat16": [*MAKE_EVAL, "--dtype", "bfloat16"],
        "eval_bfloat16_again": [*MAKE_EVAL, "--dtype", "bfloat16"],
        "real_candidates_logprob_again": [*REAL, "--controller", "candidates", *sets("candidates.choose=logprob")],
    }


def excluded(inputs: Path, benchmarks: str | None) -> dict[str, str]:
    """Part -> why it cannot be recorded here: no benchmarks, or inputs that were made without what it reads."""
    again = "then: record_behaviour.py inputs (it adds what is missing)"
    no_spider = ""
    if not benchmarks:
        no_spider = "NL2SQL_BENCHMARKS is not set (a folder with spider/ in it)"
    elif not (inputs / "spider300" / "train_spider.json").exists():
        no_spider = f"{inputs} has no predictions for Spider; {again}"
    no_weights = ""
    if not (inputs / "models" / WEIGHTS).is_dir():
        no_weights = f"{inputs} has no weights; nl2sql models pull {WEIGHTS}, {again}"
    reasons = {}
    for name, words in parts(inputs).items():
        reason = no_spider if "spider" in name else no_weights if WEIGHTS in words else ""
        if reason:
            reasons[name] = reason
    return reasons
