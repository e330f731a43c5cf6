// The events that were rejected or conflicted last, each with its reason and the ways to go on from there.

import { replayButtons, replayOf } from "./replay.js";
import { byId, count, el, moment, show } from "./view.js";

const SHOWN = 12;

export class Apart {
  /** `lookup`: see Tail. */
  constructor(lookup) {
    this.lookup = lookup;
    this.node = byId("apart");
    this.note = byId("apart-note");
    this.limit = SHOWN;
  }

  update(events) {
    this.events = events;
    this.note.textContent = events.length ? `${count(events.length)}, the newest first` : "";
    if (!events.length) {
      show(this.node, el("li", { class: "empty" }, "Nothing was rejected or in conflict since this worker began."));
      return;
    }
    // Rows are made anew only when they change, so that one in focus stays.
    const told = JSON.stringify([events.slice(0, this.limit), events.length]);
    if (told === this.told) return;
    this.told = told;
    const focused = this.node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const rows = events.slice(0, this.limit).map((event) => this.row(event));
    if (events.length > this.limit) {
      rows.push(el("li", {}, el("button", { type: "button", class: "quiet", onclick: () => this.all() }, "Show all")));
    }
    this.node.replaceChildren(...rows);
    if (focused) this.node.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }

  all() {
    this.limit = Infinity;
    this.update(this.events);
  }

  row(event) {
    const { source, message_id: id, type, event: name } = event;
    const what = [type, name].filter(Boolean).join(" · ");
    const key = `${source}/${id}/${event.code}/${event.first_ms}`;
    return el("li", {},
      el("p", { class: "line" },
        el("span", { class: `verdict ${event.verdict}` }, event.code ?? event.verdict),
        el("span", { class: "time" }, moment(event.time_ms)),
        event.times > 1 ? el("span", { class: "times" }, `${count(event.times)} times`) : null),
      el("p", { class: "what" },
        el("strong", {}, source ?? "—"), " ",
        id === null ? el("span", { class: "none" }, "no valid message id") : el("code", {}, id),
        what ? ` ${what}` : null),
      event.reason ? el("p", { class: "reason" }, event.reason) : null,
      event.differs?.length ? el("p", { class: "reason" }, `Differs in: ${event.differs.join(", ")}`) : null,
      el("p", { class: "links" },
        id !== null && event.verdict === "conflict"
          ? el("button", { type: "button", class: "quiet", "data-focus": `o ${key}`,
              onclick: () => this.lookup(source, id) }, "Look up the original") : null,
        ...replayButtons(event.quarantine, event.code, replayOf(event), key)));
  }
}
