// Notes and tags on an answer. Where nl2sql runs view serves the page they are written into the run's folder; in a file they
// are kept by the browser, and "Save notes" writes them as a file for `nl2sql runs failures --notes FILE`.

const KEPT = "nl2sql notes";
const noteKey = (question, run) => JSON.stringify([index.keys[run], question.db, question.id]);

function keptNotes() {
  try { return JSON.parse(localStorage.getItem(KEPT) || "{}"); } catch { return {}; } // a frame in a notebook keeps none
}

// What the browser has kept of this page's runs stands over what the file had in it.
function readNotes() {
  if (document.body.dataset.notes) return;
  const kept = keptNotes();
  for (const question of index.questions) {
    question.r.forEach((verdict, run) => {
      const note = verdict && kept[noteKey(question, run)];
      if (note) verdict.note = note.tags.length || note.note ? note : undefined;
    });
  }
}

async function keepNote(question, run, note) {
  question.r[run].note = note.tags.length || note.note ? note : undefined;
  const address = document.body.dataset.notes;
  if (!address) {
    try {
      localStorage.setItem(KEPT, JSON.stringify({ ...keptNotes(), [noteKey(question, run)]: note }));
      return "kept in this browser; Save notes makes a file of it";
    } catch { return "kept until the page is closed; Save notes makes a file of it"; }
  }
  const form = new URLSearchParams({ at: String(run), db: question.db, id: question.id, tags: note.tags.join(","), note: note.note });
  try {
    const answer = await fetch(address, { method: "POST", body: form });
    return answer.ok ? "saved in the run's folder" : "not saved: the server refused it";
  } catch { return "not saved: nl2sql runs view has ended"; }
}

function drawNote(question, run) {
  const { tags = [], note = "" } = question.r[run].note || {};
  const tagged = make("input");
  tagged.placeholder = "tags, separated by commas";
  tagged.value = tags.join(", ");
  tagged.setAttribute("aria-label", "Tags");
  const written = make("textarea");
  written.placeholder = "a note on this answer";
  written.rows = 2;
  written.value = note;
  written.setAttribute("aria-label", "Note");
  const said = make("span", "dim");
  const keep = async () => {
    const words = tagged.value.split(",").map((word) => word.trim()).filter(Boolean);
    said.textContent = await keepNote(question, run, { tags: words, note: written.value.trim() });
    draw();
    $("save-notes").hidden = !hasNotes();
  };
  for (const field of [tagged, written]) field.addEventListener("change", keep);
  const box = make("details", "note", make("summary", "", "Note and tags"), tagged, written, said);
  box.open = Boolean(tags.length || note);
  return box;
}

const hasNotes = () => !document.body.dataset.notes && index.questions.some((question) => question.r.some((verdict) => verdict && verdict.note));

function saveNotes() {
  const lines = index.questions.flatMap((question) => question.r.flatMap((verdict, run) => (verdict && verdict.note
    ? [JSON.stringify({ run: index.keys[run], db_id: question.db, id: question.id, ...verdict.note })] : [])));
  const file = make("a");
  file.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "application/jsonl" }));
  file.download = "notes.jsonl";
  file.click();
}
