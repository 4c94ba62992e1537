// @ts-check
/**
 * A prompt as elements: its pieces, each with its tokens, and the turns that were left out where they would stand.
 *
 * The one thing to know first: the tokens are drawn from the bytes that the model read, never from the messages. Only
 * the turns that were left out, of which the model read nothing, are drawn from their texts.
 */
import { counted, h } from "./dom.js";
import { fromHex, textOf, textsOf } from "./bytes.js";
import { described, putVisible } from "./visible.js";
import { bytesLine, cardHead, cardLines } from "./card.js";

const ROLES = /** @type {Record<string, string>} */ ({
  template: "Template", system: "System", user: "User", assistant: "Assistant", tool: "Tool", data: "Other text",
});

/** The whole prompt as one text. @param {import("./types.js").Reading} reading */
export function promptText(reading) {
  return textOf(reading.tokens.hex.join(""));
}

/**
 * @param {import("./types.js").Reading} reading
 * @param {"tokens"|"ids"} view
 * @returns {DocumentFragment}
 */
export function renderPrompt(reading, view) {
  const out = document.createDocumentFragment();
  const { tokens } = reading;
  const texts = view === "tokens" ? textsOf(tokens.hex) : [];
  const alike = new Set(lookAlikeTokens(reading).flat());
  const dropped = [...reading.dropped];
  let at = 0;
  reading.pieces.forEach((piece, number) => {
    const first = at;
    while (at < tokens.id.length && tokens.piece[at] === number) at++;
    const message = piece.message;
    while (dropped.length && (message === null ? number === reading.pieces.length - 1 : message > dropped[0].messages[0])) {
      out.append(leftOut(/** @type {any} */ (dropped.shift())));
    }
    out.append(section(reading, piece, number, (list) => {
      for (let n = first; n < at; n++) list.append(tokenElement(reading, n, view, texts[n], alike.has(n)));
    }));
  });
  for (const out2 of dropped) out.append(leftOut(out2));
  const start = out.querySelector("[data-i]");
  if (start) start.setAttribute("tabindex", "0");
  return out;
}

/**
 * @param {import("./types.js").Reading} reading
 * @param {import("./types.js").Piece} piece
 * @param {number} number
 * @param {(list: HTMLElement) => void} addTokens
 */
function section(reading, piece, number, addTokens) {
  const kind = kindOf(piece, number === reading.pieces.length - 1);
  const role = h("span", { class: "role" }, ROLES[piece.role] || piece.role);
  const name = nameOf(piece);
  const reused = piece.reused === piece.tokens ? "reused" : piece.reused ? `${piece.reused} reused` : "read anew";
  const list = h("div", { class: "toks", role: "listbox", ariaOrientation: "horizontal", dir: "auto", ariaLabel: `Tokens: ${piece.name}` });
  addTokens(list);
  return h("section", { class: `piece ${kind}`, dataRole: piece.role, ariaLabel: piece.name },
    h("header", null, h("h3", null, role, name && ` ${name}`),
      h("span", { class: "count" }, counted(piece.tokens, "token")), h("span", { class: "was" }, reused)), list);
}

/** What of a piece's name its role does not say. @param {import("./types.js").Piece} piece */
function nameOf(piece) {
  return piece.name.startsWith(piece.role + ", ") ? piece.name.slice(piece.role.length + 2) : piece.name;
}

/** Which of the colours and patterns: those of the bar. @param {import("./types.js").Piece} piece @param {boolean} last */
export function kindOf(piece, last) {
  if (piece.role === "system" || (piece.message === null && piece.name.includes("system"))) return "k-system";
  if (piece.message === null) return last ? "k-header" : "k-template";
  return `k-${piece.role}`;
}

/**
 * @param {import("./types.js").Reading} reading
 * @param {number} n
 * @param {"tokens"|"ids"} view
 * @param {{text: string, part: boolean}|undefined} known
 * @param {boolean} alike
 */
function tokenElement(reading, n, view, known, alike) {
  const { tokens } = reading;
  const element = document.createElement("span");
  const control = tokens.control[n] === 1;
  let names = control ? "t chip" : "t o-" + reading.origins[tokens.origin[n]];
  if (n < reading.reused_tokens) names += " reused";
  else if (n === reading.reused_tokens && n > 0) names += " anew";
  if (alike) names += " alike";
  element.className = names;
  element.setAttribute("role", "option");
  element.tabIndex = -1;
  element.dataset.i = String(n);
  const first = element.classList.contains("anew"); // has a mark in front of it, so its text has an element of its own
  const text = first && known && !known.part ? element.appendChild(document.createElement("span")) : element;
  if (view === "ids" || !known) element.textContent = String(tokens.id[n]);
  else if (known.part) putPart(element, tokens.hex[n], known.text);
  else {
    putVisible(text, known.text);
    if (!known.text.trim()) element.setAttribute("aria-label", blankName(known.text));
  }
  return element;
}

