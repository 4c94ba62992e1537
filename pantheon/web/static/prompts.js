// @ts-check
/**
 * The system prompts that can be chosen. Their texts come with the recorded results, which were made with them; live,
 * the date in them is today's.
 */
import { app } from "./store.js";

/** Without recorded results, which bring the real ones. */
const PLAIN = /** @type {Record<string, string>} */ ({
  pirate: "You are a pirate named Captain Mary.",
  date: "You are a helpful AI assistant. Today's date is {date}. The year is {year}.",
});

/** "1 July 2026" @param {Date} day */
function inWords(day) {
  return day.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
}

/** The system text of a choice; null: the template's own. @param {string} choice @returns {string|null} */
export function sampleText(choice) {
  if (choice === "none") return null;
  if (choice === "own") return app.ownText;
  const systems = (app.recorded && app.recorded.systems) || [];
  const found = systems.find((/** @type {any} */ system) => system.key === choice);
  if (found && app.mode === "recorded") return found.text;
  const text = (found && found.live) || PLAIN[choice];
  const today = new Date();
  return text.replaceAll("{date}", inWords(today)).replaceAll("{year}", String(today.getFullYear()));
}
