// @ts-check
/**
 * Tokens by keyboard, mouse and touch, with one set of listeners for all of them: one token can be reached by Tab, the
 * arrow keys, Home and End go on from it; hover, focus or tap shows the card, Escape takes it away.
 */
import { hideCard, showCard } from "./card.js";

const STEPS = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 });

/**
 * @param {HTMLElement} root what holds the tokens, now and later
 * @param {string} selector of a token
 * @param {(token: HTMLElement) => Node|null} describe the content of its card
 */
export function makeRoving(root, selector, describe) {
  /** @param {EventTarget|null} target @returns {HTMLElement|null} */
  const tokenAt = (target) => (target instanceof Element ? target.closest(selector) : null);

  root.addEventListener("pointerover", (event) => {
    const token = tokenAt(event.target);
    if (token && moved(event) && event.pointerType !== "touch") showCard(token, describe(token));
  });
  root.addEventListener("pointerout", (event) => {
    if (tokenAt(event.target) && event.pointerType !== "touch") hideCard(event.relatedTarget);
  });
  root.addEventListener("click", (event) => {
    const token = tokenAt(event.target);
    if (!token) return;
    showCard(token, describe(token));
    if (token.hasAttribute("tabindex") && String(window.getSelection()) === "") token.focus({ preventScroll: true });
  });
  root.addEventListener("focusin", (event) => {
    const token = tokenAt(event.target);
    if (!token) return;
    for (const other of root.querySelectorAll(`${selector}[tabindex="0"]`)) other.setAttribute("tabindex", "-1");
    token.setAttribute("tabindex", "0");
    showCard(token, describe(token));
  });
  root.addEventListener("focusout", (event) => {
    if (tokenAt(event.target)) hideCard(event.relatedTarget);
  });
  root.addEventListener("keydown", (event) => {
    const token = tokenAt(event.target);
    if (!token || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = follow(root, selector, token, event.key);
    if (!next) return;
    event.preventDefault();
    next.tabIndex = 0;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  });
}

let restX = NaN;
let restY = NaN;

/** Whether the pointer moved: the page moving under one that rests is no wish to know. @param {PointerEvent} event */
function moved({ screenX, screenY }) {
  const same = screenX === restX && screenY === restY;
  [restX, restY] = [screenX, screenY];
  return !same;
}
document.addEventListener("pointermove", (event) => void ([restX, restY] = [event.screenX, event.screenY]), { passive: true });

/** The token that a key leads to. @param {HTMLElement} root @param {string} selector @param {HTMLElement} token @param {string} key */
function follow(root, selector, token, key) {
  if (!(key in STEPS) && key !== "Home" && key !== "End") return null;
  const all = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(`${selector}[tabindex]`)]);
  const at = all.indexOf(token);
  if (key === "Home") return all[0];
  if (key === "End") return all[all.length - 1];
  const rtl = getComputedStyle(token).direction === "rtl" && /Left|Right/.test(key);
  return all[Math.max(0, Math.min(all.length - 1, at + (rtl ? -STEPS[key] : STEPS[key])))];
}
