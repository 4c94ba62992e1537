// @ts-check
/**
 * A reply as elements: token by token while it comes, and each token with its probability and the likeliest others when
 * it is looked at. Looking by keyboard is switched on for one reply at a time ("Tokens"); else a reply is plain text to
 * a screen reader.
 */
import { h } from "./dom.js";
import { TokenReader } from "./bytes.js";
import { bytesLine, cardHead, cardLines, choices, percent } from "./card.js";

/** Tokens of all replies on the page by their elements. @type {WeakMap<Element, {token: import("./types.js").ReplyToken, text: string, stops: Set<number>, place: string}>} */
const known = new WeakMap();

export class ReplyView {
  /** @param {string} base text that was there before the first token (of a reply whose tokens are not known) @param {number[]} stops */
  constructor(base = "", stops = []) {
    this.element = h("div", { class: "body reply", dir: "auto" }, base && h("span", { class: "base" }, base));
    this.stops = new Set(stops);
    this.reader = new TokenReader();
    this.text = base;
    this.count = 0;
    /** @type {{text: string}[]} */
    this.group = [];
  }

  /** One more token. @param {import("./types.js").ReplyToken} token */
  push(token) {
    const end = this.stops.has(token.id);
    const { text, part } = end ? { text: "", part: false } : this.reader.push(token.hex);
    const names = ["r", end ? "end" : "", part ? "part" : "", likelihood(token.logprob)];
    const element = h("span", { class: names.filter(Boolean).join(" "), dataR: this.count }, text);
    this.count++;
    this.text += text;
    const facts = { token, text, stops: this.stops, place: `${this.count}` };
    known.set(element, facts);
    this.group = part ? [...this.group, facts] : [];
    if (part && text) {
      for (const one of this.group) one.text = text; // now it is known what the tokens before were parts of
      this.group = [];
    }
    this.element.append(element);
  }

  /** A template may trim what a vocabulary puts in front of the first word. @param {string} content */
  agree(content) {
    if (this.text === content) return true;
    if (content.startsWith(this.text) && /^\uFFFD+$/.test(content.slice(this.text.length))) {
      this.element.append(content.slice(this.text.length)); // it ended within a character
      this.text = content;
      return true;
    }
    const first = this.element.querySelector(".r");
    if (!first || this.text.trimStart() !== content.trimStart()) return false;
    const more = this.text.length - content.length;
    if (more < 0 || (first.textContent || "").slice(0, more).trim() !== "") return false;
    first.textContent = (first.textContent || "").slice(more);
    this.text = content;
    return true;
  }
}

/** Five steps from likely to surprising. @param {number|null} logprob */
function likelihood(logprob) {
  if (logprob === null || logprob === undefined) return "";
  const share = Math.exp(logprob);
  return share > 0.9 ? "p5" : share > 0.6 ? "p4" : share > 0.3 ? "p3" : share > 0.1 ? "p2" : "p1";
}

/** What the card of a reply's token says. @param {HTMLElement} element */
export function replyCard(element) {
  const found = known.get(element);
  if (!found) return null;
  const { token, text, stops, place } = found;
  const out = document.createDocumentFragment();
  const part = element.classList.contains("part");
  out.append(cardHead(token.hex, stops.has(token.id), part ? text || "…" : undefined),
    cardLines([["Probability", percent(token.logprob)], ["Id", String(token.id)], ["Bytes", bytesLine(token.hex)], ["Place", place]]));
  if (token.top.length) out.append(h("p", { class: "card-title" }, "The likeliest tokens here"), choices(token, stops));
  return out;
}

/**
 * Switch the keyboard's way through a reply's tokens on or off.
 * @param {HTMLElement} body
 * @param {boolean} look
 */
export function lookAtTokens(body, look) {
  body.classList.toggle("looking", look);
  const tokens = /** @type {HTMLElement[]} */ ([...body.querySelectorAll(".r")]);
  if (look) {
    body.setAttribute("role", "listbox");
    body.setAttribute("aria-orientation", "horizontal");
    body.setAttribute("aria-label", "Tokens of the reply");
  } else for (const name of ["role", "aria-orientation", "aria-label"]) body.removeAttribute(name);
  tokens.forEach((token, at) => {
    if (look) {
      token.setAttribute("role", "option");
      token.tabIndex = at ? -1 : 0;
    } else {
      token.removeAttribute("role");
      token.removeAttribute("tabindex");
    }
  });
  if (look && tokens.length) tokens[0].focus();
}

/** Why a reply ended, in words. @param {import("./types.js").Reply} reply */
export function endOf(reply) {
  if (reply.finish_reason === "stop") return "Ended its turn";
  if (reply.finish_reason === "length") return `Reached ${reply.limit} tokens`;
  return "Stopped";
}
