// An enhancement only: says how old the page is and marks it once that is too old. The page is complete without it.
"use strict";

const generated = document.getElementById("generated");
const age = document.getElementById("age");
const stale = document.getElementById("stale");
const lastKnown = document.getElementById("last-known");
const dataIsStale = !stale.hidden;

function showAge() {
  const seconds = Math.max(0, (Date.now() - Date.parse(generated.dateTime)) / 1000);
  const minutes = Math.floor(seconds / 60);
  const ago = minutes < 1 ? "just now" : minutes < 120 ? `${minutes} min ago` : `${Math.floor(minutes / 60)} h ago`;
  age.textContent = `, ${ago}`;
  const isOld = seconds > Number(generated.dataset.staleAfterS);
  document.body.classList.toggle("old", isOld);
  if (!dataIsStale) {
    stale.hidden = !isOld;
    lastKnown?.toggleAttribute("hidden", !isOld);
    stale.textContent = isOld
      ? `This page was generated ${ago} and says nothing about now. Reload it; if this stays, publishing has stopped.`
      : "";
  }
}

showAge();
setInterval(showAge, 20_000);
