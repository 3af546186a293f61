"use strict";
// What the page shows of one episode: facts, SQL, rows, attempts, trace. Put before page.js, whose helpers it calls.

function drawEpisode(question, verdict, episode, run) {
  const what = outcome(verdict);
  const parts = [make("div", "question", episode.question)];
  if (episode.evidence) parts.push(make("p", "dim", `Evidence: ${episode.evidence}`));
  if (episode.session) parts.push(...drawSession(episode.session));
  if (index.runs.length > 1) {
    const tabs = make("div", "tabs");
    index.runs.forEach((label, number) => {
      if (!question.r[number]) return;
      const button = make("button", "", mark(question.r[number], label), ` ${label}`);
      button.type = "button";
      button.setAttribute("aria-pressed", String(number === run));
      button.addEventListener("click", () => show(question, number));
      tabs.append(button);
    });
    parts.push(tabs);
  }
  const usage = episode.usage;
  const facts = [
    question.id, question.db, question.h, episode.cause, `ended by ${episode.finish}`, `${episode.steps} steps`,
    `${usage.model_calls} model calls`, `${(usage.prompt_tokens + usage.completion_tokens).toLocaleString("en")} tokens`,
    `${episode.seconds} s`,
    ...Object.entries(episode.verdicts).map(([name, on]) => `${name.toUpperCase()} ${on ? "✓" : "✗"}`),
    ...episode.violations,
  ];
  parts.push(make("div", "chips", make("span", `mark ${what}`, `${MARKS[what]} ${OUTCOMES[what]}`),
    ...facts.filter(Boolean).map((fact) => make("span", "chip", fact))));
  if (episode.error) parts.push(make("p", "alarm", episode.error));
  parts.push(drawNote(question, run));
  parts.push(make("h3", "", "SQL"), ...drawSql(episode, question.db), make("h3", "", "Rows"), drawRows(episode));
  const attempts = drawAttempts(episode);
  if (attempts.length > 1) parts.push(make("h3", "", `Attempts (${attempts.length})`), ...attempts);
  if (episode.saw.length) parts.push(make("h3", "", "What the model saw"), ...episode.saw.map(drawMessages));
  if (episode.calls.length) parts.push(drawCalls(episode));
  parts.push(make("h3", "", "Trace"), ...drawTrace(episode));
  return parts;
}

const KINDS = { act: "The loop's first call", sql: "The first call for SQL", repair: "The first call for a repair" };

function drawMessages({ kind, messages }) {
  const box = make("details", "", make("summary", "", KINDS[kind] || `The first call: ${kind}`));
  for (const [role, text] of messages) box.append(make("div", "dim", role), make("pre", "", text));
  return box;
}

function drawCalls(episode) {
  const names = ["", "call", "prompt tokens", "computed", "completion", "seconds"];
  const rows = episode.calls.map(([kind, prompt, computed, completion, seconds, cached], at) => make("tr", "",
    ...[at + 1, kind, prompt, computed, completion, cached ? "from the cache" : seconds].map((value) => make("td", "", String(value)))));
  const more = episode.usage.model_calls - rows.length;
  return make("details", "", make("summary", "", `Tokens and seconds of ${rows.length} model calls`),
    make("div", "result", make("table", "", make("thead", "", make("tr", "", ...names.map((name) => make("th", "", name)))),
      make("tbody", "", ...rows))), more > 0 ? make("div", "dim", `${more} more calls`) : null);
}

// What a turn of a dialogue was understood as, and why.
function drawSession(session) {
  const why = session.evidence.map((item) => `${item.kind}: ${item.text}`).join("; ");
  const line = session.is_followup ? `A follow-up (${why || "no evidence"}), by ${session.strategy}` : "Stands alone";
  const parts = [make("p", "dim", `Turn ${session.turn}. ${line}.`)];
  if (session.is_followup) parts.push(make("p", "resolved", `Understood as: ${session.resolved_query}`));
  if (session.fallback) parts.push(make("p", "dim", `Handed on as asked, with the previous SQL: ${session.fallback}`));
  return parts;
}

