// @ts-check
/**
 * Where the page begins: each part starts, then the server is asked what is here. Without a model the recorded results
 * are shown, with one the chat is.
 */
import { $, number } from "./dom.js";
import { app, emit, on } from "./store.js";
import * as api from "./api.js";
import { startChallenges } from "./challenges.js";
import { startComposer } from "./composer.js";
import { startMessages } from "./messages.js";
import { startModels } from "./models.js";
import { startPython } from "./python.js";
import { startReading } from "./reading.js";
import { startRecorded } from "./recorded.js";
import { lost, recallSettings, startSession } from "./session.js";
import { contextLength, startSettings } from "./settings.js";

async function start() {
  recallSettings();
  startSettings();
  startReading();
  startMessages();
  startComposer();
  startChallenges();
  startPython();
  on("status", drawTraining);
  on("recorded", drawTraining);
  try {
    app.status = await api.getStatus();
  } catch (error) {
    if (error instanceof api.Refusal && error.type === "unreachable") await lost();
    else {
      $("connection").textContent = error instanceof Error ? error.message : String(error);
      $("connection").hidden = false;
      return;
    }
  }
  if (app.status && app.status.model) app.mode = "live";
  emit("status");
  emit("mode");
  await startRecorded(); // the texts of the system prompts come with it
  await Promise.all([startModels(), startSession()]);
  emit("mode");
  document.documentElement.dataset.ready = "yes";
}

function drawTraining() {
  const model = (app.status && app.status.model) || (app.recorded && app.recorded.model);
  const context = contextLength();
  if (model && context < Infinity) $("trained-on").textContent = `${model.title} was trained to read ${number(context)} tokens`;
  const limit = (app.status && app.status.reply_limit) || 96;
  for (const place of document.querySelectorAll("[data-reply-limit]")) place.textContent = number(limit);
}

start();
