// @ts-check
/**
 * "The same in Python": the program of the turn that is looked at. The server writes it when the section comes into
 * sight; recorded turns bring their own.
 */
import { $, copyOnClick, show } from "./dom.js";
import { app, on, shownTurn } from "./store.js";
import * as api from "./api.js";

let inSight = false;
let asked = 0;

export function startPython() {
  copyOnClick($("copy-python"), () => $("python-code").textContent || "");
  new IntersectionObserver((entries) => {
    inSight = entries.some((entry) => entry.isIntersecting);
    draw();
  }, { rootMargin: "300px" }).observe($("python"));
  on("turns", draw);
  on("mode", draw);
  on("busy", draw);
}

async function draw() {
  const turn = shownTurn();
  const mine = ++asked;
  show($("python"), Boolean(turn && turn.reading));
  if (!turn || !turn.reading || !inSight) return;
  if (turn.python === undefined) {
    const latest = app.mode === "live" && app.shown === app.turns.length - 1 && app.chat;
    if (!latest) {
      put("# The server keeps the program of the latest turn. Look at that one to see it.");
      return;
    }
    if (app.busy) {
      put("# It is written when the reply is complete.");
      return;
    }
    try {
      turn.python = await api.python(latest.id);
    } catch (error) {
      if (mine === asked) put(`# ${error instanceof Error ? error.message : error}`);
      return;
    }
  }
  if (mine === asked) put(turn.python);
}

/** @param {string} text */
function put(text) {
  const code = $("python-code");
  if (code.textContent !== text) code.textContent = text;
}
