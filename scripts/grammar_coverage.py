"""How many gold queries the SELECT grammar accepts, and what stops the others.

    python scripts/grammar_coverage.py spider packaged geoquery
    python scripts/grammar_coverage.py spider --styled [--plain]
    python scripts/grammar_coverage.py spider --show 5 --json

Each distinct gold of a database counts once, runs of blanks as one blank; with --styled as the training data has it:
full table names, no aliases; with --plain also under the plain grammar, which knows that style only. Golds that begin
with SELECT are tried under the grammar of the prefill SELECT, others under that of an empty prefill. The tokenizer is
the embedded model's.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from training.sql_style import in_style

from nl2sql.agents.grammars.plain_select import plain_grammar
from nl2sql.agents.grammars.select import select_grammar
from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.schema import RESERVED, Schema
from nl2sql.errors import DatabaseError
from nl2sql.interfaces import Benchmark, Grammar
from nl2sql.models.constrained import Constrainer
from nl2sql.models.embedded import pull

QUOTED = re.compile(r"""('(?:[^']|'')*'|"[^"]*"|`[^`]*`)""")


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+")
    parser.add_argument("--split")
    parser.add_argument("--styled", action="store_true")
    parser.add_argument("--plain", action="store_true", help="the grammar of --constrain plain; with --styled")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="the first N golds of every benchmark")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="N rejected golds of every cause")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(pull("smollm2-135m"))
    constrainer = Constrainer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    for name in options.benchmarks:
        split = "all" if name == "packaged" and options.split is None else options.split
        golds = islice(distinct_golds(load_benchmark(name, split=split), options.styled), options.limit or None)
        found = coverage(golds, tokenizer, constrainer, plain_grammar if options.plain else select_grammar)
        if options.json:
            print(json.dumps({"benchmark": name, **found}))
            continue
        print(f"{name}: {found['accepted']} of {found['golds']} golds accepted ({found['share']:.2%})")
        print(f"  compiling a schema: {found['compile_ms_mean']} ms (processor time) on average, ", end="")
        print(f"{found['compile_ms_max']} ms at most")
        for cause, golds in sorted(found["rejected"].items(), key=lambda item: -len(item[1])):
            print(f"  {len(golds):4d}  {cause}")
            for gold in golds[: options.show]:
                print(f"        {gold}")


def coverage(
    distinct: Iterable[tuple[str, Schema, str]],
    tokenizer: Any,
    constrainer: Constrainer,
    grammar: Callable[[Schema, str], Grammar],
) -> dict[str, Any]:
    """Golds, accepted golds, and the rejected ones by cause, each as ``database: accepted part >>> the rest``."""
    rejected: dict[str, list[str]] = {}
    seconds: dict[tuple[str, str], float] = {}
    golds = accepted = 0
    for db_id, schema, gold in distinct:
        prefill = "SELECT" if re.match(r"select\b", gold, re.IGNORECASE) else ""
        text = gold[len(prefill) :]
        began = time.thread_time()
        state = constrainer.start(grammar(schema, prefill))
        seconds.setdefault((db_id, prefill), time.thread_time() - began)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        taken = state._matcher.try_consume_tokens(ids)
        golds += 1
        if taken == len(ids) and state.accepting:
            accepted += 1
            continue
        before, after = tokenizer.decode(ids[:taken]), tokenizer.decode(ids[taken:])
        rejected.setdefault(cause(before, after, schema), []).append(f"{db_id}: {prefill}{before} >>> {after}")
    times = list(seconds.values())
    return {
        "golds": golds,
        "accepted": accepted,
        "share": accepted / golds if golds else 0.0,
        "compile_ms_mean": round(1000 * sum(times) / max(1, len(times))),
        "compile_ms_max": round(1000 * max(times, default=0.0)),
        "rejected": rejected,
    }


def distinct_golds(benchmark: Benchmark, styled: bool) -> Iterator[tuple[str, Schema, str]]:
    pairs = Counter((question.db_id, gold) for question in benchmark.questions for gold in question.gold)
    schemas: dict[str, Schema | None] = {}
    for db_id, gold in pairs:
        if db_id not in schemas:
            try:
                schemas[db_id] = benchmark.database(db_id).schema()
            except DatabaseError:  # a benchmark may lack a file; nothing of it can be executed either
                schemas[db_id] = None
        schema = schemas[db_id]
        if schema is not None:
            yield db_id, schema, squeezed((in_style(gold, schema) if styled else None) or gold)


def squeezed(sql: str) -> str:
    """One blank for each run of them outside quotes; without the semicolon."""
    parts = QUOTED.split(sql)
    text = "".join(part if i % 2 else re.sub(r"\s+", " ", part) for i, part in enumerate(parts))
    return text.strip().rstrip(";").strip()


def cause(before: str, after: str, schema: Schema) -> str:
    """What kind of word the grammar stopped at; a guess from the text alone."""
    begun = re.search(r"\w*\Z", before)
    word = re.match(r"\s*(\w*)", after)
    name = ((begun[0] if begun and not after[:1].isspace() else "") + (word[1] if word else "")).lower()
    names = {n.lower() for table in schema.tables for n in (table.name, *(c.name for c in table.columns))}
    if not after:
        return "it is not over: the grammar wants more"
    if name in names:
        return "a name of the schema where it does not belong (a column of another table, an unusual spelling)"
    if name and not name[0].isdigit() and name not in RESERVED:
        qualifies = re.match(r"\s*\w*\s*\.", after)
        if qualifies:
            return "an alias that is neither short nor like a table"
        return "a computed name before its definition"
    return f"syntax: {name.upper() or after.strip()[:1]}"


if __name__ == "__main__":
    main()
