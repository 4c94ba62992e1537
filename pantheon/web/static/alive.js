// @ts-check
/**
 * The line that a tab holds open so that the server knows it is there. A browser has few connections to one server (six,
 * over HTTP/1.1), and ten tabs must not use them up: a hidden tab keeps its line only if it gets one of a few places,
 * the one in front always has one. A tab without a line loses nothing but its reused prefix.
 */
import { alive, Refusal } from "./api.js";

const PLACES = 3;
/** @type {AbortController|null} */
let line = null;
let chat = "";
/** @type {() => void} */
let whenLost = () => {};
/** @type {(() => void)|null} */
let giveUpPlace = null;

/** @param {string} id @param {() => void} lost called when the server or the chat is gone */
export function holdOpen(id, lost) {
  chat = id;
  whenLost = lost;
  close();
  open();
}

async function open() {
  const mine = (line = new AbortController());
  try {
    for await (const event of await alive(chat, mine.signal)) void event;
    if (!mine.signal.aborted) setTimeout(() => line === mine && whenLost(), 300);
  } catch (error) {
    if (mine.signal.aborted || line !== mine) return;
    if (error instanceof Refusal && error.status >= 400 && error.status !== 404) return;
    whenLost();
  }
}

function close() {
  if (line) line.abort();
  line = null;
}

document.addEventListener("visibilitychange", async () => {
  if (!chat) return;
  if (document.visibilityState === "visible") {
    if (giveUpPlace) giveUpPlace();
    giveUpPlace = null;
    if (!line) open();
  } else if (!(await takePlace()) && document.visibilityState === "hidden") close();
});

/** One of the places for hidden tabs, held until it is given up. @returns {Promise<boolean>} */
async function takePlace() {
  if (!navigator.locks) return true;
  for (let place = 0; place < PLACES; place++) {
    const got = await new Promise((resolve) => {
      navigator.locks.request(`pantheon.line.${place}`, { ifAvailable: true }, (lock) => {
        resolve(Boolean(lock));
        return lock ? new Promise((free) => (giveUpPlace = () => free(undefined))) : undefined;
      });
    });
    if (got) return true;
  }
  return false;
}

window.addEventListener("pageshow", (event) => {
  if (event.persisted && chat) {
    close();
    open();
  }
});
