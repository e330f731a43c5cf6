// Charts of the last hour, or of what there is of it: pictures that are drawn anew with every step, a line to read them by, and a summary.

import { count, el, percent, rate, svg, time, timeWithSeconds } from "./view.js";

const SPANS_MS = [5, 10, 20, 30, 60].map((minutes) => minutes * 60_000);
const HEIGHT = 190;
const ROOM = { left: 48, right: 10, top: 12, bottom: 24 };
const TICKS = 4;

/** Return the least round number that is not below a value. */
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** Part points wherever steps are missing, so that no line is drawn through a gap. */
function runsOf(points, stepMs) {
  const runs = [];
  let last = -Infinity;
  for (const point of points) {
    if (point.ms - last > stepMs * 1.5) runs.push([]);
    runs.at(-1).push(point);
    last = point.ms;
  }
  return runs;
}

const path = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L");

/**
 * A chart in a node. `series`: from the bottom, each with name, class and value(point); stacked as areas
 * unless there is one. `scale`: what the axis shows, the least it reaches to, and the value that the summary tells.
 */
export class Chart {
  constructor(node, series, scale) {
    this.node = node;
    this.series = series;
    this.scale = scale;
    this.points = [];
    this.end = Date.now();
    this.spanMs = SPANS_MS[0];
    this.stepMs = 10_000;
    this.at = null;
    this.picture = svg("svg", { height: HEIGHT, tabindex: 0, role: "img" });
    this.readout = el("output", { class: "readout", "aria-live": "polite" });
    node.append(this.picture, this.readout);
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.read(null));
    this.picture.addEventListener("blur", () => this.read(null));
    this.picture.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(node);
  }

  /** Take the hour anew: points with ms, the end of their step, oldest first. */
  update(points, end, stepMs) {
    Object.assign(this, { points, end, stepMs });
    const known = points.length ? end - points[0].ms + stepMs : 0;
    this.spanMs = SPANS_MS.find((span) => span >= known) ?? SPANS_MS.at(-1);
    this.draw();
  }

  x(ms) {
    return ROOM.left + ((ms - this.end) / this.spanMs + 1) * (this.width - ROOM.left - ROOM.right);
  }

  y(value) {
    return HEIGHT - ROOM.bottom - (value / this.top) * (HEIGHT - ROOM.top - ROOM.bottom);
  }

  total(point) {
    return this.series.reduce((sum, one) => sum + one.value(point), 0);
  }

  draw() {
    this.width = this.node.clientWidth;
    if (!this.width) return;
    const highest = Math.max(this.scale.least, ...this.points.map((point) => this.total(point)));
    this.top = Math.min(roundUp(highest), this.scale.most ?? Infinity);
    this.picture.setAttribute("width", this.width);
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.picture.setAttribute("aria-label", this.summary());
    this.cursor = svg("g", { class: "cursor" });
    this.picture.replaceChildren(this.axes(), ...this.areas(), this.cursor);
    this.mark();
  }

  axes() {
    const axes = svg("g", { class: "axes" });
    for (let tick = 0; tick <= TICKS; tick += 1) {
      const value = (this.top * tick) / TICKS;
      const y = this.y(value);
      const label = svg("text", { x: ROOM.left - 8, y: y + 4, "text-anchor": "end" }, this.scale.tick(value));
      axes.append(svg("line", { x1: ROOM.left, x2: this.width - ROOM.right, y1: y, y2: y }), label);
    }
    const stride = this.spanMs / (this.width < 460 ? 3 : this.spanMs === SPANS_MS[0] ? 5 : 6);
    const first = Math.ceil((this.end - this.spanMs) / stride) * stride;
    for (let ms = first; ms <= this.end; ms += stride) {
      const x = this.x(ms);
      if (x < ROOM.left + 14 || x > this.width - 22) continue;
      axes.append(svg("text", { x, y: HEIGHT - 6, "text-anchor": "middle" }, time(ms)));
    }
    if (!this.points.length) {
      const middle = { x: (ROOM.left + this.width) / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "empty" };
      axes.append(svg("text", middle, "The first step ends within ten seconds."));
    }
    return axes;
  }

  areas() {
    const areas = [];
    const edges = []; // the lowest in front: a thin layer must not hide what it stands on
    for (const run of runsOf(this.points, this.stepMs)) {
      if (run.length === 1) run.unshift({ ...run[0], ms: run[0].ms - this.stepMs });
      let floor = run.map((point) => [this.x(point.ms), this.y(0)]);
      const sums = run.map(() => 0);
      for (const one of this.series) {
        const roof = run.map((point, place) => {
          sums[place] += one.value(point);
          return [this.x(point.ms), this.y(sums[place])];
        });
        if (!run.some((point) => one.value(point))) continue;
        const around = path([...roof, ...floor.toReversed()]);
        areas.push(svg("path", { d: `M${around}Z`, class: `area ${one.class}` }));
        edges.unshift(svg("path", { d: `M${path(roof)}`, class: `edge ${one.class}` }));
        floor = roof;
      }
    }
    return [...areas, ...edges];
  }

  summary() {
    if (!this.points.length) return `${this.scale.name}: nothing yet.`;
    const values = this.points.map((point) => this.scale.value(point));
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const say = this.scale.say;
    return `${this.scale.name}, last ${this.spanMs / 60_000} minutes: now ${say(values.at(-1))}, mean ${say(mean)}, most ` +
      `${say(Math.max(...values))}. Arrow keys read it step by step.`;
  }

  point(event) {
    if (!this.points.length) return;
    const left = event.clientX - this.picture.getBoundingClientRect().left;
    const distance = (point) => Math.abs(this.x(point.ms) - left);
    this.read(this.points.reduce((best, point) => (distance(point) < distance(best) ? point : best)).ms);
  }

  step(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !this.points.length) return;
    event.preventDefault();
    const last = this.points.length - 1;
    const now = this.points.findIndex((point) => point.ms === this.at);
    const next = (now < 0 ? last + 1 : now) + moves[event.key];
    this.read(this.points[Math.max(0, Math.min(last, next))].ms);
  }

  read(ms) {
    this.at = ms;
    this.mark();
  }

  mark() {
    const point = this.points.find((one) => one.ms === this.at);
    this.cursor?.replaceChildren();
    this.readout.textContent = "";
    if (!point || !this.cursor) return;
    const x = this.x(point.ms);
    this.cursor.append(svg("line", { x1: x, x2: x, y1: ROOM.top, y2: HEIGHT - ROOM.bottom }));
    let sum = 0;
    for (const one of this.series) {
      sum += one.value(point);
      this.cursor.append(svg("circle", { cx: x, cy: this.y(sum), r: 3.5, class: one.class }));
    }
    this.readout.textContent = `${timeWithSeconds(point.ms)}  ${this.scale.read(point)}`;
  }
}

