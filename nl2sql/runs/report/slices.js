// The groups of `nl2sql runs compare`, by hardness and by feature of the gold: against the first run, or against the control
// where there is one run. Clicking a group lists its questions, clicking a count those won or lost.

const SLICES = { h: "hardness", joins: "joins", nesting: "nested queries", set_operation: "set operation", grouping: "grouping", ordering: "ordering" };
const VALUES = ["easy", "medium", "hard", "extra", "none", "0", "1", "2", "2+", "3+", "aggregate", "group", "having", "order", "limit", "order+limit"];
const place = (value) => (VALUES.includes(value) ? VALUES.indexOf(value) : VALUES.length);
const sliceOf = (question, name) => (name === "h" ? question.h : (question.g || {})[name]);

// What a run is held against: [is it right?, of what], or null where the question has no answer to compare with.
const isPaired = () => index.runs.length > 1;
const other = (question, run) => (isPaired() ? question.r[0] && question.r[0].ex : question.r[run].s);

function countSlices(run) {
  const rows = [];
  for (const name of Object.keys(SLICES)) {
    const groups = new Map();
    for (const question of index.questions) {
      const value = sliceOf(question, name);
      const mine = question.r[run];
      if (value === undefined || !mine) continue;
      const theirs = other(question, run);
      if (isPaired() && theirs === null) continue;
      const group = groups.get(value) || { n: 0, right: 0, theirs: 0, won: 0, lost: 0 };
      groups.set(value, group);
      group.n += 1;
      group.right += mine.ex;
      if (theirs === null) continue;
      group.theirs += theirs;
      group.won += Number(mine.ex && !theirs);
      group.lost += Number(!mine.ex && theirs);
    }
    for (const value of [...groups.keys()].sort((a, b) => place(a) - place(b))) rows.push([name, value, groups.get(value)]);
  }
  return rows;
}

function drawSlices() {
  const run = isPaired() ? Math.max(1, Number(filter.run || 0)) : 0;
  const against = isPaired() ? index.runs[0] : index.questions.some((question) => question.r[0] && question.r[0].s !== null) ? "single_shot" : null;
  const names = ["", "", "n", index.runs[run], ...(against ? [against, "points", "won", "lost"] : [])];
  const share = (count, n) => `${(100 * count / n).toFixed(1)}`;
  let last = "";
  const body = countSlices(run).map(([name, value, { n, right, theirs, won, lost }]) => {
    const chosen = { slice: `${name}=${value}`, run: String(run), answer: "" };
    const points = 100 * (right - theirs) / n;
    const cells = [link(value, chosen), n, share(right, n)];
    if (against) {
      const kinds = isPaired() ? ["better", "worse"] : ["won", "lost"];
      cells.push(share(theirs, n), `${points < 0 ? "−" : "+"}${Math.abs(points).toFixed(1)}`,
        won ? link(won, { ...chosen, answer: kinds[0] }) : 0, lost ? link(lost, { ...chosen, answer: kinds[1] }) : 0);
    }
    const head = make("th", "", name === last ? "" : SLICES[name]);
    last = name;
    return make("tr", "", head, ...cells.map((cell, at) => make("td", at ? "number" : "", cell instanceof Node ? cell : String(cell))));
  });
  $("slices-table").replaceChildren(
    make("thead", "", make("tr", "", ...names.map((text, at) => make("th", at > 1 ? "number" : "", text)))), make("tbody", "", ...body));
}

function link(text, chosen) {
  const button = make("button", "link", String(text));
  button.type = "button";
  button.addEventListener("click", () => {
    for (const [key, value] of Object.entries(chosen)) set(key, value);
    apply();
    $("questions").scrollIntoView();
  });
  return button;
}
