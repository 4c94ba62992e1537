// @ts-check
/**
 * The models on this computer: what is here with its size, getting one with its progress, deleting one after asking.
 */
import { $, announce, fill, h, megabytes, show } from "./dom.js";
import { app, emit, on } from "./store.js";
import * as api from "./api.js";
import { setMode } from "./recorded.js";
import { talkWith } from "./session.js";

/** @type {import("./types.js").ModelInfo[]} */
let models = [];
/** @type {{name: string, text: string, fraction: number|null, controller: AbortController}|null} */
let pull = null;
/** What went wrong last, by model. @type {Record<string, string>} */
const problems = {};

const PHASES = /** @type {Record<string, string>} */ ({ download: "Downloading", convert: "Converting", quantize: "Converting", verify: "Checking", check: "Checking" });

export async function startModels() {
  on("mode", draw);
  on("chat", drawStatus);
  on("status", refresh);
  await refresh();
}

async function refresh() {
  try {
    models = await api.getModels();
  } catch {
    return; // the connection's own message says it
  }
  draw();
}

function draw() {
  drawStatus();
  fill($("model-list"), ...models.map(item));
  const invite = $("invite");
  const standard = models.find((model) => model.default);
  show(invite, app.mode === "recorded");
  if (standard && app.mode === "recorded") fill(invite, ...inviteOf(standard));
  if (standard) $("about-download").replaceChildren(...about(standard));
}

function drawStatus() {
  const { status } = app;
  const pill = document.querySelector('[data-testid="model-status"]');
  if (pill) pill.textContent = app.mode === "live" && app.chat ? `${app.chat.model.title} · on this device`
    : status && status.model ? `${status.model.title} · on this device` : "No model here yet";
  $("device").textContent = status ? `Pantheon ${status.version} · ${status.device}` : "";
}

/** @param {import("./types.js").ModelInfo} model */
function inviteOf(model) {
  if (model.here) {
    return [h("p", null, "These are recorded results of the model that is on this computer. ",
      h("button", { type: "button", class: "link", onclick: () => setMode("live") }, "Chat with it live"), ".")];
  }
  return [h("p", null, h("strong", null, "What you see was recorded. "),
    "Step through five messages, for each system prompt and window; or get the model and write your own."), action(model)];
}

/** @param {import("./types.js").ModelInfo} model */
function item(model) {
  const facts = [model.here ? `${megabytes(model.size)} on disk` : `${megabytes(model.download_size)} to download`, model.license,
    model.loaded && "loaded", model.default && "the default"].filter(Boolean).join(" · ");
  return h("li", { dataModel: model.name }, h("div", null, h("b", null, model.title), h("p", { class: "hint" }, facts)), action(model));
}

/** What can be done with a model now. @param {import("./types.js").ModelInfo} model */
function action(model) {
  if (pull && pull.name === model.name) return progress();
  const words = problems[model.name] && h("p", { class: "problem", role: "alert" }, problems[model.name]);
  const act = model.here
    ? h("span", { class: "acts" }, inUse(model) ? h("span", { class: "hint" }, "in use") : talkButton(model),
      h("button", { type: "button", class: "quiet", onclick: () => remove(model) }, "Delete", h("span", { class: "hidden" }, ` ${model.title}`)))
    : h("button", { type: "button", class: "primary", disabled: Boolean(pull) || model.pulling, onclick: () => get(model) },
      model.pulling ? "Being downloaded elsewhere" : `Get ${model.title} (${megabytes(model.download_size)})`);
  return h("div", { class: "act" }, act, words);
}

/** @param {import("./types.js").ModelInfo} model */
const inUse = (model) => app.mode === "live" && (app.chat ? app.chat.model.name === model.name : model.default && !app.model);

/** @param {import("./types.js").ModelInfo} model */
function talkButton(model) {
  const talk = async () => {
    setMode("live");
    await talkWith(model.name);
    draw();
  };
  return h("button", { type: "button", class: "quiet", disabled: app.busy, onclick: talk }, "New chat with it");
}

