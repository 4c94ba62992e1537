// @ts-check
/**
 * The panel "What the model reads": draws the turn that is looked at. It learns of it from the store and changes nothing.
 */
import { $, announce, copyOnClick, counted, fill, h, number, show } from "./dom.js";
import { app, emit, on, shownTurn } from "./store.js";
import { drawBar } from "./bar.js";
import { textOf } from "./bytes.js";
import { lookAlikeTokens, promptCard, promptText, renderPrompt } from "./tokens.js";
import { makeRoving } from "./roving.js";
import { described } from "./visible.js";

/** @type {import("./types.js").Reading|null} */
let drawn = null;
let view = /** @type {"tokens"|"ids"|"text"} */ ("tokens");

export function startReading() {
  makeRoving($("prompt"), "[data-i]", (token) => (drawn ? promptCard(drawn, Number(token.dataset.i)) : null));
  for (const radio of document.querySelectorAll('input[name="view"]')) {
    radio.addEventListener("change", () => {
      view = /** @type {any} */ (radio).value;
      drawPrompt(drawn);
    });
  }
  on("turns", draw);
  on("mode", draw);
  on("settings", drawNotes);
  draw();
}

/** The reply has grown. @param {number} written tokens of it so far */
export function growReply(written) {
  if (drawn) drawBar($("window-bar"), drawn, written);
}

function draw() {
  const turn = shownTurn();
  const reading = turn ? turn.reading : null;
  drawPicker();
  show($("window-bar"), Boolean(reading));
  if (reading) drawBar($("window-bar"), reading, turn ? turn.written : 0);
  drawFacts(turn, reading);
  if (reading !== drawn || !reading) {
    drawn = reading;
    drawPrompt(reading);
    $("prompt-scroll").scrollTop = 0;
  }
  drawNotes();
}

/** Which turn is looked at, with a way to the others. */
function drawPicker() {
  const { turns, shown } = app;
  const picker = $("turn-picker");
  show(picker, turns.length > 0);
  if (!turns.length) return;
  if (!picker.firstChild) {
    const step = (/** @type {number} */ by) => () => look(app.shown + by);
    picker.append(h("button", { type: "button", class: "step", ariaLabel: "The turn before", onclick: step(-1) }, "‹"),
      h("span", { dataTestid: "turn" }, ""), h("button", { type: "button", class: "step", ariaLabel: "The next turn", onclick: step(1) }, "›"));
  }
  const [back, label, next] = picker.children;
  label.textContent = `Turn ${shown + 1} of ${turns.length}`;
  back.setAttribute("aria-disabled", String(shown <= 0));
  next.setAttribute("aria-disabled", String(shown >= turns.length - 1));
}

/** Look at another turn. @param {number} at */
export function look(at) {
  if (at < 0 || at >= app.turns.length || at === app.shown) return;
  app.shown = at;
  emit("turns");
  announce(`Turn ${at + 1} of ${app.turns.length}.`);
}

/** @param {import("./types.js").Turn|null} turn @param {import("./types.js").Reading|null} reading */
function drawFacts(turn, reading) {
  const facts = $("facts");
  if (!reading) {
    fill(facts);
    return;
  }
  const timings = turn && turn.reply && turn.reply.timings;
  const first = timings && timings.first_token_s != null ? timings.first_token_s : timings ? timings.prompt_s : null;
  fill(facts,
    fact("Read", counted(reading.prompt_tokens, "token")),
    fact("Reused", number(reading.reused_tokens)),
    fact("Read anew", number(reading.evaluated_tokens)),
    app.mode === "live" && fact("First token", first == null ? (app.busy ? "…" : "not known") : `${first.toFixed(2)} s`));
}

/** @param {string} name @param {string} value */
const fact = (name, value) => h("span", null, `${name} `, h("b", null, value));

// ---- notes: what a careful reader would ask about this turn

function drawNotes() {
  const list = $("notes");
  const reading = drawn;
  fill(list, ...(reading ? notesOf(reading) : []));
  show(list, Boolean(list.firstChild));
}

