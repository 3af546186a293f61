"""A loop of one's own (docs/your-own-loop.md), of public names only: both sides of a comparison can run it."""

from typing import Any

from nl2sql import Episode

PROMPT = "Schema:\n{schema}\n\nQuestion: {question}\nSQL:"


def my_loop(question: Any, resources: Any, config: Any) -> Episode:
    """Ask, run, and ask once more with the error."""
    tables = resources.database.schema().tables
    schema = "\n".join(f"{t.name}({', '.join(c.name for c in t.columns)})" for t in tables)
    sql = ""
    for _ in range(2):
        prompt = PROMPT.format(schema=schema, question=question.text)
        messages = [{"role": "user", "content": prompt}]
        reply = resources.model.generate(messages, prefill="SELECT", stop=[";"], max_new_tokens=128)[0]
        sql = "SELECT" + reply.text
        result = resources.database.run(sql, timeout_s=10, max_rows=1000)
        if result.success:
            return Episode(question, "my_loop", sql=sql, raw_sql=sql, columns=result.columns, rows=result.rows)
        schema += f"\n-- a failed attempt: {sql!r}: {result.error}"
    return Episode(question, "my_loop", sql=sql, raw_sql=sql, error=f"database: {result.error}")
