// @ts-check
/**
 * This tab's conversation on the server: made when it is needed, kept over a reload, made anew when the server forgot
 * it, and never shared with another tab.
 *
 * The one thing to know first: the server may forget a chat at any time (it was started again, or it needed the room).
 * So the tab keeps the messages, and a chat that is gone is made again from them. Nothing is lost but the reused prefix.
 */
import { $, announce } from "./dom.js";
import { app, emit, keep, on, recall } from "./store.js";
import * as api from "./api.js";
import { problem } from "./talk.js";
import { sampleText } from "./prompts.js";
import { holdOpen } from "./alive.js";

const KEY = "pantheon.chat";
const TABS = "pantheon.tabs";
const NOTICE_MS = 15000; // how long a notice stays that nothing has to be done about

/** @typedef {{id: string, messages: import("./types.js").Message[], settings: any}} Kept */

/** What the settings say of a chat. */
function wishes() {
  return { system: sampleText(app.system), window: app.window };
}

/** Keep what a reload needs. */
export function remember() {
  const { chat, model, system, ownText, window, sampling } = app;
  keep(sessionStorage, KEY, { id: chat ? chat.id : "", messages: chat ? said(chat.messages) : [], settings: { model, system, ownText, window, sampling } });
}

/** Without the system text, which the settings have. @param {import("./types.js").Message[]} messages */
const said = (messages) => messages.filter((message) => message.role !== "system").map(({ role, content }) => ({ role, content }));

/** The settings of before the reload, to begin with. */
export function recallSettings() {
  const kept = /** @type {Kept|null} */ (recall(sessionStorage, KEY));
  if (kept && kept.settings) Object.assign(app, kept.settings);
}

/** After the status is known: the conversation of before the reload, if there was one. */
export async function startSession() {
  window.addEventListener("pagehide", () => {
    remember();
    if (app.chat) api.release(app.chat.id);
  });
  on("settings", () => {
    remember();
    if (app.mode === "live") sync();
  });
  const kept = /** @type {Kept|null} */ (recall(sessionStorage, KEY));
  if (!kept || !kept.id || !app.status || !app.status.model) return;
  if (await isTaken(kept.id)) {
    await make(kept.messages);
    return;
  }
  try {
    adopt(await api.getChat(kept.id));
  } catch {
    if (kept.messages.length) await make(kept.messages);
  }
}

/** The chat, made now if there is none yet; null if that was refused, and said. @returns {Promise<import("./types.js").Chat|null>} */
export async function ensureChat() {
  return app.chat || make([]);
}

/** @param {import("./types.js").Message[]} messages */
async function make(messages) {
  const chat = await api.createChat({ model: app.model, ...wishes(), messages });
  adopt(chat);
  return chat;
}

/** From here on this is the tab's chat. @param {import("./types.js").Chat} chat */
function adopt(chat) {
  app.chat = chat;
  const at = chat.messages.findLastIndex((message) => message.role === "user");
  if (app.mode === "live") {
    app.turns = chat.reading && at >= 0 ? [{ at, user: chat.messages[at].content, reading: chat.reading, reply: null, tokens: [], written: 0 }] : [];
    app.shown = app.turns.length - 1;
    emit("turns");
  }
  remember();
  holdOpen(chat.id, lost);
  claim(chat.id);
  emit("chat");
}

/** A new chat with another model. @param {string} name */
export async function talkWith(name) {
  const { chat, model } = app;
  app.model = name;
  try {
    await make([]);
    if (chat) api.release(chat.id);
    $("message").focus();
  } catch (error) {
    app.model = model;
    problem(error instanceof Error ? error.message : String(error));
  }
}

/** Let the chat on the server have the system prompt and the window that are chosen. Waits for a running reply. */
export async function sync() {
  const { chat } = app;
  if (!chat || app.busy) return;
  const { system, window } = wishes();
  const same = chat.system === system && chat.window === (window ?? chat.context_length);
  if (same) return;
  try {
    app.chat = await api.changeChat(chat.id, { system, window });
    const moved = app.chat.messages.length - chat.messages.length; // a system text came or went: indices moved
    for (const turn of app.turns) turn.at += moved;
    problem("");
    emit("chat");
    emit("turns");
  } catch (error) {
    if (!(error instanceof api.Refusal)) throw error;
    if (error.type === "unreachable" || error.status === 404) await lost();
    else problem(error.message);
  }
}

