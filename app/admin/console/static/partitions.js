// The strip of partitions: how long each remembers ids, who owns it, and how far it is on its way to serving.

import { bytes, byId, count, el, exact, inLocalTime, moment, show, span } from "./view.js";

const DAY_S = 86_400;
/** What the words of a partition's details mean. */
const WORDS = {
  "Owner": "The worker that writes this partition",
  "Standby": "The worker that follows it, and takes over if the owner is lost",
  "Remembers": "How far back message ids of this partition are known",
  "Ids": "Message ids in the partition's index",
  "Index": "Size of the index on disk",
  "Applied offset": "Up to this offset of the topic the index knows everything",
  "Slots": "How many parts of all message ids the partition has",
  "Inherits": "Parts of other logs that had its ids: it reads them before its own",
  "To inherit": "Offsets of these parts that it has to read before it serves",
  "To restore": "Records that the index has to read before the partition serves",
  "Waiting": "Events that wait for the next commit",
  "Mean commit": "Time from sending a batch to Kafka's acknowledgement",
};

/** Return a partition's share of all slots in words. */
const slotsOf = (own, all) => (own ? `${exact(own)} of ${exact(all)}` : "none: it rests");

/** Return a part of another partition's log in words. */
const inherited = ({ partition, start_offset: start, end_offset: end }) =>
  `partition ${partition} ${start ? `from ${exact(start)} ` : ""}below ${exact(end)}`;

const RESTORING = new Set(["fencing", "restoring"]);

/** Return the partitions as their owners see them, whichever worker was asked. */
export function partitionsOf(stats, group) {
  return stats.partitions.map((asked, number) => {
    if (!group) return asked;
    const told = Object.entries(group.workers).map(([name, own]) => [name, own.partitions[number]]);
    const serving = told.find(([, own]) => own?.state === "active") ??
      told.find(([name]) => name === asked.owner) ?? told.find(([, own]) => RESTORING.has(own?.state));
    return { ...asked, ...serving?.[1], owner: serving?.[0] ?? asked.owner, standby: asked.standby };
  });
}

/** Return how far a partition is, from 0 to 1. */
export function progressOf(partition) {
  const { state, restore_end_offset: end, restore_lag: lag } = partition;
  if (state === "active") return 1;
  if (partition.restore) return partition.restore.progress;
  if (!RESTORING.has(state) || !end) return 0;
  return Math.max(0, Math.min(1, lag ? 1 - lag / end : (partition.applied_offset ?? 0) / end));
}

/** Return what a partition's colour says: wide, near or short of 24 h, or away. */
export function levelOf({ state, window_seconds: window }) {
  if (state !== "active") return "away";
  if (window === null) return "wide";
  if (window < DAY_S) return "short";
  return window < 2 * DAY_S ? "near" : "wide";
}

export class Partitions {
  constructor() {
    this.node = byId("partitions");
    this.details = byId("partition");
    this.selected = null;
    this.buttons = [];
    this.rates = new Map();
    this.node.addEventListener("keydown", (event) => this.move(event));
  }

  update(partitions, configuredWindow, reshard) {
    this.partitions = partitions;
    this.reshard = reshard;
    this.configuredWindow = configuredWindow;
    if (this.buttons.length !== partitions.length) this.build(partitions.length);
    this.node.classList.toggle("many", partitions.length > 24);
    partitions.forEach((partition, place) => this.fill(this.buttons[place], partition));
    this.tell();
  }

  build(size) {
    this.selected = null;
    this.buttons = Array.from({ length: size }, (_, number) =>
      el("button", {
        type: "button", class: "partition", tabindex: number ? -1 : 0, "aria-expanded": "false",
        "aria-controls": "partition", onclick: () => this.select(number),
      },
      el("span", { class: "number" }), el("span", { class: "window" }),
      el("span", { class: "who" }), el("span", { class: "who" }),
      el("span", { class: "bar", "aria-hidden": "true" }, el("span", {}))));
    this.node.replaceChildren(...this.buttons);
  }