// Where nl2sql runs view serves the page: a link to its page that executes SQL on the databases of the open run.
function runLink(sql, database) {
  if (!document.body.dataset.sql) return null;
  const link = make("a", "run", "run this SQL");
  link.href = `${JSON.parse(document.body.dataset.sql)[openRun]}&${new URLSearchParams({ db: database, sql })}`;
  link.target = "_blank";
  return link;
}

// SQL with a button that copies it. Where the browser gives no clipboard (a file, a frame), the text is selected.
function withCopy(sql, block = make("pre", "", sql), database = null) {
  const button = make("button", "", "copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(sql);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(block);
      button.textContent = "selected";
    }
  });
  return make("div", "copied", block, button, database === null ? null : runLink(sql, database));
}

const bare = (sql) => sql.replace(/[;\s]+$/, "").trim();
const asWritten = (raw) => (raw ? [make("div", "dim", "as the model wrote it"), make("pre", "", raw)] : []);

function drawSql(episode, db) {
  const gold = episode.golds[0];
  const both = gold && episode.sql ? compareLines(gold, episode.sql) : null;
  const left = make("div", "", make("div", "dim", both ? "gold, what only it has is marked" : "gold"),
    gold ? withCopy(gold, both ? both[0] : undefined, db) : null);
  for (const other of episode.golds.slice(1)) left.append(make("div", "dim", "also accepted"), withCopy(other));
  const right = make("div", "", make("div", "dim", both ? "predicted, what only it has is marked" : "predicted"),
    episode.sql ? withCopy(episode.sql, both ? both[1] : undefined, db) : make("pre", "", "(no SQL)"));
  right.append(...asWritten(episode.raw_sql));
  for (const line of episode.suspicions || []) right.append(make("p", "dim", `suspicious, ${line}`));
  const parts = [gold ? make("div", "sides", left, right) : right];
  const control = episode.control;
  if (control) {
    const verdict = make("span", `mark ${control.ex ? "right" : "wrong"}`, control.ex ? "✓" : "✗");
    parts.push(make("div", "dim", "single_shot, the control ", verdict), make("pre", "", control.sql || control.raw || "(no SQL)"));
  }
  return parts;
}

function drawRows(episode) {
  const predicted = episode.result;
  const gold = episode.gold_result;
  const whole = gold && predicted.columns.length && gold.rows.length === gold.count && predicted.rows.length === predicted.count;
  const key = (row) => JSON.stringify(row);
  const marked = (mine, theirs) => {
    if (!whole) return mine.rows.map(() => false);
    const left = new Map();
    for (const row of theirs.rows) left.set(key(row), (left.get(key(row)) || 0) + 1);
    return mine.rows.map((row) => {
      const count = left.get(key(row)) || 0;
      left.set(key(row), count - 1);
      return count < 1;
    });
  };
  const goldSide = make("div", "", make("div", "dim", gold ? `gold, ${rowCount(gold)}` : "gold"));
  if (episode.gold_error) goldSide.append(make("p", "alarm", `the gold does not run: ${episode.gold_error}`));
  if (gold && !episode.gold_error) goldSide.append(drawTable(gold, marked(gold, predicted)));
  const side = make("div", "", make("div", "dim", `predicted, ${rowCount(predicted)}`));
  side.append(drawTable(predicted, gold && !episode.gold_error ? marked(predicted, gold) : predicted.rows.map(() => false)));
  return gold || episode.gold_error ? make("div", "sides", goldSide, side) : side;
}

const rowCount = (result) => `${result.more ? "at least " : ""}${result.count.toLocaleString("en")} ${result.count === 1 ? "row" : "rows"}`;

function drawTable(result, only) {
  const body = result.rows.map((row, at) => make("tr", only[at] ? "only" : "", ...row.map((value) =>
    (value === null ? make("td", "null", "NULL") : make("td", "", String(value))))));
  const head = make("tr", "", ...result.columns.map((name) => make("th", "", name)));
  const left = [];
  if (result.count > result.rows.length) left.push(`${(result.count - result.rows.length).toLocaleString("en")} more rows`);
  if (result.width > result.columns.length) left.push(`${result.width - result.columns.length} more columns`);
  if (!result.columns.length) return make("p", "dim", "no result");
  return make("div", "result", make("table", "", make("thead", "", head), make("tbody", "", ...body)),
    left.length ? make("div", "dim", `${result.more ? "at least " : ""}${left.join(", ")}`) : null);
}