function progress() {
  const { text, fraction, controller } = /** @type {NonNullable<typeof pull>} */ (pull);
  const bar = h("progress", { max: "1", ariaLabel: "Progress of the download" });
  if (fraction !== null) bar.value = fraction;
  return h("div", { class: "act pulling" }, bar, h("span", { class: "hint", dataTestid: "pull-text" }, text),
    h("button", { type: "button", class: "quiet", onclick: () => controller.abort() }, "Stop"));
}

/** @param {import("./types.js").ModelInfo} model */
async function get(model) {
  const controller = new AbortController();
  delete problems[model.name];
  pull = { name: model.name, text: "Beginning…", fraction: null, controller };
  draw();
  announce(`Getting ${model.title}.`);
  try {
    for await (const [name, data] of await api.pullModel(model.name, controller.signal)) {
      if (name === "progress") advance(data);
      else if (name === "error") throw new api.Refusal(data.error.type, api.sentence(data.error.message), 400);
      else if (name === "done") await arrived(model);
    }
  } catch (error) {
    const stopped = controller.signal.aborted;
    problems[model.name] = stopped ? "Stopped." : error instanceof Error ? error.message : String(error);
    announce(problems[model.name]);
  } finally {
    pull = null;
    await refresh();
  }
}

/** Change the bars in place: the list is not drawn anew for each step. @param {{phase: string, fraction: number|null, done_bytes?: number, total_bytes?: number}} data */
function advance({ phase, fraction, done_bytes: done, total_bytes: total }) {
  if (!pull) return;
  const what = PHASES[phase] || phase[0].toUpperCase() + phase.slice(1);
  pull.text = done && total ? `${what}: ${megabytes(done)} of ${megabytes(total)}` : fraction == null ? what : `${what}: ${Math.round(fraction * 100)} %`;
  pull.fraction = fraction;
  for (const place of document.querySelectorAll(".pulling")) {
    const bar = place.querySelector("progress");
    if (bar && fraction !== null) bar.value = fraction;
    const words = place.querySelector(".hint");
    if (words) words.textContent = pull.text;
  }
}

/** @param {import("./types.js").ModelInfo} model */
async function arrived(model) {
  app.status = await api.getStatus();
  emit("status");
  announce(`${model.title} is here. You can chat.`);
  if (app.mode === "recorded") setMode("live");
  $("message").focus();
}

/** @param {import("./types.js").ModelInfo} model */
async function remove(model) {
  const dialog = $("ask");
  $("ask-title").textContent = `Delete ${model.title}?`;
  $("ask-text").textContent = `This frees ${megabytes(model.size)}. To chat again it must be downloaded again.`;
  dialog.returnValue = "no";
  dialog.showModal();
  $("ask-no").focus();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "yes") return;
  try {
    const { freed } = await api.removeModel(model.name);
    announce(`Deleted; ${megabytes(freed)} freed.`);
    delete problems[model.name];
    app.status = await api.getStatus();
    if (!app.status.model) {
      app.chat = null;
      setMode("recorded");
    }
    emit("status");
  } catch (error) {
    const busy = error instanceof api.Refusal && error.type === "busy";
    problems[model.name] = busy ? "A chat is using it. Close the other tabs, or begin a new chat, then delete it." : error instanceof Error ? error.message : String(error);
  }
  await refresh();
}

/** "About the download", with this model's numbers. @param {import("./types.js").ModelInfo} model */
function about(model) {
  const small = model.name === "smollm2";
  const whatItIs = small ? " It is the chat version of SmolLM2-135M from Hugging Face (2024): the same 135 million parameters, fine-tuned on about "
    + "460,000 example conversations and then preference-tuned, run by Pantheon’s own engine." : " It is run by Pantheon’s own engine.";
  const size = model.download_size ? ` The first time, about ${megabytes(model.download_size)} are downloaded` : " The first time, it is downloaded";
  const work = model.work_size ? `, and for a moment about ${megabytes(model.work_size)} of disk are needed while it is converted to 8-bit weights` : "";
  return [`Chat with a small instruction-tuned model and see exactly what it reads each turn. This uses ${model.title}.`, whatItIs,
    `${size}${work}. It is kept on this computer for later.${model.license ? ` Its licence: ${model.license}.` : ""}`];
}
