// @ts-check
/**
 * The server's paths as functions. Every refusal and every lost connection becomes a Refusal with a sentence that can
 * be shown as it is.
 */
import { eventsOf } from "./events.js";
import { unfold } from "./unfold.js";

/** What the server refused, or that it could not be reached (type "unreachable"). */
export class Refusal extends Error {
  /** @param {string} type @param {string} message @param {number} status */
  constructor(type, message, status) {
    super(message);
    this.type = type;
    this.status = status;
  }
}

const WORDS = /** @type {Record<string, string>} */ ({
  busy: "It is still answering. Wait for the reply to end, or stop it, then send again.",
  unauthorized: "The server wants its key. Open the address with the key that it printed when it started.",
  overloaded: "The server has as many chats as it can hold. Close another tab, then try again.",
  too_large: "That is more text than the server takes at once.",
});

/**
 * @param {string} method
 * @param {string} path
 * @param {any} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<Response>}
 */
async function ask(method, path, body, signal) {
  /** @type {RequestInit} */
  const options = { method, signal, cache: "no-store", credentials: "same-origin" };
  if (method !== "GET") {
    options.headers = { "content-type": "application/json" };
    options.body = JSON.stringify(body === undefined ? {} : body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw new Refusal("unreachable", "The server does not answer. Is pantheon serve still running?", 0);
  }
  if (response.ok) return response;
  let type = "error";
  let message = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    type = error.type;
    message = WORDS[type] || sentence(error.message);
  } catch {
    // no JSON: something between the page and the server answered
  }
  throw new Refusal(type, message, response.status);
}

/** The server's words as a sentence. @param {string} text */
export function sentence(text) {
  const words = String(text || "").trim() || "Something went wrong";
  return words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}

/** @param {string} method @param {string} path @param {any} [body] */
const json = async (method, path, body) => (await ask(method, path, body)).json();

/** @param {string} id */
const chatPath = (id) => `/api/chats/${encodeURIComponent(id)}`;

/** @returns {Promise<import("./types.js").Status>} */
export const getStatus = () => json("GET", "/api/status");
/** @returns {Promise<import("./types.js").ModelInfo[]>} */
export const getModels = async () => (await json("GET", "/api/models")).models;
/** @param {string} name */
export const removeModel = (name) => json("DELETE", `/api/models/${encodeURIComponent(name)}`);
/** @param {string} name @param {AbortSignal} signal */
export const pullModel = async (name, signal) => eventsOf(await ask("POST", `/api/models/${encodeURIComponent(name)}/pull`, {}, signal));

/** @typedef {import("./types.js").Chat} Chat */
/** @param {any} wish @returns {Promise<Chat>} */
export const createChat = (wish) => json("POST", "/api/chats", wish);
/** @param {string} id @returns {Promise<Chat>} */
export const getChat = (id) => json("GET", chatPath(id));
/** @param {string} id @param {{system?: string|null, window?: number|null}} change @returns {Promise<Chat>} */
export const changeChat = (id, change) => json("PATCH", chatPath(id), change);
/** @param {string} id @param {"undo"|"clear"|"cancel"} what @returns {Promise<Chat>} */
export const act = (id, what) => json("POST", `${chatPath(id)}/${what}`);
/** @param {string} id @param {any} wish @param {AbortSignal} signal */
export const reply = async (id, wish, signal) => eventsOf(await ask("POST", `${chatPath(id)}/reply`, wish, signal));
/** @param {string} id @param {AbortSignal} signal */
export const alive = async (id, signal) => eventsOf(await ask("GET", `${chatPath(id)}/alive`, undefined, signal));
/** @param {string} id */
export const python = async (id) => (await ask("GET", `${chatPath(id)}/python`)).text();
/** Said while the page goes away, when nothing can be awaited. @param {string} id */
export const release = (id) =>
  navigator.sendBeacon(`${chatPath(id)}/release`, new Blob(["{}"], { type: "application/json" }));

/** @returns {Promise<any>} */
export async function getRecorded() {
  const response = await fetch("/static/recorded.json", { credentials: "same-origin" });
  if (!response.ok) throw new Refusal("not_found", "This installation has no recorded results.", response.status);
  return unfold(await response.json());
}
