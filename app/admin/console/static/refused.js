// The requests that were refused, by source, reason and the library that sent them.

import { byId, count, el, show } from "./view.js";

/** Return the refused requests of all workers that tell them. */
function toldOf(stats, group) {
  return Object.values(group?.workers ?? { one: stats }).map((worker) => worker.refused_requests).filter(Boolean);
}

/** Return how many requests were refused before their events were known: no other figure has them. */
export function requestsWithoutEvents(stats, group) {
  return toldOf(stats, group).reduce((total, one) => total + one.before_events, 0);
}

function add(totals, counts) {
  for (const [name, number] of Object.entries(counts)) totals[name] = (totals[name] ?? 0) + number;
}

const listed = (counts) => Object.entries(counts).sort(([, one], [, other]) => other - one)
  .map(([name, number]) => `${name} ${count(number)}`).join(", ");

/** Tell them in the card, which is hidden while there are none. */
export function tellRefused(stats, group) {
  const sources = new Map();
  for (const { source, requests, codes, libraries } of toldOf(stats, group).flatMap((one) => one.sources)) {
    const sum = sources.get(source) ?? { requests: 0, codes: {}, libraries: {} };
    sum.requests += requests;
    add(sum.codes, codes);
    add(sum.libraries, libraries);
    sources.set(source, sum);
  }
  const ranked = [...sources].sort(([, one], [, other]) => other.requests - one.requests);
  byId("refused-card").hidden = !ranked.length;
  show(byId("refused-rows"), ...ranked.map(([source, { requests, codes, libraries }]) => el("tr", {},
    source === null ? el("td", { class: "source none" }, "not known yet") : el("td", { class: "source" }, source),
    el("td", {}, count(requests)), el("td", {}, listed(codes)), el("td", { class: "less" }, listed(libraries)))));
}
