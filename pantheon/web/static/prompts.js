// @ts-check
/**
 * The system prompts that can be chosen. The recorded results bring the very texts that they were made with; live, the
 * date is today's.
 */
import { app } from "./store.js";

const PIRATE = "You are a pirate. Your name is Captain Redbeard. Always talk like a pirate.";

/** The date as a sentence says it. @param {Date} day */
export function dateText(day) {
  const words = day.toLocaleDateString("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" });
  return `Today is ${words.replace(",", "")}.`;
}

/** The system text of a choice; null: the template's own. @param {string} choice @returns {string|null} */
export function sampleText(choice) {
  if (choice === "none") return null;
  if (choice === "own") return app.ownText;
  const recorded = recordedText(choice);
  if (choice === "pirate") return recorded || PIRATE;
  if (app.mode === "recorded" && recorded) return recorded;
  return dateText(new Date());
}

/** @param {string} choice @returns {string|null} */
function recordedText(choice) {
  const systems = (app.recorded && app.recorded.systems) || [];
  const found = systems.find((/** @type {any} */ system) => system.key === choice);
  return found ? found.text : null;
}
