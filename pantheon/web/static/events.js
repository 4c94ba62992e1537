// @ts-check
/**
 * Server-sent events read from the body of a fetch, so that a POST can have them and an abort ends them. Knows nothing
 * of what they mean.
 */

/** The other side went away in the middle. */
export class Broken extends Error {}

/**
 * The events of a response, in order: [name, parsed data]. Comments are skipped.
 * @param {Response} response
 * @returns {AsyncGenerator<[string, any]>}
 */
export async function* eventsOf(response) {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(broken);
      rest += decoder.decode(value, { stream: !done }).replaceAll("\r\n", "\n");
      const blocks = rest.split("\n\n");
      rest = blocks.pop() || "";
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {any} error @returns {never} */
function broken(error) {
  throw error.name === "AbortError" ? error : new Broken("The connection ended in the middle.");
}

/**
 * One block of lines.
 * @param {string} block
 * @returns {[string, any]|null}
 */
function parse(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}
