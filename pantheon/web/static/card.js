// @ts-check
/**
 * The card that says what a token is: one for the page, laid over it, so that nothing moves. It is the description of
 * the token that it belongs to, stays while the pointer is on it, and Escape takes it away.
 */
import { $, h } from "./dom.js";
import { spaced, textOrBytes } from "./bytes.js";
import { described } from "./visible.js";

const GAP = 8;
/** @type {HTMLElement|null} */
let owner = null;
let leaving = 0;

/**
 * @param {HTMLElement} token
 * @param {Node|null} content
 */
export function showCard(token, content) {
  const card = $("token-card");
  clearTimeout(leaving);
  if (!content) return;
  if (owner) release();
  owner = token;
  token.setAttribute("aria-describedby", "token-card");
  token.classList.add("looked-at");
  card.replaceChildren(content);
  card.hidden = false;
  place(card, token);
}

/** Away with it, unless the pointer went to it or its token has the focus. @param {EventTarget|null} [to] */
export function hideCard(to = null) {
  const card = $("token-card");
  if (to instanceof Node && card.contains(to)) return;
  clearTimeout(leaving);
  leaving = window.setTimeout(() => {
    if (document.activeElement === owner && owner) return;
    if (!card.matches(":hover")) close();
  }, 80);
}

function close() {
  $("token-card").hidden = true;
  if (owner) release();
}

function release() {
  if (!owner) return;
  owner.removeAttribute("aria-describedby");
  owner.classList.remove("looked-at");
  owner = null;
}

/** Below the token, or above it where there is no room. @param {HTMLElement} card @param {HTMLElement} token */
function place(card, token) {
  const at = token.getClientRects()[0] || token.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card;
  const room = document.documentElement.clientWidth;
  const left = Math.max(GAP, Math.min(at.left, room - width - GAP));
  const below = at.bottom + GAP;
  const top = below + height <= window.innerHeight ? below : Math.max(GAP, at.top - GAP - height);
  card.style.setProperty("left", `${left}px`);
  card.style.setProperty("top", `${top}px`);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && owner) {
    event.stopPropagation();
    close();
  }
});
document.addEventListener("pointerdown", (event) => {
  const target = /** @type {Node} */ (event.target);
  if (owner && !owner.contains(target) && !$("token-card").contains(target)) close();
});
window.addEventListener("scroll", () => owner && hideCardNow(), { capture: true, passive: true });
document.addEventListener("pointerout", (event) => {
  if (event.target instanceof Node && $("token-card").contains(event.target)) hideCard(event.relatedTarget);
});

/** While something scrolls: the card would stand at the wrong place. */
function hideCardNow() {
  if (document.activeElement === owner && owner) place($("token-card"), owner);
  else close();
}

// ---- what stands on a card

/** The head of a card: the token's text. @param {string} hex @param {boolean} control @param {string} [whole] of a part of a character */
export function cardHead(hex, control, whole) {
  const text = textOrBytes(hex);
  if (control) return h("div", { class: "card-text" }, h("b", { class: "chip" }, described(text)));
  const shown = whole === undefined ? `“${described(text)}”` : `${described(text)}, part of “${described(whole)}”`;
  return h("div", { class: "card-text", dir: "auto" }, shown);
}

/** Lines of name and value. @param {[string, string|Node][]} lines */
export function cardLines(lines) {
  return h("dl", null, ...lines.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** @param {string} hex */
export function bytesLine(hex) {
  const count = hex.length / 2;
  return count > 12 ? `${spaced(hex.slice(0, 24))} … (${count})` : spaced(hex) || "none";
}

/** A probability as people read it. @param {number|null|undefined} logprob */
export function percent(logprob) {
  if (logprob === null || logprob === undefined) return "unknown";
  const share = Math.exp(logprob) * 100;
  if (share > 99.95 && share < 100) return "> 99.9 %";
  return share < 0.1 ? "< 0.1 %" : `${share.toFixed(share >= 10 && share < 99.5 ? 0 : 1)} %`;
}

/**
 * The likeliest tokens at a place, the one that was taken marked.
 * @param {import("./types.js").ReplyToken} token
 * @param {Set<number>} stops ids that end a reply
 */
export function choices(token, stops) {
  const rows = token.top.map((choice) => row(choice, choice.id === token.id, stops.has(choice.id)));
  if (!token.top.some((choice) => choice.id === token.id)) rows.push(row(token, true, stops.has(token.id)));
  return h("ol", { class: "choices", ariaLabel: "The likeliest tokens here" }, ...rows);
}

/** @param {import("./types.js").Choice|import("./types.js").ReplyToken} choice @param {boolean} taken @param {boolean} stop */
function row(choice, taken, stop) {
  const text = described(textOrBytes(choice.hex));
  const bar = h("span", { class: "share", ariaHidden: "true" });
  bar.style.setProperty("--share", String(Math.exp(choice.logprob ?? -99)));
  return h("li", { class: taken ? "taken" : null },
    h("span", { class: stop ? "what chip" : "what", dir: "auto" }, text.startsWith(" ") ? "·" + text.slice(1) : text || "∅"),
    bar, h("span", { class: "num" }, percent(choice.logprob)), taken && h("span", { class: "hidden" }, " (taken)"));
}
