// Elements and words. Text is only ever set as text: the page's policy forbids markup from strings.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return an element with attributes, listeners (`onclick`) and children; a string is a text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return the same in a picture. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const clockWithSeconds = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const day = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

export const count = (number) => (Math.abs(number) < 100_000 ? whole : short).format(number);
export const exact = (number) => whole.format(number);
export const time = (ms) => clock.format(ms);
export const timeWithSeconds = (ms) => clockWithSeconds.format(ms);

/** Return a time of today by its clock, and any other one with its day. */
export function moment(ms) {
  return new Date(ms).toDateString() === new Date().toDateString() ? timeWithSeconds(ms) : day.format(ms);
}

/** The zone of every time on the page. */
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Return a text of the gateway with its times, which are in UTC, as the page's other times are. */
export const inLocalTime = (text) =>
  text.replaceAll(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (utc) => moment(Date.parse(utc)));

/** Return a rate with as many digits as it takes to see that it is not nothing. */
export function rate(perSecond) {
  if (perSecond === 0) return "0";
  return perSecond < 10 ? perSecond.toFixed(1) : count(perSecond);
}

export function percent(share) {
  if (share === 0) return "0 %";
  if (share < 0.0001) return "< 0.01 %";
  return `${(share * 100).toFixed(share < 0.1 ? 2 : 1)} %`;
}

const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** Return a length of time in its largest unit: 6.9 d, 11 h. */
export function span(seconds) {
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS[3];
  const value = seconds / size;
  const digits = Math.abs(value) < 10 && size > 1 ? 1 : 0;
  return `${Number(value.toFixed(digits))} ${unit}`;
}

export function bytes(size) {
  const step = Math.min(4, Math.floor(Math.log2(Math.max(size, 1)) / 10));
  const value = size / 1024 ** step;
  return `${value.toFixed(value < 10 && step > 0 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

/** Replace the children of a node only if what they say has changed: what is selected stays so. */
export function show(node, ...children) {
  const told = children.map((child) => child.outerHTML ?? child).join("");
  if (node.told === told) return;
  node.told = told;
  node.replaceChildren(...children);
}

/** Say something for a moment, and to screen readers. */
export function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.classList.add("seen");
  clearTimeout(node.timer);
  node.timer = setTimeout(() => node.classList.remove("seen"), 2500);
}

/** Put a text on the clipboard, also where the page has no secure origin. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast(`${what} copied`);
}
