// @ts-check
/**
 * Three things to find out, noticed from what really happened in the live chat, kept in this browser. Each has a hint
 * that fills in what to try.
 */
import { $, announce, fill, h } from "./dom.js";
import { app, emit, keep, on, recall } from "./store.js";
import { chooseSystem, chooseWindow } from "./settings.js";
import { offer } from "./composer.js";
import { stepTo } from "./recorded.js";

const KEY = "pantheon.challenges";
const WHO = /\bwho\s*(are|r|'re|’re)\s*(you|u|ya)\b|\bwho\s+am\s+i\s+(talking|speaking|chatting)|\bwhat('?s| is| are)?\s+(you|your\s+name)\b|\bintroduce\s+yourself|\babout\s+yourself|\byour\s+name\b/i;

/** @type {{own: boolean, none: boolean, year: boolean, dropped: boolean}} */
const done = Object.assign({ none: false, own: false, year: false, dropped: false }, recall(localStorage, KEY));

const CHALLENGES = [
  {
    title: "Ask the model who it is with no system prompt of your own, then again with one.",
    hint: "Send “Who are you?” with no system prompt, then pick Pirate and send it again. The name the model gives comes from the system prompt.",
    complete: () => done.none && done.own,
    half: () => (done.none !== done.own ? (done.none ? "now with one" : "now without one") : ""),
    attempt: () => attempt(done.none ? "pirate" : "none", null, "Who are you?"),
  },
  {
    title: "Get the model to tell you what year it is.",
    hint: "Pick Today’s date and send messages until “What year is it?”. Then pick None and do the same.",
    complete: () => done.year,
    half: () => "",
    attempt: () => attempt("date", null, "What year is it?"),
  },
  {
    title: "Keep chatting until the app has to drop your first message to make room.",
    hint: "With a 256-token window, keep sending messages and watch the oldest turns drop out of what the model reads.",
    complete: () => done.dropped,
    half: () => "",
    attempt: () => attempt(null, 256, nextRecordedMessage()),
  },
];

export function startChallenges() {
  on("finished", notice);
  draw();
}

/**
 * Look at a finished turn.
 * @param {{turn: import("./types.js").Turn, chat: import("./types.js").Chat}} what
 */
function notice({ turn, chat }) {
  const before = CHALLENGES.map((challenge) => challenge.complete());
  const reply = chat.messages[turn.at + 1] ? chat.messages[turn.at + 1].content : "";
  const own = turn.reading ? turn.reading.pieces.some((piece) => piece.role === "system") : chat.system !== null;
  if (WHO.test(turn.user) && reply.trim()) done[own ? "own" : "none"] = true;
  const year = String(new Date().getFullYear());
  if (new RegExp(`(?<!\\d)${year}(?!\\d)`).test(reply) && !turn.user.includes(year)) done.year = true;
  const first = chat.messages.findIndex((message) => message.role === "user");
  if (turn.reading && turn.reading.dropped.some((out) => out.messages.includes(first))) done.dropped = true;
  keep(localStorage, KEY, done);
  draw();
  CHALLENGES.forEach((challenge, at) => {
    if (challenge.complete() && !before[at]) announce(`Challenge complete: ${challenge.title} ${count()} of 3.`);
  });
}

const count = () => CHALLENGES.filter((challenge) => challenge.complete()).length;

function draw() {
  $("challenge-count").textContent = `${count()} of 3 complete`;
  const badge = document.querySelector('[data-testid="challenge-count"] b');
  if (badge) badge.textContent = `${count()} of 3`;
  fill($("challenge-list"), ...CHALLENGES.map((challenge) => {
    const complete = challenge.complete();
    const state = complete ? "done" : challenge.half() || "not yet";
    return h("li", { class: complete ? "complete" : null, dataTestid: "challenge" },
      h("span", { class: "tick", ariaHidden: "true" }, complete ? "✓" : ""),
      h("div", null, h("p", { class: "goal" }, challenge.title, " ", h("span", { class: "state" }, `(${state})`)),
        h("p", { class: "hint" }, challenge.hint)),
      h("button", { type: "button", class: "quiet", onclick: challenge.attempt }, "Try this", h("span", { class: "hidden" }, `: ${challenge.title}`)));
  }));
}

/**
 * Fill in the settings and the message; where no model is, look at the recorded turn.
 * @param {string|null} system @param {number|null} window @param {string} message
 */
function attempt(system, window, message) {
  if (app.mode === "recorded" && app.status && app.status.model) {
    app.mode = "live";
    emit("mode");
  }
  if (system) chooseSystem(system);
  if (window) chooseWindow(window);
  if (app.mode === "live") {
    offer(message);
    announce("Filled in. Press Enter to send.");
  } else stepTo(message);
  $("chat").scrollIntoView({ block: "start" });
}

/** The first of the recorded messages that this chat has not had yet. */
function nextRecordedMessage() {
  const said = new Set((app.chat ? app.chat.messages : []).map((message) => message.content));
  const messages = (app.recorded && app.recorded.messages) || [];
  return messages.find((/** @type {string} */ text) => !said.has(text)) || "Tell me a story about a lighthouse.";
}