const APART = ["conflicts", "rejected"];
const UNTAKEN = ["refused", "unknown", "refused_requests"]; // the last before their events were known
const sum = (point, names) => names.reduce((total, name) => total + point[name], 0);

export const SERIES = [
  { name: "accepted", class: "accepted", value: (point) => point.accepted / point.seconds },
  { name: "duplicates", class: "duplicate", value: (point) => point.duplicates / point.seconds },
  { name: "quarantined", class: "conflict", value: (point) => sum(point, APART) / point.seconds },
  { name: "refused", class: "refused", value: (point) => sum(point, UNTAKEN) / point.seconds },
];

export const THROUGHPUT = {
  value: (point) => SERIES.reduce((sum, one) => sum + (one.name === "refused" ? 0 : one.value(point)), 0),
  name: "Events a second",
  least: 1,
  tick: (value) => (value < 100 ? `${Number(value.toPrecision(3))}` : count(value)),
  say: (value) => `${rate(value)} a second`,
  read: (point) =>
    SERIES.filter((one) => one.value(point)).map((one) => `${rate(one.value(point))}/s ${one.name}`).join(" · ") ||
    "nothing",
};

/** Return duplicates as a share of what was accepted or known. */
export function ratioOf(point) {
  const decided = point.accepted + point.duplicates;
  return decided ? point.duplicates / decided : 0;
}

export const RATIO = {
  value: ratioOf,
  name: "Share of duplicates",
  least: 0.02,
  most: 1,
  tick: (value) => `${Number((value * 100).toPrecision(3))} %`,
  say: percent,
  read: (point) => `${percent(ratioOf(point))} · ${count(point.duplicates)} of ${count(point.accepted + point.duplicates)}`,
};

/** Return the columns of the history document as points. */
export function pointsOf(history) {
  const names = ["accepted", "duplicates", "conflicts", "rejected", "unknown", "refused", "refused_requests"];
  return history.time_ms.map((ms, place) => {
    const point = { ms, seconds: history.step_seconds };
    for (const name of names) point[name] = history[name]?.[place] ?? 0;
    return point;
  });
}
