// @ts-check
/**
 * Text made visible: spaces, tabs and line ends get a mark that is no text (copying gives the text itself), characters
 * that cannot be seen or that reorder others become their code in a box.
 */
import { h } from "./dom.js";

// Controls, formats (joiners, directions), private, unassigned, separators but the ordinary space, and what is ignorable.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}/u;
const MARKED = new RegExp(`[ \\t\\n]|${UNSEEN.source}`, "u");
const SPLIT = new RegExp(`([ \\t\\n]|${UNSEEN.source})`, "u");

/** "U+200B" @param {string} character */
export function codeOf(character) {
  return "U+" + (character.codePointAt(0) || 0).toString(16).toUpperCase().padStart(4, "0");
}

/** The text with codes for what cannot be seen, for sentences. @param {string} text */
export function described(text) {
  const shown = [...text].map((character) => (UNSEEN.test(character) ? codeOf(character) : character)).join("");
  return shown.replaceAll("U+000A", "↵").replaceAll("U+0009", "⇥");
}

/**
 * Put a token's text into its element.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function putVisible(element, text) {
  if (!MARKED.test(text)) {
    element.textContent = text;
    return;
  }
  if (text[0] === " " && !MARKED.test(text.slice(1))) {
    element.classList.add("sp"); // the usual case, a space in front, costs no element of its own
    element.textContent = text;
    return;
  }
  for (const piece of text.split(SPLIT)) {
    if (piece) element.append(MARKED.test(piece) ? mark(piece) : piece);
  }
}

/** @param {string} character */
function mark(character) {
  if (character === " ") return h("span", { class: "sp" }, " ");
  if (character === "\n") return h("span", { class: "nl" }, "\n");
  if (character === "\t") return h("span", { class: "tab" }, "\t");
  return h("span", { class: "unseen" }, codeOf(character));
}
