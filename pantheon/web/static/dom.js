// @ts-check
/**
 * Making and finding elements. All text that comes from a model, a user or a file reaches the page here, as text nodes:
 * the page knows no way to make markup of a text.
 */

/**
 * The element with this id, which index.html has.
 * @param {string} id
 * @returns {any}
 */
export function $(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element #${id}`);
  return found;
}

/**
 * An element. props: `class`, `on…` listeners, `data…` and `aria…` in camel case, other attributes by name; false, null
 * and undefined leave an attribute away. Children: elements, or texts that become text nodes.
 * @param {string} tag
 * @param {Record<string, any>|null} [props]
 * @param {...(Node|string|number|null|undefined|false)} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name.replace(/[A-Z]/g, (letter) => "-" + letter.toLowerCase()), value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) element.append(typeof child === "number" ? String(child) : child);
  }
  return element;
}

/**
 * Put children in place of an element's own.
 * @param {Element} parent
 * @param {...(Node|string|null|undefined|false)} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren(.../** @type {(Node|string)[]} */ (children.filter((child) => child)));
}

/** Show or hide. @param {HTMLElement} element @param {boolean} shown */
export function show(element, shown) {
  element.hidden = !shown;
}

let announcements = 0;
/**
 * Tell a screen reader, once, without moving the focus.
 * @param {string} text
 */
export function announce(text) {
  // the same sentence twice is only said twice if the text differs
  $("announcer").textContent = text + (announcements++ % 2 ? "\u00a0" : "");
}

/** A number as people write it. @param {number} value */
export function number(value) {
  return value.toLocaleString("en");
}

/** @param {number} count @param {string} what */
export function counted(count, what) {
  return `${number(count)} ${what}${count === 1 ? "" : "s"}`;
}

/** Bytes as people say them. @param {number|null|undefined} bytes */
export function megabytes(bytes) {
  if (!bytes) return "0 MB";
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.max(1, Math.round(bytes / 1e6))} MB`;
}

/**
 * Put a text on the clipboard; whether that worked. Where a page may not (no secure context), a hidden text box helps.
 * @param {string} text
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const box = h("textarea", { class: "hidden", ariaHidden: "true", tabindex: "-1" });
    const focused = document.activeElement;
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return done;
  }
}

/**
 * A button that copies, and says so on itself for a moment.
 * @param {HTMLButtonElement} button
 * @param {() => string} text
 */
export function copyOnClick(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const done = await copyText(text());
    button.textContent = done ? "Copied" : "Not allowed";
    announce(done ? "Copied." : "The browser did not allow copying.");
    setTimeout(() => (button.textContent = label), 1500);
  });
}
