// @ts-check
/**
 * One reply, from the wish to its end: asks the server, and turns its events into what the store knows. Whatever happens
 * the page is left in a state from which one can go on: a refused message goes back into the box.
 */
import { $, announce, counted } from "./dom.js";
import { app, emit } from "./store.js";
import * as api from "./api.js";
import { Broken } from "./events.js";
import { ensureChat, lost, remember, sync } from "./session.js";
import { growReply } from "./reading.js";

/** @type {AbortController|null} */
let controller = null;

/** What the box under the chat says went wrong; "" takes it away. @param {string} text */
export function problem(text) {
  $("problem").textContent = text;
}

/**
 * @param {"send"|"regenerate"|"continue"|"edit"} action
 * @param {{text?: string, index?: number}} [what]
 * @returns {Promise<boolean>} whether it was taken: false if it was refused, with the reason shown
 */
export async function startTurn(action, what = {}) {
  if (app.busy) {
    problem("It is still answering. Wait for the reply to end, or stop it, then send again.");
    return false;
  }
  problem("");
  setBusy(true);
  try {
    const chat = await ensureChat();
    if (!chat) return false;
    await sync();
    await run(app.chat || chat, action, what);
    return true;
  } catch (error) {
    await failed(error, what.text);
    return false;
  } finally {
    controller = null;
    setBusy(false);
    emit("chat");
    sync();
  }
}

/** @param {boolean} busy */
function setBusy(busy) {
  app.busy = busy;
  emit("busy");
}

/** Ends the running reply; what had come of it stays. */
export async function stopTurn() {
  if (!app.busy || !app.chat) return;
  try {
    await api.act(app.chat.id, "cancel");
  } catch {
    if (controller) controller.abort();
  }
}

/**
 * @param {import("./types.js").Chat} chat
 * @param {"send"|"regenerate"|"continue"|"edit"} action
 * @param {{text?: string, index?: number}} what
 */
async function run(chat, action, what) {
  const turn = newTurn(chat, action, what);
  controller = new AbortController();
  const wish = { action, ...what, max_tokens: chat.reply_limit, sampling: samplingWish(), top: 5 };
  const events = await api.reply(chat.id, wish, controller.signal);
  let over = false;
  let before = { turns: app.turns, shown: app.shown };
  for await (const [name, data] of events) {
    if (name === "reading") {
      turn.reading = data.reading;
      before = { turns: app.turns, shown: app.shown };
      commit(turn);
      announce(`Reading ${counted(data.reading.prompt_tokens, "token")}, ${data.reading.evaluated_tokens} of them anew.`);
    } else if (name === "progress") emit("progress", `Reading… ${Math.round(data.fraction * 100)} % of ${counted(data.total, "token")}`);
    else if (name === "token") {
      turn.tokens.push(data);
      turn.written++;
      emit("token", data);
      if (turn.written === 1) emit("progress", "Writing…");
      growReply(turn.written);
    } else if (name === "done") {
      over = true;
      finish(turn, data, before);
    } else if (name === "error") {
      if (data.chat) app.chat = data.chat;
      throw new api.Refusal(data.error.type, api.sentence(data.error.message), 400);
    }
  }
  if (!over) throw new api.Refusal("unreachable", "The connection ended in the middle of the reply.", 0);
}

/** @param {import("./types.js").Chat} chat @param {string} action @param {{text?: string, index?: number}} what */
function newTurn(chat, action, what) {
  const lastUser = chat.messages.findLastIndex((message) => message.role === "user");
  const at = action === "send" ? chat.messages.length : action === "edit" ? Number(what.index) : lastUser;
  const before = app.turns.find((turn) => turn.at === at);
  /** @type {import("./types.js").Turn} */
  const turn = {
    at, user: what.text ?? (chat.messages[at] || { content: "" }).content, reading: null, reply: null, written: 0,
    tokens: action === "continue" && before ? [...before.tokens] : [],
  };
  const base = action === "continue" ? chat.messages[chat.messages.length - 1].content : "";
  const index = action === "continue" ? chat.messages.length - 1 : action === "regenerate" ? lastUser + 1 : at;
  emit("begin", { action, text: what.text ?? null, index, turn, base });
  return turn;
}

/** The prompt is fixed: the turn is one of the conversation's. @param {import("./types.js").Turn} turn */
function commit(turn) {
  app.turns = [...app.turns.filter((other) => other.at < turn.at), turn];
  app.shown = app.turns.length - 1;
  emit("turns");
}

/**
 * @param {import("./types.js").Turn} turn
 * @param {{reply: import("./types.js").Reply, chat: import("./types.js").Chat}} data
 * @param {{turns: import("./types.js").Turn[], shown: number}} before
 */
function finish(turn, { reply, chat }, before) {
  turn.reply = reply;
  app.chat = chat;
  const kept = turn.written > 0 || reply.finish_reason !== "cancelled";
  if (kept) app.shown = app.turns.length - 1;
  else Object.assign(app, before); // stopped before a token came: the conversation is as it was
  if (!kept && chat.messages.length <= turn.at && !$("message").value) $("message").value = turn.user;
  remember();
  emit("turns");
  announce(kept ? `The model said: ${chat.messages[chat.messages.length - 1].content}` : "Stopped before the reply began.");
  if (kept && reply.finish_reason !== "cancelled") emit("finished", { turn, chat });
}

/** @param {unknown} error @param {string|undefined} text what the user had written */
async function failed(error, text) {
  if (text && !$("message").value) {
    $("message").value = text;
    $("message").dispatchEvent(new Event("input"));
  }
  if (error instanceof DOMException && error.name === "AbortError") return;
  const refusal = error instanceof api.Refusal ? error
    : error instanceof Broken ? new api.Refusal("unreachable", "The connection ended in the middle of the reply.", 0)
      : new api.Refusal("error", api.sentence(error instanceof Error ? error.message : String(error)), 0);
  problem(refusal.message);
  if (refusal.type === "unreachable" || (refusal.type === "not_found" && refusal.status === 404)) await lost();
  else if (app.chat) app.chat = await api.getChat(app.chat.id).catch(() => app.chat);
  const length = app.chat ? app.chat.messages.length : 0;
  app.turns = app.turns.filter((turn) => turn.at < length);
  app.shown = Math.min(app.shown, app.turns.length - 1);
  emit("turns");
}

function samplingWish() {
  const { on, ...values } = app.sampling;
  return on ? values : { temperature: 0 };
}
