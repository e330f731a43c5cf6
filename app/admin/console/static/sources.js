// What each source sends: today, or since the start, over all workers that answer.

import { ask } from "./api.js";
import { byId, count, el, percent, show, time } from "./view.js";

const sum = (counts) => Object.values(counts).reduce((total, number) => total + number, 0);

const listed = (counts) => Object.entries(counts).sort(([, one], [, other]) => other - one)
  .map(([name, number]) => `${name} ${count(number)}`).join(", ");

function usedOf(quotas) {
  const uses = Object.entries(quotas).sort(([, one], [, other]) => other.used - one.used);
  return uses.length ? `${percent(Math.max(0, uses[0][1].used))} ${uses[0][0]}` : "–";
}

function rowOf({ source, quotas, ...periods }, period) {
  const own = periods[period];
  const { accepted = 0, duplicates = 0, conflicts = 0, rejected = 0 } = own.events;
  return el("tr", {},
    source ? el("td", { class: "source" }, source) : el("td", { class: "source none" }, "not known"),
    el("td", {}, count(sum(own.events))),
    el("td", { class: "less" }, count(accepted)),
    el("td", { title: listed(own.duplicate_causes) }, count(duplicates)),
    el("td", { title: listed(own.rejected_reasons) }, count(conflicts + rejected)),
    el("td", { class: "less", title: listed(own.refused_codes) }, count(sum(own.refused_codes))),
    el("td", { class: "less" }, usedOf(quotas)),
    el("td", { class: "less" }, listed(own.libraries) || "–"));
}

/** The card: its button changes between today and since the start. */
export class Sources {
  #document = null;
  #period = "today";

  constructor() {
    byId("sources-period").addEventListener("click", () => {
      this.#period = this.#period === "today" ? "total" : "today";
      this.#draw();
    });
  }

  /** Ask for the figures, and show them. */
  async look() {
    this.#document = await ask("admin/v1/sources");
    this.#draw();
  }

  #draw() {
    if (!this.#document) return;
    const { sources, since_ms: since, today_since_ms: today, silent } = this.#document;
    const isToday = this.#period === "today";
    const missing = Object.keys(silent).length;
    byId("sources-note").textContent = `since ${time(isToday ? today : since)}` +
      (missing ? `, without ${missing} worker${missing > 1 ? "s" : ""} that do not answer` : "");
    byId("sources-period").textContent = isToday ? "Since the start" : "Today";
    byId("sources-card").hidden = !sources.length;
    show(byId("sources-rows"), ...sources.map((row) => rowOf(row, this.#period)));
  }
}
