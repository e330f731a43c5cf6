// An outage: what fails, since when, at which address, and what to do.

import { ask, runbook } from "./api.js";
import { el, inLocalTime, moment, span } from "./view.js";

/** A list of problems' contents: nodes to stand after the sentence of an outage. */
export class Outage {
  constructor() {
    this.config = null;
  }

  /** Return what stands below the sentence; nothing without an outage. */
  async below(stats, all) {
    if (!stats.outage) return [];
    this.config ??= await ask("admin/v1/config").catch(() => null);
    const facts = [["Fails", causeOf(all)], ["Since", sinceOf(stats, all)], ["Where", this.where(stats)]];
    return [
      el("dl", { class: "outage" }, ...facts.filter(([, value]) => value).map(([name, value]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      el("p", {}, "What to do: ", el("a", { href: runbook("log-down"), target: "_blank", rel: "noopener" },
        "runbook log-down"), ". Clients keep their events and send them again; nothing that was acknowledged is lost."),
    ];
  }

  where(stats) {
    const of = Object.fromEntries((this.config?.settings ?? []).map((one) => [one.variable, one.value]));
    if (stats.log === "kafka") return of.GATEWAY_KAFKA_BOOTSTRAP_SERVERS && `Kafka at ${of.GATEWAY_KAFKA_BOOTSTRAP_SERVERS}`;
    return of.GATEWAY_DATA_DIR && `the embedded log in ${of.GATEWAY_DATA_DIR}`;
  }
}

/** Return the errors of the partitions, each once with how often. */
function causeOf(all) {
  const times = new Map();
  for (const { state, last_error: error } of all) {
    if (state !== "active" && error) times.set(error, (times.get(error) ?? 0) + 1);
  }
  return [...times].map(([error, many]) => `${inLocalTime(error)} (${many} of ${all.length} partitions)`).join("; ");
}

function sinceOf(stats, all) {
  const told = Date.parse(stats.outage.match(/since (\S+Z)/)?.[1] ?? "");
  const failing = all.map((partition) => partition.failing_since_ms).filter(Boolean);
  const since = Number.isNaN(told) ? Math.min(...failing) : told;
  return Number.isFinite(since) ? `${moment(since)}, for ${span(Math.max(0, (Date.now() - since) / 1000))}` : null;
}