const ALIKE = 0.5; // the share of words in common from which differences are worth marking

// Each candidate with its difference from the one before, and why it was refused later on, up to the next. Attempts that
// say the same again are one line.
function drawAttempts(episode) {
  const attempts = episode.trace
    .filter((record) => record.action === "generate_sql" || record.action === "repair_sql")
    .map(({ step, action, observation }) => ({ step, action, ...(observation || {}) }))
    .filter((attempt) => attempt.sql || attempt.raw_sql);
  const text = (one) => one.sql || one.raw_sql;
  const drawn = [];
  let again = [];
  const close = () => {
    if (again.length) drawn.push(make("div", "attempt dim", `step${again.length > 1 ? "s" : ""} ${again.join(", ")}: the same again`));
    again = [];
  };
  attempts.forEach((attempt, at) => {
    const until = at + 1 < attempts.length ? attempts[at + 1].step : Infinity;
    const refused = episode.decisions.filter((entry) => entry.status === "reject" && entry.step > attempt.step && entry.step < until);
    const reasons = [...new Set(refused.map((entry) => entry.reason))];
    const said = reasons.length ? make("p", "dim", `then: ${reasons.join("; ")}`) : null;
    const judged = episode.trace.find((record) => record.action === "reflect" && record.step > attempt.step && record.step < until);
    const last = attempts[at - 1];
    if (last && text(last) === text(attempt) && last.error === attempt.error && !said && !judged) {
      again.push(attempt.step);
      return;
    }
    close();
    const head = make("div", "dim", `step ${attempt.step}, ${attempt.action} `);
    if (attempt.error) head.append(make("span", "tag reject", attempt.error));
    const changed = at > 0 ? diff(text(attempts[at - 1]), text(attempt)) : { alike: 0 };
    if (changed.alike === 1) head.append("the same again");
    const block = changed.alike >= ALIKE ? changed.block : make("pre", "", text(attempt));
    drawn.push(make("div", "attempt", head, block, said, judged ? make("p", "dim", reflection(judged.observation)) : null));
  });
  close();
  return drawn;
}

// What the reflection controller thought of an attempt, and the parts of its quality score.
function reflection(seen) {
  if (typeof seen === "string") return seen; // cut, because it is long
  const parts = Object.entries(seen.quality_parts).map(([name, met]) => `${name.replace("_", "-")} ${met ? "yes" : "no"}`);
  return `quality ${seen.quality_score} of 100 (${parts.join(", ")}). ${seen.reflection_result.reasoning}.`;
}

function drawTrace(episode) {
  const parts = [];
  for (const record of episode.trace) {
    if ("llm" in record) {
      parts.push(make("div", "step", make("div", "dim", `step ${record.step}, model`), labelled(record.llm || "(nothing)")));
    } else if ("forced_action" in record) {
      const asked = record.requested_action || "no action";
      parts.push(make("div", "step forced", make("span", "tag forced", "forced"),
        `${asked} → ${record.forced_action} `, make("span", "dim", record.reason)));
    } else {
      parts.push(drawAction(record));
    }
  }
  if (!parts.length) parts.push(make("p", "dim", "This controller recorded no steps."));
  return parts;
}

