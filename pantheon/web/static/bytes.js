// @ts-check
/**
 * The bytes of tokens as text: which characters each token holds, and which tokens are only parts of a character.
 *
 * The one thing to know first: a token is bytes, and a character may be spread over several tokens. Such tokens form a
 * group; its text is known at the last of them.
 */

const strict = () => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const whole = strict();
const LONGEST = 64; // bytes of tokens that are held back for a character
const loose = new TextDecoder("utf-8", { ignoreBOM: true });

/** @param {string} hex @returns {Uint8Array} */
export function fromHex(hex) {
  const bytes = new Uint8Array(hex.length >> 1);
  for (let at = 0; at < bytes.length; at++) bytes[at] = parseInt(hex.slice(2 * at, 2 * at + 2), 16);
  return bytes;
}

/** The bytes as a text, whatever they are. @param {string} hex */
export function textOf(hex) {
  return loose.decode(fromHex(hex));
}

/** The bytes as a text, or, if they are none, as bytes: "\\xf0\\x9f". @param {string} hex */
export function textOrBytes(hex) {
  try {
    return whole.decode(fromHex(hex));
  } catch {
    return hex.replace(/../g, "\\x$&");
  }
}

/** "48 65 6c": as people write bytes. @param {string} hex */
export function spaced(hex) {
  return hex.replace(/../g, "$& ").trim();
}

/**
 * Takes tokens one by one, as they come, and says what can be shown of each: `part` is true where the token alone is no
 * text. The text of such a group comes with the token that completes it; the ones before have "".
 */
export class TokenReader {
  constructor() {
    this.held = "";
  }

  /** @param {string} hex @returns {{text: string, part: boolean}} */
  push(hex) {
    const all = fromHex(this.held + hex);
    const part = this.held !== "";
    try {
      const text = whole.decode(all);
      this.held = "";
      return { text, part };
    } catch {
      const wait = all.length < LONGEST && unfinished(all);
      this.held = wait ? this.held + hex : "";
      return { text: wait ? "" : loose.decode(all), part: true };
    }
  }
}

/** Whether the bytes are text but for an end that is the beginning of a character. @param {Uint8Array} bytes */
function unfinished(bytes) {
  try {
    strict().decode(bytes, { stream: true });
    return true;
  } catch {
    return false;
  }
}

/** The texts of all tokens of a prompt. @param {string[]} hexes */
export function textsOf(hexes) {
  const reader = new TokenReader();
  return hexes.map((hex) => reader.push(hex));
}
