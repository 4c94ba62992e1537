// @ts-check
/**
 * System prompt, window and sampling: reads them from the controls into the store, and the other way about.
 */
import { $, h, number, show } from "./dom.js";
import { app, emit, on, shownTurn } from "./store.js";
import { sampleText } from "./prompts.js";

const FIELDS = /** @type {[string, string, string, number, number, number|string][]} */ ([
  // name, label, what it does, least, most, step
  ["temperature", "Temperature", "0 is greedy, higher is wilder", 0, 5, 0.05],
  ["top_k", "Top k", "only the k likeliest; 0: all", 0, 1000, 1],
  ["top_p", "Top p", "only the likeliest that make up p", 0.01, 1, 0.01],
  ["min_p", "Min p", "none below p times the likeliest", 0, 1, 0.01],
  ["seed", "Seed", "empty: a fresh one each time", 0, Number.MAX_SAFE_INTEGER, 1],
]);

export function startSettings() {
  for (const radio of radios("system")) radio.addEventListener("change", () => chooseSystem(radio.value));
  $("own").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    app.ownText = $("own-text").value;
    changed();
  });
  $("sampling").addEventListener("click", () => {
    app.sampling.on = !app.sampling.on;
    changed();
  });
  $("sampling-fields").append(...FIELDS.map(field));
  on("status", drawWindows);
  on("recorded", drawWindows);
  on("chat", () => {
    drawWindows();
    drawText();
  });
  on("turns", drawText);
  on("mode", draw);
  $("own-text").value = app.ownText;
  drawWindows();
  draw();
}

/** @param {string} name @returns {HTMLInputElement[]} */
const radios = (name) => /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(`input[name="${name}"]`)]);

/** @param {string} choice */
export function chooseSystem(choice) {
  app.system = /** @type {any} */ (choice);
  changed();
  if (choice === "own") $("own-text").focus();
}

/** @param {number|null} window */
export function chooseWindow(window) {
  app.window = window;
  changed();
}

function changed() {
  draw();
  emit("settings");
}

function draw() {
  for (const radio of radios("system")) radio.checked = radio.value === app.system;
  for (const radio of radios("window")) radio.checked = radio.value === String(app.window ?? "own");
  show($("own"), app.system === "own");
  const { on: sampled } = app.sampling;
  $("sampling").setAttribute("aria-checked", String(sampled));
  $("sampling-hint").textContent = sampled ? "on: drawn by chance" : "off: always the most likely one";
  show($("sampling-fields"), sampled);
  show($("decoding"), app.mode === "live");
  show($("sampling-fields"), sampled && app.mode === "live");
  drawText();
}

/** What the choice comes to, in words. */
function drawText() {
  const text = sampleText(app.system);
  const turn = shownTurn();
  const inserted = app.chat && app.mode === "live" ? app.chat.default_system : turn && turn.reading && turn.reading.inserted_system;
  const line = $("system-text");
  show(line, app.system !== "own");
  line.replaceChildren(...(text !== null ? ["The system prompt is ", h("q", { dir: "auto" }, text)]
    : inserted ? ["None of your own: the template inserts ", h("q", { dir: "auto" }, inserted)]
      : ["None of your own: what the template inserts then, if anything, is shown in what the model reads."]));
}

function drawWindows() {
  const sizes = (app.status && app.status.windows) || (app.recorded && app.recorded.windows.slice(0, -1)) || [128, 256, 512, 1024, 2048];
  const context = contextLength();
  const choices = [...sizes.filter((/** @type {number} */ size) => size < context).map((/** @type {number} */ size) => [String(size), number(size)]),
    ["own", context < Infinity ? `${number(context)}` : "Model’s own"]];
  const names = choices.join();
  const root = $("windows");
  if (root.dataset.names === names) return;
  root.dataset.names = names;
  root.replaceChildren(...choices.map(([value, label]) => {
    const title = value === "own" ? "the model’s own: all that it was trained to read" : null;
    const radio = h("input", { type: "radio", name: "window", value, onchange: () => chooseWindow(value === "own" ? null : Number(value)) });
    return h("label", { title }, radio, h("span", null, label, value === "own" && h("span", { class: "hidden" }, " (the model’s own)")));
  }));
  draw();
}

/** How much the model was trained to read; Infinity if no model is known. */
export function contextLength() {
  if (app.chat && app.mode === "live") return app.chat.context_length;
  const model = app.status && app.status.model;
  if (model && model.context_length) return model.context_length;
  return app.recorded ? app.recorded.windows[app.recorded.windows.length - 1] : Infinity;
}

/** @param {[string, string, string, number, number, number|string]} field */
function field([name, label, what, least, most, step]) {
  const values = /** @type {Record<string, any>} */ (app.sampling);
  const input = h("input", { type: "number", id: `s-${name}`, min: least, max: most, step, inputmode: "decimal", ariaDescribedby: `d-${name}` });
  input.value = values[name] ?? "";
  input.addEventListener("change", () => {
    const value = input.valueAsNumber;
    if (!input.checkValidity() || (Number.isNaN(value) && name !== "seed")) {
      input.reportValidity();
      return;
    }
    values[name] = Number.isNaN(value) ? null : value;
    emit("settings");
  });
  return h("div", null, h("label", { for: `s-${name}` }, label), input, h("span", { class: "hint", id: `d-${name}` }, what));
}