  fill(button, partition) {
    const { state, owner, standby, window_seconds: window } = partition;
    const [number, words, who, other, bar] = button.children;
    const progress = progressOf(partition);
    button.dataset.level = levelOf(partition);
    button.dataset.state = state;
    const says = state === "active" ? (window === null ? "" : span(window)) : this.stateOf(partition, progress);
    set(number, `${partition.partition}`);
    set(words, says);
    set(who, owner ?? "");
    set(other, owner ? `↳ ${standby ?? "no standby"}` : "");
    const share = state === "active" ? Math.min(1, (window ?? 0) / this.configuredWindow) : progress;
    bar.firstChild.style.width = `${(share * 100).toFixed(1)}%`;
    const label = [`Partition ${partition.partition}`, state === "active" ? `remembers ${says}` : says];
    if (owner) label.push(`owner ${owner}`, standby ? `standby ${standby}` : "no standby");
    button.setAttribute("aria-label", label.join(", "));
    button.title = label.join("\n");
  }

  stateOf(partition, progress) {
    if (partition.state === "fencing") return "taking over";
    if (partition.state !== "restoring") return partition.state;
    return `${Math.floor(progress * 100)} %`;
  }

  move(event) {
    const columns = getComputedStyle(this.node).gridTemplateColumns.split(" ").length;
    const moves = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity,
    };
    if (event.key === "Escape" && this.selected !== null) this.select(this.selected);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const last = this.buttons.length - 1;
    const next = Math.max(0, Math.min(last, this.buttons.indexOf(document.activeElement) + moves[event.key]));
    this.buttons.forEach((button, place) => { button.tabIndex = place === next ? 0 : -1; });
    this.buttons[next].focus();
  }

  select(number) {
    this.selected = this.selected === number ? null : number;
    this.buttons.forEach((button, place) => {
      button.setAttribute("aria-expanded", String(place === this.selected));
    });
    this.tell();
  }

  /** Show all that is known of the selected partition. */
  tell() {
    this.details.hidden = this.selected === null;
    if (this.selected === null) return;
    const of = this.partitions[this.selected], { reshard } = this;
    const facts = [
      ["State", of.state],
      ["Owner", of.owner], ["Standby", of.standby],
      ["Remembers", of.window_seconds === null ? null : span(of.window_seconds)],
      ["Ids", of.keys === null ? null : exact(of.keys)],
      ["Index", of.bytes === null || of.bytes === undefined ? null : bytes(of.bytes)],
      ["Applied offset", of.applied_offset === null ? null : exact(of.applied_offset)],
      ["Slots", reshard?.plan && typeof of.slots === "number" ? slotsOf(of.slots, reshard.slots) : null],
      ["Inherits", (of.inherits ?? []).map(inherited).join(", ")],
      ["To inherit", of.inherited_lag ? `${count(of.inherited_lag)} records` : null],
      ["To restore", of.restore_lag ? `${count(of.restore_lag)} records` : null],
      ["Waiting", exact(of.queue_events ?? 0)],
      ["Accepted", exact(of.accepted)], ["Duplicates", exact(of.duplicates)], ["Conflicts", exact(of.conflicts)],
      ["Commits", exact(of.commits ?? 0)],
      ["Mean commit", of.commits ? `${((of.commit_seconds / of.commits) * 1000).toFixed(1)} ms` : null],
      ["Failing since", of.failing_since_ms ? moment(of.failing_since_ms) : null],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "");
    const list = el("dl", { class: "facts-list" },
      ...facts.map(([name, value]) => el("div", {}, el("dt", { title: WORDS[name] }, name), el("dd", {}, `${value}`))));
    const error = of.last_error ? [el("p", { class: "error" }, inLocalTime(of.last_error))] : [];
    show(this.details, el("h3", {}, `Partition ${of.partition}`), list, ...error);
  }
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