/** @param {import("./types.js").Reading} reading */
function notesOf(reading) {
  const notes = [];
  if (reading.inserted_system != null) {
    notes.push(note("system", "You gave no system prompt, so the template inserted its own: ", quoted(reading.inserted_system)));
  }
  if (reading.dropped.length) {
    const messages = reading.dropped.reduce((sum, out) => sum + out.messages.length, 0);
    const now = reading.dropped.filter((out) => out.newly).length;
    notes.push(note("dropped", `${counted(messages, "message")} left out to make room${now ? `, ${counted(now, "exchange")} of them in this turn` : ""}. Struck through below, with the reason.`));
  }
  if (reading.note) notes.push(note("again", `Why tokens were read again: ${reading.note}`));
  const where = lookAlikeTokens(reading);
  (reading.look_alikes || []).forEach((found, at) => {
    const of = found.message === null ? "A text" : `Message ${found.message} (${found.role})`;
    notes.push(note("alike", `${of} spells `, h("code", { dir: "ltr" }, described(found.text)),
      `. That is ordinary text, ${counted(where[at].length, "token")} of it: it opens and ends nothing. `,
      view !== "text" && h("button", { type: "button", class: "link", onclick: () => focusToken(where[at][0]) }, "Show it")));
  });
  if (app.mode === "live" && app.chat) {
    for (const text of app.chat.notes || []) notes.push(note("format", text));
    const changed = app.chat.reading === reading && app.chat.window !== reading.window;
    if (changed) notes.push(note("changed", `The window is ${number(app.chat.window)} tokens from the next turn on.`));
  }
  return notes;
}

/** @param {string} kind @param {...any} children */
const note = (kind, ...children) => h("li", { class: `note n-${kind}`, dataNote: kind }, h("span", null, ...children));

/** @param {string} text */
const quoted = (text) => h("q", { dir: "auto" }, text);

/** @param {number} n */
function focusToken(n) {
  const token = /** @type {HTMLElement|null} */ ($("prompt").querySelector(`[data-i="${n}"]`));
  if (!token) return;
  token.focus();
  token.scrollIntoView({ block: "center" });
}

// ---- the prompt itself

/** @param {import("./types.js").Reading|null} reading */
function drawPrompt(reading) {
  const root = $("prompt");
  const begun = performance.now();
  if (!reading) {
    fill(root, h("p", { class: "empty" }, "Nothing was read yet. With your first message you see here, token by token, the one text that the model reads: "
      + "what the template adds, the system prompt, and every message that the window has room for."));
    return;
  }
  if (view === "text") {
    const copy = h("button", { type: "button", class: "quiet" }, "Copy");
    copyOnClick(copy, () => promptText(reading));
    fill(root, h("div", { class: "plain-head" }, h("span", { class: "hint" }, `The whole prompt as text, in ${reading.template || "the template"}’s form.`), copy),
      h("pre", { class: "code plain", dir: "auto", tabindex: "0", role: "region", ariaLabel: "The prompt as text" }, promptText(reading)));
    return;
  }
  fill(root, key(reading), renderPrompt(reading, view), terms(reading));
  root.dataset.ms = (performance.now() - begun).toFixed(1); // for the test of the page's speed
}

const POLICIES = /** @type {Record<string, string>} */ ({
  drop_oldest: "when it does not fit, the oldest exchanges are left out",
  drop_to_fraction: "when it does not fit, the oldest exchanges are left out, several at once",
  error: "what does not fit is refused",
});

/** Which template, how the prompt begins, what ends the reply. @param {import("./types.js").Reading} reading */
function terms(reading) {
  const { id, hex } = reading.tokens;
  /** @param {number} token */
  const named = (token) => {
    const at = id.indexOf(token);
    return at < 0 ? [`id ${token}`] : [h("span", { class: "chip" }, described(textOf(hex[at]))), ` id ${token}`];
  };
  const ends = (reading.stop_ids || []).flatMap((token, at) => [at ? ", " : "", ...named(token)]);
  return h("p", { class: "hint terms", dataTestid: "terms" }, `Template: ${reading.template || "unknown"}. `,
    reading.bos == null ? "No beginning-of-sequence token. " : "It begins with ", ...(reading.bos == null ? [] : [...named(reading.bos), ". "]),
    "The reply ends at ", ...(ends.length ? ends : ["its limit alone"]), reading.policy ? `; ${POLICIES[reading.policy] || reading.policy}.` : ".");
}

/** What the colours and underlines say; only of origins that are there. @param {import("./types.js").Reading} reading */
function key(reading) {
  const used = [...new Set(reading.tokens.origin)].map((at) => reading.origins[at]);
  return h("p", { class: "key" }, h("span", { class: "hidden" }, "Where text comes from: "),
    h("span", { class: "chip" }, "control token"), ...used.map((origin) => h("span", { class: `t o-${origin}` }, origin)),
    reading.reused_tokens > 0 && h("span", { class: "t reused o-template" }, "pale: reused"));
}
