// @ts-check
/**
 * The recorded conversation, for when no model is here yet: the same panels, filled from a file of what the engine
 * really read and wrote. One steps through its messages for each system prompt and window.
 */
import { $, announce, counted, fill, h, show } from "./dom.js";
import { app, emit, on } from "./store.js";
import * as api from "./api.js";
import { look } from "./reading.js";

/** The live turns while the recorded ones are looked at. @type {{turns: import("./types.js").Turn[], shown: number}} */
let aside = { turns: [], shown: -1 };

export async function startRecorded() {
  for (const radio of document.querySelectorAll('input[name="mode"]')) {
    radio.addEventListener("change", () => setMode(/** @type {any} */ (radio).value));
  }
  on("settings", () => app.mode === "recorded" && choose(Math.max(app.shown, 0)));
  on("turns", drawStepper);
  on("mode", drawMode);
  on("status", drawMode);
  try {
    app.recorded = await api.getRecorded();
    emit("recorded");
    if (app.mode === "recorded") choose(0);
  } catch (error) {
    if (app.mode === "recorded") fill($("stepper"), h("p", { class: "hint" }, error instanceof Error ? error.message : String(error)));
  }
}

/** @param {"live"|"recorded"} mode */
export function setMode(mode) {
  if (mode === app.mode || app.busy) {
    drawMode();
    return;
  }
  const now = { turns: app.turns, shown: app.shown };
  app.mode = mode;
  if (mode === "live") {
    app.turns = aside.turns;
    app.shown = aside.shown;
  } else {
    aside = now;
    app.turns = runOf() || [];
    app.shown = app.turns.length ? 0 : -1;
  }
  emit("mode");
  emit("turns");
  if (mode === "live") emit("settings");
}

/** The turns of the chosen system prompt and window; null if none were recorded. @returns {import("./types.js").Turn[]|null} */
function runOf() {
  const { recorded, system, window } = app;
  if (!recorded) return null;
  const size = window ?? recorded.windows[recorded.windows.length - 1];
  const run = recorded.runs[system] && recorded.runs[system][String(size)];
  if (!run) return null;
  return run.map((/** @type {number} */ index, /** @type {number} */ at) => turnOf(recorded.turns[index], at));
}

/** @param {any} kept @param {number} at @returns {import("./types.js").Turn} */
function turnOf(kept, at) {
  const { id, hex, logprob } = kept.reply.tokens;
  const tops = kept.reply.top || kept.reply.tokens.top || [];
  const tokens = id.map((/** @type {number} */ one, /** @type {number} */ n) =>
    ({ id: one, hex: hex[n], logprob: logprob ? logprob[n] : null, top: topOf(tops[n]) }));
  return {
    at: 2 * at, user: app.recorded.messages[at], reading: kept.reading, tokens, written: tokens.length, python: kept.python,
    reply: { text: kept.reply.text, finish_reason: kept.reply.finish_reason, limit: kept.reply.limit || app.recorded.limit },
  };
}

/** Lists of choices, or of columns. @param {any} top @returns {import("./types.js").Choice[]} */
function topOf(top) {
  if (!top) return [];
  if (Array.isArray(top)) return top.map((choice) => (Array.isArray(choice) ? { id: choice[0], hex: choice[1], logprob: choice[2] } : choice));
  return top.id.map((/** @type {number} */ id, /** @type {number} */ n) => ({ id, hex: top.hex[n], logprob: top.logprob[n] }));
}

/** Look at a turn of the run that the settings say. @param {number} at */
function choose(at) {
  const turns = runOf();
  app.turns = turns || [];
  app.shown = turns ? Math.min(at, turns.length - 1) : -1;
  emit("turns");
}

/** Look at the turn of a message. @param {string} message */
export function stepTo(message) {
  const at = app.turns.findIndex((turn) => turn.user.trim().toLowerCase() === message.trim().toLowerCase());
  if (at >= 0) look(at);
}

// ---- which conversation, and the way through the recorded one

function drawMode() {
  const model = app.status && app.status.model;
  for (const radio of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll('input[name="mode"]'))) {
    radio.checked = radio.value === app.mode;
    if (radio.value === "live") radio.disabled = !model;
  }
  show($("mode"), Boolean(model));
  show($("invite"), app.mode === "recorded");
  show($("stepper"), app.mode === "recorded");
  $("chat-title").textContent = app.mode === "recorded" && app.recorded ? `Recorded from ${app.recorded.model.title}` : "Chat";
  drawStepper();
}

function drawStepper() {
  if (app.mode !== "recorded" || !app.recorded) return;
  $("chat-title").textContent = `Recorded from ${app.recorded.model.title}`;
  const { turns, shown } = app;
  const root = $("stepper");
  if (!turns.length) {
    fill(root, h("p", { class: "hint" }, app.system === "own" ? "A prompt of your own needs the model: nothing was recorded for it." : "Nothing was recorded for these settings."));
    return;
  }
  if (!root.querySelector("button")) {
    fill(root, step("Back", -1), h("ol", { class: "dots" }), step("Next message", 1));
  }
  const [back, dots, next] = root.children;
  back.disabled = shown <= 0;
  next.disabled = shown >= turns.length - 1;
  fill(dots, ...turns.map((turn, at) => h("li", null,
    h("button", { type: "button", class: "dot", ariaCurrent: at === shown ? "step" : null, ariaLabel: `Message ${at + 1} of ${turns.length}: ${turn.user}`, onclick: () => look(at) }, String(at + 1)))));
}

/** @param {string} label @param {number} by */
function step(label, by) {
  return h("button", { type: "button", class: by > 0 ? "primary small" : "quiet", onclick: () => {
    const at = app.shown + by;
    if (at < 0 || at >= app.turns.length) return;
    look(at);
    const turn = app.turns[at];
    announce(`Message ${at + 1} of ${app.turns.length}. You: ${turn.user} The model: ${turn.reply ? turn.reply.text : ""} It read ${counted(turn.reading ? turn.reading.prompt_tokens : 0, "token")}.`);
  } }, label);
}
