// @ts-check
/**
 * What the page knows, in one place, and who wants to hear when it changes. Modules read `app`, change it, and emit a
 * name; they never call each other's drawing.
 *
 *   status   the server was asked: which model is here, what it runs on
 *   settings a system prompt, a window or the sampling was chosen
 *   mode     live or recorded
 *   chat     the conversation on the server changed
 *   turns    what is known of the turns changed, or another one is looked at
 *   busy     a reply begins or ends
 *   finished a reply is complete: the challenges look at it
 */

/**
 * @type {{
 *   status: import("./types.js").Status|null,
 *   mode: "live"|"recorded",
 *   chat: import("./types.js").Chat|null,
 *   busy: boolean,
 *   model: string|null,
 *   system: "none"|"pirate"|"date"|"own",
 *   ownText: string,
 *   window: number|null,
 *   sampling: {on: boolean, temperature: number, top_k: number, top_p: number, min_p: number, seed: number|null},
 *   turns: import("./types.js").Turn[],
 *   shown: number,
 *   recorded: any,
 * }}
 * model: the name of the one that was chosen; null for the default. turns: of what is looked at, live or recorded; shown: an index of it, -1 for none. window: null for the model's own.
 */
export const app = {
  status: null,
  mode: "recorded",
  chat: null,
  busy: false,
  model: null,
  system: "none",
  ownText: "",
  window: 512,
  sampling: { on: false, temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: null },
  turns: [],
  shown: -1,
  recorded: null,
};

const bus = new EventTarget();

/** @param {string} name @param {(detail: any) => void} listener */
export function on(name, listener) {
  bus.addEventListener(name, (event) => listener(/** @type {CustomEvent} */ (event).detail));
}

/** @param {string} name @param {any} [detail] */
export function emit(name, detail) {
  bus.dispatchEvent(new CustomEvent(name, { detail }));
}

/** The turn that is looked at. @returns {import("./types.js").Turn|null} */
export function shownTurn() {
  return app.turns[app.shown] || null;
}

/** Read from a storage what was kept there; null if nothing can be kept or read. @param {Storage} storage @param {string} key */
export function recall(storage, key) {
  try {
    return JSON.parse(storage.getItem(key) || "null");
  } catch {
    return null;
  }
}

/** @param {Storage} storage @param {string} key @param {any} value */
export function keep(storage, key, value) {
  try {
    storage.setItem(key, JSON.stringify(value));
  } catch {
    // private windows and full storages: the page works without
  }
}
