// @ts-check
/**
 * The box for messages: Enter sends, Shift+Enter makes a new line, Stop stands where Send stood.
 */
import { $, number, show } from "./dom.js";
import { app, on } from "./store.js";
import { problem, startTurn, stopTurn } from "./talk.js";
import { takeBack } from "./session.js";

const MOST_ROWS = 8;

export function startComposer() {
  const box = $("message");
  $("composer").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    send();
  });
  box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  box.addEventListener("input", fit);
  $("stop").addEventListener("click", () => {
    stopTurn();
    box.focus();
  });
  $("new-chat").addEventListener("click", () => takeBack("clear"));
  on("busy", draw);
  on("chat", draw);
  on("mode", draw);
  on("status", draw);
  draw();
}

/** Put a message into the box and go there. @param {string} text */
export function offer(text) {
  const box = $("message");
  box.value = text;
  fit();
  box.focus();
  box.setSelectionRange(text.length, text.length);
}

async function send() {
  const box = $("message");
  const text = box.value;
  if (!text.trim()) {
    problem("");
    box.focus();
    return;
  }
  if (app.busy) {
    startTurn("send", { text }); // says that it is still answering
    return;
  }
  box.value = "";
  fit();
  await startTurn("send", { text });
  fit();
}

/** As many lines as the text has, up to a few. */
function fit() {
  const box = $("message");
  box.style.setProperty("height", "auto");
  const line = parseFloat(getComputedStyle(box).lineHeight) || 24;
  box.style.setProperty("height", `${Math.min(box.scrollHeight + 2, line * MOST_ROWS)}px`);
}

function draw() {
  const live = app.mode === "live";
  show($("composer"), live);
  $("skip").href = live ? "#message" : "#log";
  show($("new-chat"), live);
  $("new-chat").disabled = app.busy || !app.chat || !app.chat.messages.some((message) => message.role !== "system");
  const focused = document.activeElement; // a focus on what goes away is lost, so it goes where it is of use
  const left = focused === $("stop") || focused === $("send") || $("messages").contains(focused);
  show($("stop"), app.busy);
  show($("send"), !app.busy);
  if (live && left && focused === $("stop") && !app.busy) $("message").focus();
  if (live && left && focused !== $("stop") && app.busy) $("stop").focus();
  const { chat } = app;
  const count = chat && chat.count ? number(chat.count) : "";
  if (!app.busy) $("next-count").textContent = count ? `${count} tokens so far` : ""; // while busy it stays: nothing moves
}
