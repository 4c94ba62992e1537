// @ts-check
/**
 * The conversation as a list, live or recorded, and what can be done with its messages. It keeps its place while a
 * reply is written: it follows the end only if the end was in sight.
 */
import { $, copyText, counted, fill, h, announce } from "./dom.js";
import { app, on, shownTurn } from "./store.js";
import { look } from "./reading.js";
import { makeRoving } from "./roving.js";
import { endOf, lookAtTokens, replyCard, ReplyView } from "./reply.js";
import { startTurn } from "./talk.js";
import { offer } from "./composer.js";
import { takeBack } from "./session.js";

/** The reply that is being written. @type {{view: ReplyView, foot: HTMLElement, item: HTMLElement}|null} */
let running = null;
/** Which message is being edited, and with what text. */
let editing = -1;

export function startMessages() {
  makeRoving($("messages"), ".r", replyCard);
  on("chat", () => draw(false));
  on("recorded", () => draw(false));
  on("mode", () => draw(true));
  on("turns", mark);
  on("begin", begin);
  on("token", (token) => grow(() => running && running.view.push(token)));
  on("progress", (text) => running && (running.foot.textContent = text));
  draw(true);
}

/** The list as it is now. @param {boolean} toEnd */
function draw(toEnd) {
  if (app.busy && running) return;
  running = null;
  const messages = app.mode === "live" ? (app.chat ? app.chat.messages : []) : recordedMessages();
  follow(() => fill($("messages"), ...(messages.length ? messages.map(item).filter(Boolean) : [empty()])), toEnd && app.mode === "live");
  if (toEnd && app.mode === "recorded") scrollToLastMessage();
  mark();
}

/** @returns {import("./types.js").Message[]} */
function recordedMessages() {
  return app.turns.slice(0, app.shown + 1).flatMap((turn) => [
    { role: "user", content: turn.user },
    { role: "assistant", content: turn.reply ? turn.reply.text : "", cut: turn.reply ? turn.reply.finish_reason !== "stop" : false },
  ]);
}

function empty() {
  const words = app.mode === "live"
    ? ["Say something. ", "What the model reads for its answer appears beside the chat, token by token."]
    : ["No recorded conversation for these settings."];
  return h("li", { class: "empty" }, h("p", null, ...words), app.mode === "live" && ideas());
}

/** Something to begin with: the messages that were recorded. */
function ideas() {
  const messages = (app.recorded && app.recorded.messages) || [];
  return h("div", { class: "ideas" }, ...messages.map((/** @type {string} */ text) =>
    h("button", { type: "button", class: "idea", onclick: () => offer(text) }, text)));
}

/** The turn that a message at an index belongs to. @param {number} index */
function turnOf(index) {
  return app.turns.findLastIndex((turn) => turn.at <= index);
}

/** @param {import("./types.js").Message} message @param {number} index */
function item(message, index) {
  if (message.role === "system") return null;
  if (message.role === "user") return userItem(message, index);
  const turn = app.turns[turnOf(index)];
  const belongs = turn && turn.at === index - 1;
  const view = viewOf(message, belongs ? turn : null);
  return assistantItem(view, belongs ? turn : null, index, message);
}

/** @param {import("./types.js").Message} message @param {number} index */
function userItem(message, index) {
  const live = app.mode === "live";
  const body = editing === index ? editor(message, index) : h("div", { class: "body", dir: "auto" }, message.content);
  return h("li", { class: "msg user", dataIndex: index, dataTestid: "user-message" }, h("div", { class: "who" }, "You"), body,
    h("div", { class: "acts" }, live && editing !== index && button("Edit", () => edit(index))));
}

/**
 * A reply token by token, or as a text where its tokens are not known (after a reload).
 * @param {import("./types.js").Message} message
 * @param {import("./types.js").Turn|null} turn
 */
function viewOf(message, turn) {
  if (turn && turn.tokens.length) {
    const view = new ReplyView("", stopsOf(turn));
    for (const token of turn.tokens) view.push(token);
    if (view.agree(message.content)) return view;
  }
  return new ReplyView(message.content);
}

/** @param {import("./types.js").Turn} turn */
const stopsOf = (turn) => (turn.reading && turn.reading.stop_ids) || [];

/**
 * @param {ReplyView} view
 * @param {import("./types.js").Turn|null} turn
 * @param {number} index
 * @param {import("./types.js").Message|null} message null while it is being written
 */
function assistantItem(view, turn, index, message) {
  const foot = h("p", { class: "foot", dataTestid: "reply-end" }, message ? footOf(turn, message) : "");
  const title = app.mode === "live" ? app.chat && app.chat.model && app.chat.model.title : app.recorded && app.recorded.model.title;
  const last = app.mode === "live" && app.chat && index === app.chat.messages.length - 1;
  return h("li", { class: "msg assistant", dataIndex: index, dataTestid: "assistant-message" },
    h("div", { class: "who" }, title || "Model"), view.element, foot,
    h("div", { class: "acts" }, ...(message ? replyActs(view, turn, index, message, Boolean(last)) : [])));
}

