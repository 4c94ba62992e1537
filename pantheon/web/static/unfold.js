// @ts-check
/**
 * The recorded results as their turns are shown. In the file (see pantheon/record.py, which writes it) equal parts are
 * written once and referred to by their index; here every turn stands for itself, in the form that live turns have.
 */

/**
 * @param {any} recorded the file, parsed
 * @returns {any} the same without vocabulary, lines, readings and replies, and with turns of the form
 *   {reading, reply: {text, finish_reason, limit, tokens: {id, hex, logprob}, top: [{id, hex, logprob}, ...]}, python}.
 *   Equal parts are shared among turns: they are to be read, not to be changed.
 */
export function unfold(recorded) {
  const { vocabulary, lines, readings, replies, turns, ...rest } = recorded;
  const spelled = (/** @type {any} */ columns) => ({ ...columns, hex: columns.id.map((/** @type {number} */ id) => vocabulary[id]) });
  const spelledReplies = replies.map((/** @type {any} */ reply) => ({ ...reply, tokens: spelled(reply.tokens), top: reply.top.map(spelled) }));
  const spelledTokens = readings.map((/** @type {any} */ reading) => spelled(reading.tokens));
  return {
    ...rest,
    turns: turns.map((/** @type {any} */ turn) => ({
      reading: { ...readings[turn.reading], window: turn.window, tokens: spelledTokens[turn.reading] },
      reply: spelledReplies[turn.reply],
      python: turn.python.map((/** @type {number} */ line) => lines[line]).join("\n"),
    })),
  };
}
