// @ts-check
/**
 * The window as a bar with a legend: system, kept turns, message, header, what is kept free for the reply, and what is
 * left. Widths are set as properties of the elements, which the content security policy allows.
 */
import { h, number } from "./dom.js";
import { kindOf } from "./tokens.js";

/** @typedef {{kind: string, label: string, tokens: number}} Share */

/**
 * What the window is filled with; the shares add up to it.
 * @param {import("./types.js").Reading} reading
 * @param {number} written tokens of the reply so far
 * @returns {Share[]}
 */
export function sharesOf(reading, written) {
  const { pieces } = reading;
  const lastMessage = pieces.reduce((last, piece, at) => (piece.message !== null && piece.role === "user" ? at : last), -1);
  const sums = /** @type {Record<string, number>} */ ({ system: 0, turns: 0, message: 0, header: 0, template: 0 });
  pieces.forEach((piece, at) => {
    const kind = kindOf(piece, at === pieces.length - 1).slice(2);
    if (kind === "system" || kind === "header" || kind === "template") sums[kind] += piece.tokens;
    else sums[at === lastMessage ? "message" : "turns"] += piece.tokens;
  });
  const reply = Math.min(written, reading.reserve);
  return [
    { kind: "template", label: "Template", tokens: sums.template },
    { kind: "system", label: "System", tokens: sums.system },
    { kind: "turns", label: "Kept turns", tokens: sums.turns },
    { kind: "message", label: "Message", tokens: sums.message },
    { kind: "header", label: "Header", tokens: sums.header },
    { kind: "written", label: "Reply", tokens: reply },
    { kind: "reserve", label: "Kept free for the reply", tokens: reading.reserve - reply },
    { kind: "free", label: "Free", tokens: Math.max(0, reading.window - reading.prompt_tokens - reading.reserve) },
  ];
}

const ALWAYS = ["system", "turns", "message", "header", "written", "reserve", "free"];

/**
 * Draw the bar, or only change its widths and numbers if it is there already.
 * @param {HTMLElement} root
 * @param {import("./types.js").Reading} reading
 * @param {number} written
 */
export function drawBar(root, reading, written) {
  const shares = sharesOf(reading, written).filter((share) => share.tokens || ALWAYS.includes(share.kind));
  const names = shares.map((share) => share.kind).join();
  if (root.dataset.kinds !== names) build(root, shares, names);
  const bar = /** @type {HTMLElement} */ (root.querySelector(".bar"));
  const numbers = root.querySelectorAll(".legend b");
  const reply = shares.find((share) => share.kind === "written") || { tokens: 0 };
  shares.forEach((share, at) => {
    numbers[at].textContent = number(share.tokens);
    const part = /** @type {HTMLElement} */ (bar.querySelector(`.b-${share.kind}`));
    if (share.kind === "written") return; // it fills what is kept free for it, so that nothing moves
    const tokens = share.kind === "reserve" ? reading.reserve : share.tokens;
    part.style.setProperty("flex-grow", String(tokens));
    part.classList.toggle("none", tokens === 0);
    if (share.kind === "reserve") part.style.setProperty("--written", String(reply.tokens / Math.max(1, reading.reserve)));
  });
  bar.setAttribute("aria-label", `Window of ${number(reading.window)} tokens: `
    + shares.filter((share) => share.tokens).map((share) => `${share.label} ${share.tokens}`).join(", "));
  const head = /** @type {HTMLElement} */ (root.querySelector(".bar-head b"));
  head.textContent = `${number(reading.prompt_tokens + written)} of ${number(reading.window)}`;
}

/** @param {HTMLElement} root @param {Share[]} shares @param {string} names */
function build(root, shares, names) {
  root.dataset.kinds = names;
  root.replaceChildren(
    h("p", { class: "bar-head" }, h("span", null, "The window"), h("span", null, h("b", null, ""), " tokens in use")),
    h("div", { class: "bar", role: "img" }, ...shares.filter((share) => share.kind !== "written").map((share) =>
      h("span", { class: `b-${share.kind}` }, share.kind === "reserve" && h("span", { class: "b-written" })))),
    h("ul", { class: "legend", ariaLabel: "The window in numbers" }, ...shares.map((share) =>
      h("li", { dataShare: share.kind }, h("i", { class: `swatch b-${share.kind}`, ariaHidden: "true" }), `${share.label} `, h("b", null, "")))),
  );
}
