// @ts-check
/**
 * The wire forms that the page reads, as types for an editor; nothing here runs. docs/api describes them in words.
 *
 * @typedef {{id: number[], hex: string[], control: number[], origin: number[], piece: number[], message: number[],
 *   also?: Record<string, number[]>}} TokenColumns
 *   One entry per token. hex: its bytes; origin: an index into Reading.origins; message: -1 for none; also: for tokens
 *   that straddle a border, all the origins that they have bytes of.
 * @typedef {{name: string, role: string, message: number|null, tokens: number, reused: number}} Piece
 * @typedef {{messages: number[], tokens: number, reason: string, newly: boolean, texts: {role: string, content: string}[]}} Dropped
 * @typedef {{text: string, role: string, message: number|null, at: number}} LookAlike
 *   at: the index of its first character (code point) in the prompt.
 * @typedef {object} Reading
 * @property {number} prompt_tokens
 * @property {number} reused_tokens
 * @property {number} evaluated_tokens
 * @property {number} window
 * @property {number} reserve
 * @property {string} [policy]
 * @property {string|null} [note]
 * @property {number|null} [bos]
 * @property {number[]} [stop_ids]
 * @property {string} [template]
 * @property {string|null} [inserted_system]
 * @property {Dropped[]} dropped
 * @property {LookAlike[]} [look_alikes]
 * @property {Piece[]} pieces
 * @property {string[]} origins
 * @property {TokenColumns} tokens
 *
 * @typedef {{id: number, hex: string, logprob: number}} Choice
 * @typedef {{id: number, hex: string, logprob: number|null, top: Choice[]}} ReplyToken
 * @typedef {{prompt_tokens: number, reused_tokens: number, evaluated_tokens: number, generated_tokens: number}} Usage
 * @typedef {{text: string, finish_reason: string, stop?: string|null, usage?: Usage,
 *   timings?: {prompt_s: number, decode_s: number, first_token_s?: number|null}, seed?: number, limit: number}} Reply
 * @typedef {{role: string, content: string, cut?: boolean}} Message
 * @typedef {{name: string, title: string, context_length?: number}} ModelName
 * @typedef {object} Chat
 * @property {string} id
 * @property {ModelName} model
 * @property {string|null} system
 * @property {string|null} default_system
 * @property {number} window
 * @property {number} context_length
 * @property {number} reply_limit
 * @property {boolean} busy
 * @property {Message[]} messages
 * @property {number} alternatives
 * @property {number} chosen
 * @property {string[]} notes
 * @property {string} style
 * @property {Reading|null} reading
 * @property {number} count
 *
 * @typedef {{version: string, boot: string, device: string, model: ModelName|null, default_model: string,
 *   reply_limit: number, windows: number[]}} Status
 * @typedef {{name: string, title: string, license: string|null, size: number, download_size: number|null,
 *   work_size: number|null, here: boolean, loaded: boolean, default: boolean, pulling: boolean}} ModelInfo
 *
 * @typedef {{at: number, user: string, reading: Reading|null, reply: Reply|null, tokens: ReplyToken[], written: number,
 *   python?: string}} Turn
 *   What the page knows of one turn: of the tab's own ones since it was loaded, or of the recorded ones. at: the index
 *   of the user's message in the conversation. tokens: of the whole reply, as far as they are known; written: how many
 *   of them came with this reading (fewer after "continue").
 */
export {};
