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
  noted: ["with a note", (v) => v.note],
};
const AGAINST_FIRST = { better: "right, first run wrong", worse: "wrong, first run right", differ: "runs disagree" };
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
  select.addEventListener("change", () => { filter[key] = select.value; apply(); if (key === "run") drawSlices(); });
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
  if (!answers.some(([key]) => key === "noted")) answers.push(["noted", ANSWERS.noted]); // a note may come
  const against = index.runs.length > 1 ? Object.entries(AGAINST_FIRST) : [];
  choice("answer", "Answer", [["", "any answer"], ...answers.map(([key, [text]]) => [key, text]), ...against]);
  choice("hardness", "Hardness", [["", "any hardness"], ...counted(index.questions.map((question) => question.h))]);
  choice("db", "Database", [["", "any database"], ...counted(index.questions.map((question) => question.db))]);
  choice("cause", "Cause", [["", "any cause"], ...counted(verdicts.map((verdict) => verdict.c))]);
  choice("finish", "Ended by", [["", "any ending"], ...counted(verdicts.map((verdict) => verdict.f))]);
  const slices = countSlices(Number(filter.run || 0)).filter(([name]) => name !== "h");
  if (slices.length) choice("slice", "Gold query", [["", "any gold query"], ...slices.map(([name, value, { n }]) => [`${name}=${value}`, `${SLICES[name]}: ${value} (${n})`])]);
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
  const save = make("button", "", "Save notes");
  save.type = "button";
  save.id = "save-notes";
  save.hidden = !hasNotes();
  save.addEventListener("click", saveNotes);
  $("filters").append(reset, save);
}

// A filter as if it had been chosen by hand; one that the page does not have is left as it is.
function set(key, value) {
  if (key === "slice" && value.startsWith("h=")) { set("slice", ""); set("hardness", value.slice(2)); return; }
  if (key === "slice" && value) set("hardness", "");
  const control = $(`filter-${key}`);
  if (!control) return;
  control.value = value;
  filter[key] = value;
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
    if (filter.slice && sliceOf(question, filter.slice.split("=")[0]) !== filter.slice.split("=")[1]) return false;
    if (filter.answer === "better" && !(verdict.ex && question.r[0] && !question.r[0].ex)) return false;
    if (filter.answer === "worse" && !(!verdict.ex && question.r[0] && question.r[0].ex)) return false;
    if (answer && !answer[1](verdict)) return false;
    if (filter.answer === "differ" && new Set(question.r.filter(Boolean).map((found) => found.ex)).size < 2) return false;
    const { tags = [], note = "" } = verdict.note || {};
    const text = `${question.id} ${question.q} ${tags.join(" ")} ${note}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const order = (ORDERS[filter.order] || [])[1];
  if (order) shown.sort((a, b) => order(a.r[run]) - order(b.r[run]));
  $("count").textContent = `${shown.length.toLocaleString("en")} of ${index.questions.length.toLocaleString("en")}`;
  $("spacer").style.height = `${shown.length * ROW}px`;
  $("list").scrollTop = 0;
  draw();
  writeAddress();
}

// What is chosen stands in the address, so that a filtered list or an episode can be kept and sent.
const FILTERS = ["text", "answer", "hardness", "db", "cause", "finish", "slice", "order"];
function writeAddress() {
  if (location.protocol === "about:" || !index.ready) return; // a frame in a notebook has no address
  const said = new URLSearchParams();
  if (open) said.set("q", open.id);
  if (open || Number(filter.run || 0)) said.set("run", String(open ? openRun : Number(filter.run)));
  for (const key of FILTERS) if (filter[key] && filter[key] !== "id") said.set(key, filter[key]);
  history.replaceState(null, "", `#${said}`);
}

// An address may be old or cut: a choice that this page does not have is left out.
function readAddress(wanted) {
  for (const key of ["run", ...FILTERS]) {
    const control = $(`filter-${key}`);
    if (!control || !wanted.has(key)) continue;
    if (control.tagName === "SELECT" && ![...control.options].some((option) => option.value === wanted.get(key))) continue;
    control.value = wanted.get(key);
    filter[key] = control.value;
  }
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
  const { tags = [], note = "" } = verdict.note || {};
  const noted = tags.length || note ? `✎ ${tags.join(", ")}` : "";
  const about = [noted, question.id, question.db, question.h, verdict.c].filter(Boolean).join(" · ");
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
  writeAddress();
  const verdict = question.r[run];
  if (!verdict.at) {
    $("episode").replaceChildren(make("div", "question", question.q), make("p", "alarm", "The trace of this answer is missing."));
    return;
  }
  const [chunk, place] = verdict.at;
  const episode = (await unpack(`chunk-${chunk}`))[place];
  if (open !== question || openRun !== run) return; // another was clicked meanwhile
  const view = $("episode");
  view.replaceChildren(...drawEpisode(question, verdict, episode, run));
  view.scrollTop = 0;
}

// ------------------------------------------------------------------------------------------------------- start

(async () => {
  index = await unpack("index");
  readNotes();
  $("list-head").append(make("span", "", "question"), make("span", "", index.runs.length > 3 ? "runs in order · control" : [...index.runs, "control"].join(" · ")));
  buildFilters();
  const wanted = new URLSearchParams(location.hash.slice(1));
  readAddress(wanted);
  drawSlices();
  apply();
  index.ready = true;
  const run = Number(wanted.get("run")); // which is of one benchmark: two may have the same id
  const asked = index.questions.find((question) => question.id === wanted.get("q") && question.r[run]);
  if (asked) {
    await show(asked, run);
    $("questions").scrollIntoView();
  } else if (FILTERS.some((key) => wanted.has(key))) $("questions").scrollIntoView();
  root.dataset.ready = "yes";
})();
