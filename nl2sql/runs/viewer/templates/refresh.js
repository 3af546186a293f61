"use strict";
// The table of runs, fetched anew every five seconds while somebody looks at it; what is ticked stays ticked.
const body = document.getElementById("rows");
setInterval(async () => {
  if (document.hidden) return;
  const answer = await fetch("rows").catch(() => null);
  if (!answer || !answer.ok) return;
  const ticked = new Set([...body.querySelectorAll("input:checked")].map((box) => box.value));
  const focused = document.activeElement && body.contains(document.activeElement) ? document.activeElement.value : null;
  body.innerHTML = await answer.text(); // our own server's table, every text in it escaped
  for (const box of body.querySelectorAll("input")) {
    box.checked = ticked.has(box.value);
    if (focused !== null && box.value === focused) box.focus();
  }
}, 5000);
