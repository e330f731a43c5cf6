// Did an event arrive? By its message id, or by its place in a client session.

import { ask, curl, Refusal } from "./api.js";
import { replayAt, replayButtons } from "./replay.js";
import { byId, bytes, copy, el, exact, moment, span, toast } from "./view.js";

export class Lookup {
  constructor() {
    this.form = byId("lookup");
    this.found = byId("found");
    this.form.addEventListener("change", () => this.choose());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.look();
    });
    byId("lookup-curl").addEventListener("click", () => {
      if (!this.form.reportValidity()) return toast("Say first what to look up");
      return copy(curl(...this.question()), "Command");
    });
    this.choose();
  }

  /** Show the fields of the chosen way; the others ask for nothing. */
  choose() {
    const by = this.form.elements.by.value;
    for (const label of this.form.querySelectorAll("[data-by]")) {
      label.hidden = label.dataset.by !== by;
      label.querySelector("input").disabled = label.hidden;
    }
  }

  question() {
    const { by, source, id, client, session, sequence } = this.form.elements;
    const path = "admin/v1/lookup";
    if (by.value === "message") return [path, { source: source.value, id: id.value }];
    return [path, {
      source: source.value, client: client.value, session: session.value, sequence: sequence.value,
    }];
  }

  /** Look a message id up that was clicked elsewhere. */
  async show(source, id) {
    this.form.elements.by.value = "message";
    this.choose();
    this.form.elements.source.value = source;
    this.form.elements.id.value = id;
    await this.look();
    this.form.scrollIntoView({ block: "center", behavior: "smooth" });
    this.form.elements.id.focus({ preventScroll: true });
  }

  async look() {
    this.found.replaceChildren(el("p", { class: "note" }, "Looking…"));
    try {
      this.tell(await ask(...this.question()));
    } catch (error) {
      const why = error instanceof Refusal ? error.message : "The gateway does not answer.";
      this.found.replaceChildren(el("p", { class: "answer", "data-level": "bad" }, why));
    }
  }

  tell(found) {
    if (!found.seen) {
      const why = "Not known: it was never stored, or longer ago than ids are remembered.";
      this.found.replaceChildren(el("p", { class: "answer", "data-level": "near" }, why), ...keptApart(found));
      return;
    }
    const age = found.age_seconds === undefined ? "" : `, ${span(found.age_seconds)} ago`;
    const facts = [
      ["Stored", found.timestamp_ms ? `${moment(found.timestamp_ms)}${age}` : null],
      ["Topic", found.topic], ["Partition", found.partition],
      ["Offset", found.offset === undefined ? null : exact(found.offset)],
      ["Size", found.bytes ? bytes(found.bytes) : null],
      ["Fields", found.fields?.join(", ")],
    ].filter(([, value]) => value !== null && value !== undefined);
    const list = el("dl", { class: "facts-list" },
      ...facts.map(([name, value]) => el("div", { class: name === "Fields" ? "whole" : null },
        el("dt", {}, name), el("dd", {}, `${value}`))));
    const says = found.forgotten ? "It arrived; its place is not known any more." : "It arrived.";
    const record = found.record
      ? [el("details", {}, el("summary", {}, "What may be shown of it"),
          el("pre", { tabindex: 0 }, JSON.stringify(found.record, null, 2)))] : [];
    this.found.replaceChildren(el("p", { class: "answer", "data-level": "wide" }, says), list, ...record,
      ...keptApart(found));
  }
}

/** Return what is said of copies in quarantine, where the gateway has looked for them. */
function keptApart({ quarantine }) {
  if (!quarantine) return [];
  const kept = quarantine.found.map(({ partition, offset, reason, timestamp_ms: ms }) => {
    const place = { partition, offset };
    return el("li", {},
      el("span", { class: `verdict ${reason === "conflict" ? "conflict" : "rejected"}` }, reason),
      ` quarantined at ${partition}:${offset}, ${moment(ms)} `,
      ...replayButtons(place, reason, replayAt(place, reason)));
  });
  const since = quarantine.searched_since_ms;
  const told = quarantine.searched_all || since === null ? null
    : el("p", { class: "note" }, `Quarantine was searched back to ${moment(since)}.`);
  return [kept.length ? el("ul", { class: "kept" }, ...kept) : null, told].filter(Boolean);
}