/** Undo the last exchange, or begin anew with the same settings. @param {"undo"|"clear"} what */
export async function takeBack(what) {
  if (!app.chat || app.busy) return;
  try {
    const before = app.chat.messages;
    app.chat = await api.act(app.chat.id, what);
    const length = app.chat.messages.length;
    app.turns = app.turns.filter((turn) => turn.at < length);
    app.shown = app.turns.length - 1;
    const last = before[before.findLastIndex((message) => message.role === "user")];
    if (what === "undo" && last && !$("message").value) $("message").value = last.content;
    problem("");
    remember();
    emit("chat");
    emit("turns");
    announce(what === "undo" ? "The last exchange was taken back." : "A new chat.");
    $("message").focus();
  } catch (error) {
    if (error instanceof api.Refusal && (error.status === 404 || error.type === "unreachable")) await lost();
    else problem(error instanceof Error ? error.message : String(error));
  }
}

// ---- when the server is gone, or came back

let waiting = false;

/** The chat or the server is gone: wait for the server, then make the chat anew from what the tab knows. */
export async function lost() {
  if (waiting) return;
  waiting = true;
  const boot = app.status && app.status.boot;
  try {
    app.status = await serverBack();
    emit("status");
    if (!app.chat) return;
    const before = app.chat;
    try {
      app.chat = await api.getChat(before.id);
      if (app.status.boot === boot) connection("");
      holdOpen(before.id, lost);
    } catch {
      if (!app.status.model) return;
      await remake(before, app.status.boot !== boot);
    }
  } catch (error) {
    connection(error instanceof Error ? error.message : String(error));
  } finally {
    waiting = false;
  }
}

/** @param {import("./types.js").Chat} before @param {boolean} restarted */
async function remake(before, restarted) {
  const { turns, shown } = app;
  app.chat = null;
  const chat = await make(said(before.messages));
  const moved = chat.messages.length - before.messages.length;
  app.turns = turns.map((turn) => ({ ...turn, at: turn.at + moved }));
  app.shown = shown;
  emit("turns");
  emit("chat");
  connection(restarted ? "The server was started again. This chat was made anew from what this tab knows." :
    "The server had put this chat away. It was made anew from what this tab knows.");
  clearing = window.setTimeout(() => connection(""), NOTICE_MS);
}

/** Asks until the server answers, each time after a longer pause. @returns {Promise<import("./types.js").Status>} */
async function serverBack() {
  for (let pause = 0.5; ; pause = Math.min(pause * 1.7, 8)) {
    try {
      const status = await api.getStatus();
      connection("");
      return status;
    } catch (error) {
      if (error instanceof api.Refusal && error.type !== "unreachable") throw error;
      connection(`The server does not answer. Trying again every ${Math.max(1, Math.round(pause))} s; what you said is kept in this tab.`);
      await new Promise((resolve) => setTimeout(resolve, pause * 1000));
    }
  }
}

let clearing = 0;

/** @param {string} text */
function connection(text) {
  clearTimeout(clearing);
  const banner = $("connection");
  banner.textContent = text;
  banner.hidden = !text;
}

// ---- other tabs: a duplicated tab brings a copy of what this one keeps

const channel = "BroadcastChannel" in window ? new BroadcastChannel(TABS) : null;
/** @type {string} */
let mine = "";

/** @param {string} id */
function claim(id) {
  mine = id;
  if (channel) channel.onmessage = ({ data }) => {
    if (data && data.ask === mine) channel.postMessage({ taken: mine });
  };
}

/** Whether another tab has this chat. @param {string} id @returns {Promise<boolean>} */
function isTaken(id) {
  if (!channel) return Promise.resolve(false);
  return new Promise((resolve) => {
    channel.onmessage = ({ data }) => data && data.taken === id && resolve(true);
    channel.postMessage({ ask: id });
    setTimeout(() => resolve(false), 80);
  });
}
