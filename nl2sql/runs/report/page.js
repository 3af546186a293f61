"use strict";
// The list of questions and the view of one episode. Whatever a model, a database or a benchmark wrote is put into the
// page as text (textContent), never as markup. Data lies in <script> blocks as base64 of gzip of JSON.

const $ = (id) => document.getElementById(id);

function make(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

async function unpack(id) {
  const binary = atob($(id).textContent);
  const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// ------------------------------------------------------------------------------------------------ light and dark

const root = document.documentElement;
const isDark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
const nameTheme = () => { $("theme").lastElementChild.textContent = isDark() ? "light" : "dark"; };
$("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
nameTheme();

// ------------------------------------------------------------------------------------------------------ the list

const ROW = 47; // px, as .row in page.css
let index, shown = [], open = null, openRun = 0, drawn = "";
const filter = {};

const OUTCOMES = { right: "right", wrong: "wrong rows", failed: "did not run" };
const MARKS = { right: "✓", wrong: "✗", failed: "!" };
const outcome = (verdict) => (verdict.ex ? "right" : verdict.va ? "wrong" : "failed");
const ANSWERS = {
  right: ["right", (v) => v.ex],
  notright: ["wrong or did not run", (v) => !v.ex],
  wrong: ["wrong rows", (v) => outcome(v) === "wrong"],
  failed: ["did not run", (v) => outcome(v) === "failed"],
  won: ["right, control wrong", (v) => v.ex && v.s === 0],
  lost: ["wrong, control right", (v) => !v.ex && v.s === 1],
  forced: ["with a forced action", (v) => v.o],
};
const ORDERS = {
  id: ["by question", null],
  steps: ["most steps first", (v) => -v.n],
  tokens: ["most tokens first", (v) => -v.t],
};

function choice(key, label, options) {
  const select = make("select");
  select.setAttribute("aria-label", label);
  select.id = `filter-${key}`;
  for (const [value, text] of options) {
    const option = make("option", "", text);
    option.value = value;
    select.append(option);
  }
  select.addEventListener("change", () => { filter[key] = select.value; apply(); });
  $("filters").append(select);
}

function counted(values) {
  const counts = new Map();
  for (const value of values) if (value) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([value, count]) => [value, `${value} (${count.toLocaleString("en")})`]);
}

function buildFilters() {
  const search = make("input");
  search.type = "search";
  search.id = "filter-text";
  search.placeholder = "Words of a question, or its id";
  search.setAttribute("aria-label", "Search");
  search.addEventListener("input", () => { filter.text = search.value; apply(); });
  $("filters").append(search);
  const verdicts = index.questions.flatMap((question) => question.r.filter(Boolean));
  if (index.runs.length > 1) {
    choice("run", "Run", index.runs.map((label, number) => [String(number), label]));
    filter.run = "0";
  }
  const answers = Object.entries(ANSWERS).filter(([, [, test]]) => verdicts.some(test));
  const differ = index.runs.length > 1 ? [["differ", "runs disagree"]] : [];
  choice("answer", "Answer", [["", "any answer"], ...answers.map(([key, [text]]) => [key, text]), ...differ]);
  choice("hardness", "Hardness", [["", "any hardness"], ...counted(index.questions.map((question) => question.h))]);
  choice("db", "Database", [["", "any database"], ...counted(index.questions.map((question) => question.db))]);
  choice("cause", "Cause", [["", "any cause"], ...counted(verdicts.map((verdict) => verdict.c))]);
  choice("finish", "Ended by", [["", "any ending"], ...counted(verdicts.map((verdict) => verdict.f))]);
  choice("order", "Order", Object.entries(ORDERS).map(([key, [text]]) => [key, text]));
  const reset = make("button", "", "Clear");
  reset.type = "button";
  reset.addEventListener("click", () => {
    for (const control of $("filters").querySelectorAll("select, input")) {
      if (control.id === "filter-run") continue;
      if (control.tagName === "SELECT") control.selectedIndex = 0; else control.value = "";
      filter[control.id.slice("filter-".length)] = control.value;
    }
    apply();
  });
  $("filters").append(reset);
}

function apply() {
  const run = Number(filter.run || 0);
  const words = (filter.text || "").toLowerCase().split(/\s+/).filter(Boolean);
  const answer = ANSWERS[filter.answer];
  shown = index.questions.filter((question) => {
    const verdict = question.r[run];
    if (!verdict) return false;
    if (filter.hardness && question.h !== filter.hardness) return false;
    if (filter.db && question.db !== filter.db) return false;
    if (filter.cause && verdict.c !== filter.cause) return false;
    if (filter.finish && verdict.f !== filter.finish) return false;
    if (answer && !answer[1](verdict)) return false;
    if (filter.answer === "differ" && new Set(question.r.filter(Boolean).map((found) => found.ex)).size < 2) return false;
    const text = `${question.id} ${question.q}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const order = (ORDERS[filter.order] || [])[1];
  if (order) shown.sort((a, b) => order(a.r[run]) - order(b.r[run]));
  $("count").textContent = `${shown.length.toLocaleString("en")} of ${index.questions.length.toLocaleString("en")}`;
  $("spacer").style.height = `${shown.length * ROW}px`;
  $("list").scrollTop = 0;
  draw();
}

// Only the rows in sight are in the page; scrolling within those that are draws nothing.
function draw(scrolled = false) {
  const list = $("list");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW / 10) * 10 - 10);
  const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / ROW) + 30);
  if (scrolled && drawn === `${first} ${last}`) return;
  drawn = `${first} ${last}`;
  for (const row of [...list.querySelectorAll(".row")]) row.remove();
  for (let at = first; at < last; at += 1) list.append(drawRow(shown[at], at));
}

function drawRow(question, at) {
  const row = make("div", question === open ? "row open" : "row");
  row.style.top = `${at * ROW}px`;
  const run = Number(filter.run || 0);
  const verdict = question.r[run];
  const about = [question.id, question.db, question.h, verdict.c].filter(Boolean).join(" · ");
  const what = make("div", "what", make("div", "", question.q), make("div", "dim", about));
  const marks = make("div", "marks", ...question.r.map((found, number) => mark(found, index.runs[number])));
  if (verdict.s !== null) marks.append(mark({ ex: verdict.s, va: 1 }, "single_shot", "control"));
  row.append(what, marks);
  row.addEventListener("click", () => show(question, run));
  return row;
}

function mark(verdict, label, kind = "") {
  const what = verdict ? outcome(verdict) : "none";
  const node = make("span", `mark ${what} ${kind}`, verdict ? MARKS[what] : "–");
  node.title = `${label}: ${verdict ? (kind ? (verdict.ex ? "right" : "not right") : OUTCOMES[what]) : "not asked"}`;
  return node;
}

function move(by) {
  const at = shown.indexOf(open) + by;
  if (at < 0 || at >= shown.length) return;
  const list = $("list");
  if (at * ROW < list.scrollTop) list.scrollTop = at * ROW;
  if ((at + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * ROW - list.clientHeight;
  show(shown[at], Number(filter.run || 0));
}

$("list").addEventListener("scroll", () => requestAnimationFrame(() => draw(true)));
$("list").addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by) { event.preventDefault(); move(by); }
});
window.addEventListener("resize", () => draw());
for (const button of document.querySelectorAll("[data-cause]")) {
  button.addEventListener("click", () => {
    filter.cause = button.dataset.cause;
    $("filter-cause").value = filter.cause;
    apply();
    $("questions").scrollIntoView();
  });
}

// ------------------------------------------------------------------------------------------------- one episode

async function show(question, run) {
  open = question;
  openRun = run;
  draw();
  if (location.protocol !== "about:") { // a frame in a notebook has no address
    history.replaceState(null, "", `#q=${encodeURIComponent(question.id)}&run=${run}`);
  }
  const verdict = question.r[run];
  const [chunk, place] = verdict.at;
  const episode = (await unpack(`chunk-${chunk}`))[place];
  if (open !== question || openRun !== run) return; // another was clicked meanwhile
  const view = $("episode");
  view.replaceChildren(...drawEpisode(question, verdict, episode, run));
  view.scrollTop = 0;
}

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
  parts.push(make("h3", "", "SQL"), ...drawSql(episode), make("h3", "", "Rows"), drawRows(episode));
  const attempts = drawAttempts(episode);
  if (attempts.length > 1) parts.push(make("h3", "", `Attempts (${attempts.length})`), ...attempts);
  parts.push(make("h3", "", "Trace"), ...drawTrace(episode));
  return parts;
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

const bare = (sql) => sql.replace(/[;\s]+$/, "").trim();
const asWritten = (raw, sql) => (raw && bare(raw) !== bare(sql)
  ? [make("div", "dim", "as the model wrote it"), make("pre", "", raw)] : []);

function drawSql(episode) {
  const gold = episode.golds[0];
  const left = make("div", "", make("div", "dim", "gold"), make("pre", "", gold || ""));
  for (const other of episode.golds.slice(1)) left.append(make("div", "dim", "also accepted"), make("pre", "", other));
  const compared = gold && episode.sql ? diff(bare(gold), bare(episode.sql)) : null;
  const alike = compared !== null && compared.alike >= ALIKE;
  const right = make("div", "", make("div", "dim", alike ? "predicted, differences from gold marked" : "predicted"),
    alike ? compared.block : make("pre", "", episode.sql || "(no SQL)"));
  right.append(...asWritten(episode.raw_sql, episode.sql));
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

const rowCount = (result) => `${result.more ? "more than " : ""}${result.count.toLocaleString("en")} ${result.count === 1 ? "row" : "rows"}`;

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

// Each candidate with its difference from the one before, and why it was refused later on, up to the next.
function drawAttempts(episode) {
  const attempts = episode.trace
    .filter((record) => record.action === "generate_sql" || record.action === "repair_sql")
    .map(({ step, action, observation }) => ({ step, action, ...(observation || {}) }))
    .filter((attempt) => attempt.sql || attempt.raw_sql);
  return attempts.map((attempt, at) => {
    const head = make("div", "dim", `step ${attempt.step}, ${attempt.action} `);
    if (attempt.error) head.append(make("span", "tag reject", attempt.error));
    const text = (one) => one.sql || one.raw_sql;
    const changed = at > 0 ? diff(text(attempts[at - 1]), text(attempt)) : { alike: 0 };
    if (changed.alike === 1) head.append("the same again");
    const block = changed.alike >= ALIKE ? changed.block : make("pre", "", text(attempt));
    const until = at + 1 < attempts.length ? attempts[at + 1].step : Infinity;
    const refused = episode.decisions.filter((entry) => entry.status === "reject" && entry.step > attempt.step && entry.step < until);
    const reasons = [...new Set(refused.map((entry) => entry.reason))];
    const said = reasons.length ? make("p", "dim", `then: ${reasons.join("; ")}`) : null;
    const judged = episode.trace.find((record) => record.action === "reflect" && record.step > attempt.step && record.step < until);
    return make("div", "attempt", head, block, said, judged ? make("p", "dim", reflection(judged.observation)) : null);
  });
}

// What the reflection controller thought of an attempt, and the parts of its quality score.
function reflection(seen) {
  if (typeof seen === "string") return seen; // cut, because it is long
  const parts = Object.entries(seen.quality_parts).map(([name, met]) => `${name.replace("_", "-")} ${met ? "yes" : "no"}`);
  const next = seen.next_strategy ? ` Next: ${seen.next_strategy}.` : "";
  return `quality ${seen.quality_score} of 100 (${parts.join(", ")}). ${seen.reflection_result.reasoning}.${next}`;
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
      parts.push(drawAction(record, episode));
    }
  }
  if (!parts.length) parts.push(make("p", "dim", "This controller recorded no steps."));
  return parts;
}

function drawAction(record, episode) {
  const seen = record.observation;
  const isObject = seen && typeof seen === "object";
  const blocked = episode.decisions.some((entry) => entry.step === record.step && entry.status === "blocked");
  const judged = isObject && seen.reflection_result;
  const bad = isObject && (seen.error || seen.valid === false || seen.success === false || (judged && !judged.is_acceptable));
  const good = isObject && (seen.success === true || seen.valid === true || (judged && judged.is_acceptable));
  const kind = blocked ? "blocked" : bad ? "reject" : good ? "good" : "";
  const tag = { blocked: "blocked", reject: judged ? "not accepted" : "failed", good: judged ? "accepted" : seen && seen.success ? "ran" : "passed" }[kind];
  const args = record.action && record.args && Object.keys(record.args).length ? ` ${JSON.stringify(record.args)}` : "";
  const head = make("div", "", tag ? make("span", `tag ${kind}`, tag) : null, make("b", "", record.action || "no action"),
    make("span", "dim", args));
  const body = [];
  if (judged) {
    body.push(make("p", "", reflection(seen)), ...[...judged.issues, ...seen.suggestions].map((text) => make("p", "dim", text)));
  } else if (isObject && typeof seen.sql === "string" && "raw_sql" in seen) {
    body.push(make("pre", "", seen.sql), ...asWritten(seen.raw_sql, seen.sql));
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

// Word by word: the longest common subsequence; what only the first has is struck, what only the second has is marked.
// `alike` is the share of the longer text's words that both have.
function diff(before, after) {
  const words = (sql) => sql.match(/\s+|[A-Za-z_0-9.]+|'[^']*'|./gs) || [];
  const a = words(before), b = words(after);
  const block = make("pre", "diff");
  if (a.length * b.length > 4e6) { block.append(after); return { block, alike: 0 }; }
  const same = (x, y) => x === y || (/^\s+$/.test(x) && /^\s+$/.test(y)) || x.toLowerCase() === y.toLowerCase();
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = same(a[i], b[j]) ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  let i = 0, j = 0;
  const put = (tag, text) => {
    const last = block.lastChild;
    if (last && last.nodeName === tag.toUpperCase()) last.append(text);
    else block.append(tag === "#text" ? text : make(tag, "", text));
  };
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && same(a[i], b[j])) { put("#text", b[j]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) { put("del", a[i]); i += 1; }
    else { put("ins", b[j]); j += 1; }
  }
  return { block, alike: longest[0] / Math.max(1, a.length, b.length) };
}

// ------------------------------------------------------------------------------------------------------- start

(async () => {
  index = await unpack("index");
  $("list-head").append(make("span", "", "question"), make("span", "", index.runs.length > 3 ? "runs in order · control" : [...index.runs, "control"].join(" · ")));
  buildFilters();
  apply();
  const wanted = new URLSearchParams(location.hash.slice(1));
  const run = Number(wanted.get("run")); // which is of one benchmark: two may have the same id
  const asked = index.questions.find((question) => question.id === wanted.get("q") && question.r[run]);
  if (asked) {
    await show(asked, run);
    $("questions").scrollIntoView();
  }
  root.dataset.ready = "yes";
})();
