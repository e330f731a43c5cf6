/** Where Node keeps a queue: in a file of JSON lines, for one process. It needs gateway-analytics.js beside it. */

import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { itemStorage } from "./gateway-analytics.js";

const LINES_MIN = 10_000; // a file of fewer is not worth writing anew

/**
 * Keep a queue in a file that only this user may read. Lines that a crash has cut are left out.
 *
 * @param {string} path
 */
export function fileStorage(path) {
  /** @type {Map<string, string>} */ const items = new Map();
  let lines = 0;
  for (const line of linesOf(path)) {
    const pairs = parsed(line);
    for (const [key, value] of pairs) value === null ? items.delete(key) : items.set(key, value);
  }
  let file = rewritten(path, items);

  /** @param {[string, string | null][]} pairs which are there together, or not at all */
  const append = (pairs) => {
    writeSync(file, `${JSON.stringify(pairs)}\n`);
    fsyncSync(file);
    for (const [key, value] of pairs) value === null ? items.delete(key) : items.set(key, value);
    if (++lines < LINES_MIN + 2 * items.size) return;
    closeSync(file);
    file = rewritten(path, items);
    lines = 0;
  };
  return itemStorage({
    getAllKeys: async () => [...items.keys()],
    multiGet: async (keys) => keys.map((key) => [key, items.get(key) ?? null]),
    multiSet: async (pairs) => append(pairs),
    multiRemove: async (keys) => append(keys.map((key) => [key, null])),
  });
}

/** @param {string} path */
function linesOf(path) {
  try {
    return readFileSync(path, "utf8").split("\n");
  } catch (err) {
    if (/** @type {NodeJS.ErrnoException} */ (err).code === "ENOENT") return [];
    throw err;
  }
}

/** @param {string} line @returns {[string, string | null][]} */
function parsed(line) {
  try {
    const pairs = JSON.parse(line);
    return Array.isArray(pairs) ? pairs : [];
  } catch {
    return [];
  }
}

/**
 * Write a file anew, and return it open at its end.
 *
 * @param {string} path
 * @param {Map<string, string>} items
 */
function rewritten(path, items) {
  const file = openSync(`${path}.new`, "w", 0o600);
  writeSync(file, [...items].map((pair) => `${JSON.stringify([pair])}\n`).join(""));
  fsyncSync(file);
  renameSync(`${path}.new`, path);
  return file;
}