function drawAction(record) {
  const seen = record.observation;
  const isObject = seen && typeof seen === "object";
  const judged = isObject && seen.reflection_result;
  const [kind, word] = record.mark;
  const tag = word && make("span", `tag ${kind}`, `${kind === "good" ? "✓" : "✗"} ${word}`);
  const args = record.action && record.args && Object.keys(record.args).length ? ` ${JSON.stringify(record.args)}` : "";
  const head = make("div", "", tag || null, make("b", "", record.action || "no action"),
    make("span", "dim", args));
  const body = [];
  if (judged) {
    body.push(make("p", "", reflection(seen)), ...[...judged.issues, ...seen.suggestions].map((text) => make("p", "dim", text)));
  } else if (isObject && typeof seen.sql === "string" && "raw_sql" in seen) {
    body.push(make("pre", "", seen.sql), ...asWritten(seen.raw_sql));
  } else if (isObject && Array.isArray(seen.rows) && Array.isArray(seen.columns)) {
    body.push(drawTable({ columns: seen.columns, width: seen.columns.length, rows: seen.rows, count: seen.row_count, more: seen.truncated }, []));
  } else {
    body.push(make("pre", "", plain(seen)));
  }
  return make("div", `step ${kind}`, head, ...body);
}

// An observation as text: an error by itself, a short record on one line.
function plain(seen) {
  if (typeof seen === "string") return seen;
  if (seen && typeof seen === "object" && Object.keys(seen).join() === "error") return String(seen.error);
  const line = JSON.stringify(seen) ?? "";
  return line.length <= 120 ? line : JSON.stringify(seen, null, 1);
}

function labelled(text) {
  const block = make("pre");
  for (const line of text.split(/(?<=\n)/)) {
    const found = /^\s*(Thought|Action|Observation):/.exec(line);
    if (found) block.append(make("span", "label", found[0]), line.slice(found[0].length));
    else block.append(line);
  }
  return block;
}

const words = (sql) => sql.match(/\s+|[A-Za-z_0-9.]+|'[^']*'|./gs) || [];
const sameWord = (x, y) => x === y || (/^\s+$/.test(x) && /^\s+$/.test(y)) || x.toLowerCase() === y.toLowerCase();

// The longest common subsequence, as steps ["both" | "del" | "ins", place in a, place in b].
function common(a, b, same) {
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = same(a[i], b[j]) ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const steps = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && same(a[i], b[j])) { steps.push(["both", i, j]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) { steps.push(["del", i, j]); i += 1; }
    else { steps.push(["ins", i, j]); j += 1; }
  }
  return { steps, alike: longest[0] / Math.max(1, a.length, b.length) };
}

function put(block, tag, text) {
  const last = block.lastChild;
  if (last && last.nodeName === tag.toUpperCase()) last.append(text);
  else block.append(tag === "#text" ? text : make(tag, "", text));
}

// Word by word: what only the first has is struck, what only the second has is marked. `alike` is the share of the longer
// text's words that both have.
function diff(before, after) {
  const a = words(before), b = words(after);
  const block = make("pre", "diff");
  if (a.length * b.length > 4e6) { block.append(after); return { block, alike: 0 }; }
  const { steps, alike } = common(a, b, sameWord);
  for (const [kind, i, j] of steps) put(block, kind === "both" ? "#text" : kind, kind === "del" ? a[i] : b[j]);
  return { block, alike };
}

// Two queries line by line, clause beside clause: in each pair of lines the words that the other has not are marked. A
// line without a partner faces an empty one.
function compareLines(gold, predicted) {
  const a = bare(gold).split("\n"), b = bare(predicted).split("\n");
  const left = make("pre", "diff"), right = make("pre", "diff");
  if (words(gold).length * words(predicted).length > 4e6) { left.append(gold); right.append(predicted); return [left, right]; }
  const clause = (line) => (/^\s*\(?\w+/.exec(line) || [line])[0].toUpperCase();
  common(a, b, (x, y) => clause(x) === clause(y)).steps.forEach(([kind, i, j], at) => {
    const [mine, theirs] = [kind === "ins" ? "" : words(a[i]), kind === "del" ? "" : words(b[j])];
    if (at) { left.append("\n"); right.append("\n"); }
    for (const [which, x, y] of common(mine, theirs, sameWord).steps) {
      if (which !== "ins") put(left, which === "both" ? "#text" : "del", mine[x]);
      if (which !== "del") put(right, which === "both" ? "#text" : "ins", theirs[y]);
    }
  });
  return [left, right];
}
