/** Where Node keeps a queue: in a file of JSON lines, for one process. It needs gateway-analytics.js beside it. */

import { closeSync, copyFileSync, fstatSync, fsyncSync, openSync, readFileSync, renameSync, rmSync, statSync, writeSync } from "node:fs";
import { itemStorage } from "./gateway-analytics.js";

const LINES_MIN = 10_000; // a file of fewer is not worth writing anew

/** @typedef {[string, string | null][]} Pairs which are there together, or not at all; null deletes */

/**
 * Keep a queue in a file that only this user may read. It is opened when it is first used; until it can be, and after
 * what it has not taken, the client has its events in memory. Lines that a crash has cut are left out; a file with others that
 * cannot be read is copied to one whose name ends in `.corrupt-<time>`.
 *
 * @param {string} path
 */
export function fileStorage(path) {
  /** @type {Map<string, string> | undefined} */ let items;
  /** @type {number | undefined} */ let file;
  let lines = 0;

  const load = () => (items ??= itemsOf(path));

  /** @param {Pairs} pairs */
  const append = (pairs) => {
    const all = load();
    try {
      if (file !== undefined && !isAt(path, file)) shut(); // somebody has deleted or replaced it
      let begin = "";
      if (file === undefined || lines > LINES_MIN + 2 * all.size) {
        const before = file;
        [file, begin] = reopened(path, all);
        lines = 0;
        if (before !== undefined) closeSync(before);
      }
      writeAll(file, `${begin}${JSON.stringify(pairs)}\n`);
      fsyncSync(file);
    } catch (err) {
      shut(); // what is at its end now, nobody knows
      throw err;
    }
    lines++;
    put(all, pairs);
  };

  const shut = () => {
    const before = file;
    file = undefined;
    if (before !== undefined) closeSync(before);
  };

  return itemStorage({
    getAllKeys: async () => [...load().keys()],
    multiGet: async (keys) => keys.map((key) => [key, load().get(key) ?? null]),
    multiSet: async (pairs) => append(pairs),
    multiRemove: async (keys) => append(keys.map((key) => [key, null])),
  });
}

/**
 * @param {Map<string, string>} items
 * @param {Pairs} pairs
 */
function put(items, pairs) {
  for (const [key, value] of pairs) value === null ? items.delete(key) : items.set(key, value);
}

/**
 * Read a file.
 *
 * @param {string} path
 * @returns {Map<string, string>}
 */
function itemsOf(path) {
  /** @type {Map<string, string>} */ const items = new Map();
  const lines = linesOf(path);
  let isDamaged = false;
  lines.forEach((line, index) => {
    const pairs = parsed(line);
    if (pairs) put(items, pairs);
    else isDamaged ||= line !== "" && index < lines.length - 1;
  });
  if (isDamaged) {
    const aside = `${path}.corrupt-${Date.now()}`;
    try {
      copyFileSync(path, aside);
    } catch {} // no room for it
    console.warn("gateway:", `${path} was damaged: what can be read of it is queued, and it is kept as ${aside}`);
  }
  return items;
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

/** @param {string} line @returns {Pairs | undefined} nothing, if it is damaged */
function parsed(line) {
  try {
    const pairs = JSON.parse(line);
    const isPair = (/** @type {any} */ pair) => typeof pair[0] === "string" && (pair[1] === null || typeof pair[1] === "string");
    return pairs.every(isPair) ? pairs : undefined;
  } catch {}
}

/** @param {string} path @param {number} file */
function isAt(path, file) {
  try {
    return statSync(path).ino === fstatSync(file).ino;
  } catch {
    return false;
  }
}

/**
 * Write a file anew, and return it open at its end; without room for that the old one, with what is to be written first.
 *
 * @param {string} path
 * @param {Map<string, string>} items
 * @returns {[file: number, begin: string]}
 */
function reopened(path, items) {
  /** @type {number | undefined} */ let file;
  try {
    file = openSync(`${path}.new`, "w", 0o600);
    writeAll(file, [...items].map((pair) => `${JSON.stringify([pair])}\n`).join(""));
    fsyncSync(file);
    renameSync(`${path}.new`, path);
    return [file, ""];
  } catch {
    if (file !== undefined) closeSync(file);
    rmSync(`${path}.new`, { force: true });
    return [openSync(path, "a", 0o600), "\n"]; // its last line may be cut
  }
}

/**
 * Write all of a text, or throw: a disk that becomes full takes a part.
 *
 * @param {number} file
 * @param {string} text
 */
function writeAll(file, text) {
  const bytes = new TextEncoder().encode(text);
  for (let written = 0; written < bytes.length; ) written += writeSync(file, bytes, written);
}