/** A token that is a part of a character: its bytes, and at the last of them the text that they are. */
function putPart(/** @type {HTMLElement} */ element, /** @type {string} */ hex, /** @type {string} */ text) {
  element.classList.add("part");
  element.append(h("span", { class: "hex" }, hex.toUpperCase()));
  if (text) {
    const whole = h("span", { class: "whole" });
    putVisible(whole, text);
    element.append(whole);
  }
}

/** @param {string} text */
function blankName(text) {
  const count = text.length > 1 ? `${text.length} ` : "";
  if (/^ *$/.test(text)) return text ? `${count}space${count && "s"}` : "empty";
  return /^\n+$/.test(text) ? `${count}line end${count && "s"}` : described(text);
}

/** @param {import("./types.js").Dropped} dropped */
function leftOut(dropped) {
  const which = dropped.messages.length > 1
    ? `messages ${dropped.messages[0]} to ${dropped.messages[dropped.messages.length - 1]}` : `message ${dropped.messages[0]}`;
  return h("section", { class: "piece left-out", ariaLabel: `Left out: ${which}`, dataTestid: "left-out" },
    h("header", null, h("h3", null, h("span", { class: "role" }, dropped.newly ? "Left out now" : "Left out"), ` ${which}`),
      h("span", { class: "count" }, counted(dropped.tokens, "token"))),
    ...dropped.texts.map((text) => h("p", null, h("span", { class: "who" }, `${ROLES[text.role] || text.role}: `), h("del", { dir: "auto" }, text.content))),
    h("p", { class: "reason" }, `The model no longer reads this: ${dropped.reason}.`));
}

/**
 * For each look-alike the indices of the tokens that it is made of.
 * @param {import("./types.js").Reading} reading
 * @returns {number[][]}
 */
export function lookAlikeTokens(reading) {
  const found = reading.look_alikes || [];
  if (!found.length) return [];
  const { hex } = reading.tokens;
  const characters = [...textOf(hex.join(""))];
  const size = (/** @type {string[]} */ some) => new TextEncoder().encode(some.join("")).length;
  return found.map(({ at, text }) => {
    const start = size(characters.slice(0, at));
    const stop = start + size([...text]);
    const inside = [];
    for (let n = 0, byte = 0; n < hex.length && byte < stop; byte += hex[n].length / 2, n++) {
      if (byte + hex[n].length / 2 > start) inside.push(n);
    }
    return inside;
  });
}

/**
 * What the card of a token says.
 * @param {import("./types.js").Reading} reading
 * @param {number} n
 */
export function promptCard(reading, n) {
  const { tokens } = reading;
  const control = tokens.control[n] === 1;
  const origins = ((tokens.also || {})[n] || [tokens.origin[n]]).map((index) => reading.origins[index]);
  const message = tokens.message[n] >= 0 ? `, message ${tokens.message[n]}` : "";
  const from = origins.length > 1 ? `${origins.join(" and ")}${message} (it straddles the border)` : origins[0] + message;
  const out = document.createDocumentFragment();
  out.append(
    cardHead(tokens.hex[n], control, control ? undefined : wholeOf(tokens.hex, n)),
    cardLines([
      ["Id", String(tokens.id[n])],
      ["Bytes", bytesLine(tokens.hex[n])],
      ["Kind", control ? "control token" : "text"],
      ["Origin", from],
      ["This turn", n < reading.reused_tokens ? "reused from the turn before" : "read anew"],
      ["Place", `${n + 1} of ${tokens.id.length}`],
    ]),
  );
  return out;
}

/** The character that a token is a part of; undefined for tokens that are text. @param {string[]} hex @param {number} n */
function wholeOf(hex, n) {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(fromHex(hex[n]));
    return undefined;
  } catch {
    const from = Math.max(0, n - 8);
    const near = textsOf(hex.slice(from, n + 9));
    const last = near.findIndex((known, at) => at >= n - from && known.part && known.text !== "");
    return last < 0 ? textOf(hex[n]) : near[last].text;
  }
}
