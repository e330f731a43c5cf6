// The topics that the asked worker reads: what is left of each partition, how fast it is read, and what became of it.

import { byId, count, el, rate, show } from "./view.js";

const known = (value, words) => (value === null || value === undefined ? "–" : words(value));

function stateOf({ stopped, paused }) {
  if (stopped) return "stopped";
  return paused ? "paused" : "read";
}

function rowOf(input, place, counts) {
  return el("tr", { title: input.stopped },
    el("td", { class: "source" }, place),
    el("td", {}, stateOf(input)),
    el("td", {}, known(counts.lag, count)),
    el("td", {}, known(counts.records_per_s, rate)),
    el("td", { class: "less" }, count(counts.accepted)),
    el("td", {}, count(counts.duplicates)),
    el("td", {}, count(counts.conflicts + counts.rejected)));
}

/** Return what is wrong with inputs, as a level and a sentence each. */
export function inputProblems({ inputs = [] }) {
  return inputs.filter((input) => input.stopped)
    .map((input) => ["bad", `Input ${input.input} is stopped: ${input.stopped}.`]);
}

/** Show a row for each input, and one for each of its partitions. */
export function tellInputs({ inputs = [] }) {
  byId("inputs-card").hidden = !inputs.length;
  show(byId("inputs-rows"), ...inputs.flatMap((input) => [
    rowOf(input, input.input, input),
    ...input.partitions.map((one) => rowOf(input, `${input.topic}/${one.partition}`, one)),
  ]));
}
