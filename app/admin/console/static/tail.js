// The live tail: rows as they come, the newest on top, until it is paused or the page is out of sight.

import { curl, lines, Refusal, token } from "./api.js";
import { byId, copy, count, el, span, timeWithSeconds } from "./view.js";

export const VERDICTS = ["accepted", "duplicate", "conflict", "rejected", "refused", "unknown"];
const APART = new Set(["conflict", "rejected"]);
const PATH = "admin/v1/tail";
const PATH_OF_VALUES = "admin/v1/tail/values";
const ROWS_MAX = 100;
const PAINT_MS = 500;
const ROWS_A_PAINT = 25;
const AGAIN_MS = 2000;
const TYPING_MS = 400;

export class Tail {
  /**
   * `lookup`: called with a source and a message id that the operator wants to know more of.
   * `onApart`: called when an event was quarantined.
   * `onEvent`: called with each event.
   */
  constructor(lookup, onApart, onEvent) {
    this.lookup = lookup;
    this.onApart = onApart;
    this.onEvent = onEvent;
    this.isShown = null; // unknown before the mode is
    this.rows = byId("tail-rows");
    this.note = byId("tail-note");
    this.form = byId("tail-filter");
    this.isPaused = false;
    this.waiting = [];
    this.missed = 0;
    byId("tail-verdicts").append(...VERDICTS.map((name) =>
      el("label", { class: "check" }, el("input", { type: "checkbox", name: "verdict", value: name, checked: true }),
        el("span", { class: `verdict ${name}` }, name))));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.begin(), TYPING_MS);
    });
    byId("pause").addEventListener("click", () => this.pause());
    byId("tail-curl").addEventListener("click", () => copy(curl(this.path, this.filter(), "-sN"), "Command"));
    byId("tail-values").addEventListener("click", () => this.showValues(!this.isShown));
    document.addEventListener("visibilitychange", () => this.resume());
    setInterval(() => this.paint(), PAINT_MS);
  }

  /**
   * Begin, once the mode is known: what is begun twice loses the rows between.
   * Contents are shown at once in development; elsewhere only when asked, which the audit log notes.
   */
  in(mode) {
    if (this.isShown !== null) return;
    byId("tail-values").hidden = false;
    this.showValues(mode === "development" && !token.get());
  }

  showValues(isShown) {
    this.isShown = isShown;
    const button = byId("tail-values");
    button.setAttribute("aria-pressed", String(isShown));
    button.textContent = isShown ? "Hide contents" : "Show contents";
    this.begin();
  }

  get path() {
    return this.isShown ? PATH_OF_VALUES : PATH;
  }

  filter() {
    const { source, id } = this.form.elements;
    const verdicts = VERDICTS.filter((_, place) => this.form.elements.verdict[place].checked);
    const isAll = verdicts.length === VERDICTS.length;
    return { source: source.value.trim(), id: id.value.trim(), verdict: isAll ? "" : verdicts.join(",") };
  }

  pause() {
    this.isPaused = !this.isPaused;
    const button = byId("pause");
    button.setAttribute("aria-pressed", String(this.isPaused));
    button.textContent = this.isPaused ? "Go on" : "Pause";
    this.resume();
  }

  resume() {
    const shouldRun = !this.isPaused && !document.hidden;
    if (shouldRun && !this.running) this.begin();
    if (!shouldRun) {
      this.running?.abort();
      this.running = null;
      this.say("paused");
    }
  }

  /** Follow with the filter as it is now, from an empty table. */
  begin() {
    this.running?.abort();
    this.running = null;
    if (this.isShown === null || this.isPaused || document.hidden) return;
    this.waiting = [];
    this.missed = 0;
    this.rows.replaceChildren();
    if (!this.form.querySelector("[name=verdict]:checked")) {
      this.say("no verdict is chosen");
      return;
    }
    this.running = new AbortController();
    this.follow(this.running.signal);
  }

  async follow(signal) {
    while (!signal.aborted) {
      try {
        for await (const told of lines(this.path, this.filter(), signal)) this.take(told);
        this.say("the gateway ended it; trying again");
      } catch (error) {
        if (signal.aborted) return;
        this.say(error instanceof Refusal ? error.message : "no answer; trying again");
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }

  take(told) {
    for (const line of told) {
      if (line.kind === "event") {
        this.waiting.push(line);
        this.onEvent(line);
      }
      if (line.kind === "missed") this.missed += line.events;
    }
    this.say(this.missed ? `live · ${count(this.missed)} not shown` : "live");
  }

  say(text) {
    if (this.note.textContent !== text) this.note.textContent = text;
    this.note.dataset.live = text.startsWith("live");
  }

  paint() {
    if (!this.waiting.length) return;
    this.missed += Math.max(0, this.waiting.length - ROWS_A_PAINT);
    const newest = this.waiting.slice(-ROWS_A_PAINT).reverse();
    if (this.waiting.some((event) => APART.has(event.verdict))) this.onApart();
    this.waiting = [];
    this.rows.prepend(...newest.map((event) => this.row(event)));
    while (this.rows.childElementCount > ROWS_MAX) this.rows.lastElementChild.remove();
  }

  row(event) {
    const { source, message_id: id, partition, offset, age_seconds: age } = event;
    const named = id === null
      ? el("span", { class: "none" }, event.sequence === null ? "—" : `${event.client} #${event.sequence}`)
      : el("button", { type: "button", class: "id", title: id, onclick: () => this.lookup(source, id) }, id);
    return el("tr", {},
      el("td", { class: "time" }, el("button", { type: "button", class: "id", "aria-expanded": "false",
        onclick: (clicked) => this.open(event, clicked.currentTarget) }, timeWithSeconds(event.time_ms))),
      el("td", {}, el("span", { class: `verdict ${event.verdict}`, title: event.code ?? "" }, event.verdict),
        event.code && event.code !== event.verdict ? el("span", { class: "code" }, event.code) : null),
      el("td", { class: "source" }, source ?? "—"),
      el("td", {}, named),
      el("td", { class: "less" }, [event.type, event.event].filter(Boolean).join(" · ")),
      el("td", { class: "less place" }, offset === null ? "" : `${partition}:${offset}`),
      el("td", { class: "less place" }, age === null || age < 0 ? "" : span(age)));
  }
  /** Open a row to its event, or close it. */
  open(event, button) {
    const row = button.closest("tr");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) {
      row.nextElementSibling?.remove();
      return;
    }
    const { value, kind, ...told } = event;
    row.after(el("tr", { class: "opened" }, el("td", { colspan: 7 },
      event.differs ? el("p", {}, `Differs in: ${event.differs.join(", ")}`) : null,
      value ? null : el("p", { class: "note" }, this.isShown
        ? "Its content is too long to be shown here, or not known."
        : "Its content is hidden. “Show contents” needs the full token, and is written to the audit log."),
      value ? el("pre", {}, JSON.stringify(value, null, 2)) : null,
      el("details", {}, el("summary", {}, "What the gateway decided"), el("pre", {}, JSON.stringify(told, null, 2))))));
  }
}
