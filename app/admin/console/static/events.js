// The last events that the worker holds in memory: the newest on top, each opens to all that is known of it.

import { ask, Refusal } from "./api.js";
import { byId, count, el, moment, timeWithSeconds } from "./view.js";

const PATH = "admin/v1/events";
const EVERY_MS = 2000;
const TYPING_MS = 400;
const ROWS_MAX = 200;

export class Events {
  /** `isSeen`: says whether the events are on the screen. */
  constructor(isSeen) {
    this.isSeen = isSeen;
    this.rows = byId("events-rows");
    this.note = byId("events-note");
    this.form = byId("events-filter");
    this.isPaused = false;
    this.newest = 0;
    this.areShown = false; // contents, at once: in development alone
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.begin(), TYPING_MS);
    });
    byId("events-pause").addEventListener("click", () => this.pause());
    setInterval(() => this.look(), EVERY_MS);
  }

  pause() {
    this.isPaused = !this.isPaused;
    const button = byId("events-pause");
    button.setAttribute("aria-pressed", String(this.isPaused));
    button.textContent = this.isPaused ? "Go on" : "Hold";
    this.look();
  }

  filter() {
    return Object.fromEntries([...new FormData(this.form)].map(([name, value]) => [name, value.trim()]));
  }

  /** Look with the filter as it is now, from an empty table. */
  begin() {
    this.newest = 0;
    this.round = null;
    this.rows.replaceChildren();
    this.look();
  }

  async look() {
    if (this.isPaused || document.hidden || !this.isSeen() || this.isRefused || this.round) return;
    const round = this.round = {};
    try {
      const found = await ask(PATH, { ...this.filter(), after: this.newest || "" });
      if (this.round === round) this.take(found);
    } catch (error) {
      this.isRefused = error instanceof Refusal && error.status === 403;
      this.say(this.isRefused ? "Events need the full token (GATEWAY_ADMIN_TOKEN); the live tail below needs none of it."
        : error instanceof Refusal ? error.message : "no answer; trying again");
    }
    if (this.round === round) this.round = null;
  }

  take(found) {
    if (found.newest < this.newest) { // the worker was started again
      this.newest = 0;
      this.rows.replaceChildren();
      return;
    }
    this.newest = found.newest;
    this.rows.prepend(...found.events.map((event) => this.row(event)));
    while (this.rows.childElementCount > ROWS_MAX) this.rows.lastElementChild.remove();
    const since = found.since_ms === null ? "" : `, since ${moment(found.since_ms)}`;
    this.say(`the last ${count(found.held)} of at most ${count(found.held_max)} that this worker holds in memory${since}`);
  }

  say(text) {
    if (this.note.textContent !== text) this.note.textContent = text;
  }

  row(event) {
    const warnings = event.warnings.map((one) =>
      el("span", { class: "warning", title: one.detail }, one.code.replaceAll("_", " ")));
    const name = [event.type, event.event].filter(Boolean).join(" · ") || event.code || "—";
    return el("tr", {},
      el("td", { class: "time" }, timeWithSeconds(event.time_ms)),
      el("td", {}, el("span", { class: `verdict ${event.verdict}`, title: event.code ?? "" }, event.verdict)),
      el("td", {}, el("button", { type: "button", class: "id", "aria-expanded": "false",
        onclick: (clicked) => this.open(event.number, clicked.currentTarget) }, name)),
      el("td", { class: "less source" }, event.source ?? "—"),
      el("td", { class: "less" }, event.message_id === null ? "—" : el("code", { title: event.message_id }, event.message_id)),
      el("td", {}, ...warnings));
  }

  /** Open a row to its event, or close it. */
  async open(number, button) {
    const row = button.closest("tr");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) {
      if (row.nextElementSibling?.classList.contains("opened")) row.nextElementSibling.remove();
      return;
    }
    const cell = el("td", { colspan: 6 });
    row.after(el("tr", { class: "opened" }, cell));
    await this.fill(cell, number, this.areShown);
  }

  async fill(cell, number, isShown) {
    try {
      // A parameter without a value would be left out.
      const told = await ask(`${PATH}/${number}`, isShown ? { value: "true" } : {});
      cell.replaceChildren(...this.told(told, cell).filter(Boolean));
    } catch (error) {
      cell.replaceChildren(el("p", { class: "note" }, error instanceof Refusal ? error.message : "no answer"));
    }
  }

  told(event, cell) {
    const { value, warnings, arrivals, receipt, differs, is_hidden: isHidden } = event;
    const others = arrivals.filter((one) => one.number !== event.number);
    const original = others.find((one) => one.verdict === "accepted" && one.number < event.number);
    return [
      ...warnings.map((one) => el("p", { class: "warning" }, one.detail)),
      event.verdict === "duplicate" ? el("p", {}, "Stored once; the original is at ",
        el("code", {}, `${event.partition}:${event.offset}`),
        original ? `, from ${moment(original.time_ms)}.` : ", from before what is held here.") : null,
      differs === undefined ? null : el("p", {}, differs === null
        ? "It differs from the stored event with its id, which cannot be read now." : `Differs in: ${differs.join(", ")}`),
      others.length ? el("p", {}, "Its id came also: ",
        others.map((one) => `${timeWithSeconds(one.time_ms)} (${one.verdict})`).join(", ")) : null,
      el("p", {}, "Receipt: ", el("code", {}, JSON.stringify(receipt))),
      value === null ? el("p", { class: "note" }, "Its content is too long to be shown here, or not known.")
        : el("pre", {}, JSON.stringify(value, null, 2)),
      isHidden && value !== null ? el("p", { class: "note" }, "Values are hidden. ",
        el("button", { type: "button", class: "quiet", onclick: () => this.fill(cell, event.number, true) }, "Show values"),
        " is written to the audit log.") : null,
    ];
  }
}
