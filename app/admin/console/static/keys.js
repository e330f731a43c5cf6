// What is wrong with write keys: those that have vanished from the file, and requests with an unknown one.

import { span } from "./view.js";

const RECENT_MS = 15 * 60 * 1000;
const NAMED_MAX = 3;

export function keyProblems(stats, group) {
  const workers = group?.workers ? Object.values(group.workers) : [stats];
  const all = workers.map((worker) => worker.write_keys).filter(Boolean);
  const found = [];
  if (all.some((keys) => keys.is_stale)) {
    found.push(["warn", "The file of write keys cannot be used; the last good keys are."]);
  }
  const removed = all.flatMap((keys) => keys.removed_keys);
  if (removed.length) {
    const sources = [...new Set(removed.map((key) => key.source))];
    const left = (Math.min(...removed.map((key) => key.until_ms)) - Date.now()) / 1000;
    found.push(["warn", `Write keys of ${listed(sources)} have vanished from the file: they work for ` +
      `${span(Math.max(1, left))} more, and then events are lost.`]);
  }
  const senders = all.flatMap((keys) => keys.unknown_senders)
    .filter((sender) => sender.last_ms > Date.now() - RECENT_MS)
    .sort((one, other) => other.requests - one.requests);
  if (senders.length) {
    const { key, address, library } = senders[0];
    const begins = key ? `that begins with “${key}”, ` : "";
    found.push(["warn", `Requests have an unknown write key, and are refused: mostly one ${begins}from ${address} (${library}).`]);
  }
  return found;
}

function listed(names) {
  const more = names.length - NAMED_MAX;
  return names.slice(0, NAMED_MAX).join(", ") + (more > 0 ? ` and ${more} more sources` : "");
}