/** @param {import("./types.js").Turn|null} turn @param {import("./types.js").Message} message */
function footOf(turn, message) {
  const reply = turn && turn.reply;
  if (!turn || !reply) return message.cut ? "Not finished" : "";
  const parts = [endOf(reply)];
  const count = reply.usage ? reply.usage.generated_tokens : turn.tokens.length;
  if (reply.finish_reason !== "length") parts.push(counted(count, "token")); // else the limit is said already
  const { timings } = reply;
  if (timings && timings.first_token_s != null) parts.push(`first after ${timings.first_token_s.toFixed(2)} s`);
  if (timings && reply.usage && timings.decode_s > 0 && reply.usage.generated_tokens > 1) {
    parts.push(`${(reply.usage.generated_tokens / timings.decode_s).toFixed(0)} tokens/s`);
  }
  if (app.mode === "live" && app.sampling.on && reply.seed !== undefined) parts.push(`seed ${reply.seed}`);
  return parts.join(" · ");
}

/**
 * @param {ReplyView} view
 * @param {import("./types.js").Turn|null} turn
 * @param {number} index
 * @param {import("./types.js").Message} message
 * @param {boolean} last
 */
function replyActs(view, turn, index, message, last) {
  const acts = [];
  if (view.count) {
    const toggle = button("Tokens", () => {
      const looking = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(looking));
      lookAtTokens(view.element, looking);
    });
    toggle.setAttribute("aria-pressed", "false");
    toggle.title = "Each token with its probability and the likeliest others: arrow keys, pointer or tap";
    acts.push(toggle);
  }
  if (turn && turn.reading && app.turns.length > 1) acts.push(button("What it read", () => look(turnOf(index)), "show-turn"));
  acts.push(button("Copy", async () => announce((await copyText(message.content)) ? "Copied." : "The browser did not allow copying.")));
  if (!last || !app.chat) return acts;
  acts.push(button("Regenerate", () => startTurn("regenerate")));
  if (message.cut || (turn && turn.reply && turn.reply.finish_reason !== "stop")) acts.push(button("Continue", () => startTurn("continue")));
  acts.push(button("Undo", () => takeBack("undo")));
  if (app.chat.alternatives > 1) acts.push(h("span", { class: "hint" }, `Version ${app.chat.chosen + 1} of ${app.chat.alternatives}`));
  return acts;
}

/** @param {string} text @param {() => void} onclick @param {string} [name] */
const button = (text, onclick, name) => h("button", { type: "button", class: `link ${name || ""}`, onclick }, text);

// ---- editing

/** @param {number} index */
function edit(index) {
  if (app.busy) return;
  editing = index;
  draw(false);
  const box = /** @type {HTMLTextAreaElement|null} */ ($("messages").querySelector(".editor textarea"));
  if (box) box.focus();
}

/** @param {import("./types.js").Message} message @param {number} index */
function editor(message, index) {
  const box = h("textarea", { dir: "auto", rows: Math.min(8, message.content.split("\n").length + 1), ariaLabel: "Your message, changed" });
  box.value = message.content;
  const leave = () => {
    editing = -1;
    draw(false);
    const back = $("messages").querySelector(`[data-index="${index}"] .acts button`);
    if (back) back.focus();
  };
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") leave();
  });
  return h("form", { class: "editor", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = box.value;
    if (!text.trim()) return;
    editing = -1;
    startTurn("edit", { index, text });
    $("message").focus();
  } }, box, h("div", { class: "acts" }, h("button", { class: "primary small" }, "Send"), button("Cancel", leave)),
  h("p", { class: "hint" }, "What follows this message is dropped."));
}

// ---- a reply that is being written

/** @param {{action: string, text: string|null, index: number, turn: import("./types.js").Turn, base: string}} what */
function begin({ action, text, index, turn, base }) {
  editing = -1;
  const messages = (app.chat ? app.chat.messages : []).slice(0, index);
  const view = new ReplyView(turn.tokens.length ? "" : base, stopsOf(turn));
  for (const token of turn.tokens) view.push(token);
  const items = messages.map(item).filter(Boolean);
  if (text !== null) items.push(userItem({ role: "user", content: text }, index));
  const last = assistantItem(view, turn, index + (text === null ? 0 : 1), null);
  const foot = last.querySelector(".foot");
  foot.textContent = action === "continue" ? "Going on…" : "Reading…";
  fill($("messages"), ...items, last);
  running = { view, foot, item: last };
  scrollToEnd();
}

/** Change the list without losing its place. @param {() => void} change */
function grow(change) {
  follow(change, false);
}

/** @param {() => void} change @param {boolean} toEnd */
function follow(change, toEnd) {
  const log = $("log");
  const atEnd = toEnd || log.scrollHeight - log.scrollTop - log.clientHeight < 48;
  change();
  if (atEnd) scrollToEnd();
}

function scrollToEnd() {
  const log = $("log");
  log.scrollTop = log.scrollHeight;
}

/** So that one reads from the question on. */
function scrollToLastMessage() {
  const log = $("log");
  const questions = $("messages").querySelectorAll(".msg.user");
  const last = questions[questions.length - 1];
  if (last) log.scrollTop += last.getBoundingClientRect().top - log.getBoundingClientRect().top - 12;
}

/** Mark the reply whose reading is looked at. */
function mark() {
  if (app.mode === "recorded" && !running) {
    const messages = recordedMessages();
    if ($("messages").querySelectorAll(".msg").length !== messages.length || $("messages").dataset.run !== runName()) {
      $("messages").dataset.run = runName();
      fill($("messages"), ...(messages.length ? messages.map(item).filter(Boolean) : [empty()]));
      scrollToLastMessage();
    }
  } else delete $("messages").dataset.run;
  const turn = shownTurn();
  for (const element of $("messages").children) {
    const belongs = turn !== null && app.turns.length > 1 && Number(element.dataset.index) === turn.at + 1;
    element.classList.toggle("shown", belongs);
  }
}

const runName = () => `${app.system} ${app.window} ${app.mode}`;
