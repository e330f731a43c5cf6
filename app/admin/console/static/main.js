// The page: what is wrong in one sentence, the figures of now, and the parts that keep themselves up to date.

import { Apart } from "./apart.js";
import { ask, Refusal, token } from "./api.js";
import { Chart, pointsOf, RATIO, ratioOf, SERIES, THROUGHPUT } from "./charts.js";
import { First } from "./first.js";
import { inputProblems, tellInputs } from "./inputs.js";
import { keyProblems } from "./keys.js";
import { Events } from "./events.js";
import { Lookup } from "./lookup.js";
import { Outage } from "./outage.js";
import { levelOf, Partitions, partitionsOf, progressOf } from "./partitions.js";
import { requestsWithoutEvents, tellRefused } from "./refused.js";
import { Sources } from "./sources.js";
import { Tabs } from "./tabs.js";
import { Tail } from "./tail.js";
import { byId, bytes, count, el, inLocalTime, percent, rate, show, span, timeWithSeconds, zone } from "./view.js";

const STATS_MS = 2000;
const HISTORY_MS = 10_000;
const APART_MS = 5000;
const SOURCES_MS = 5000;
const HIDDEN_MS = 30_000;
const DAY_S = 86_400;
const RATE_S = 20;
/** Requests that wait for longer because the topic is being divided are answered 503. */
const STUCK_S = 10;

/** What the words of the figures mean. */
const WORDS = {
  "Events a second": "Events that were decided in the last seconds, without those that were refused",
  "Duplicates": "Events that were already stored, and were not stored again",
  "Quarantined": "Events stored in the quarantine topic: invalid ones, and conflicts with a stored event",
  "Refused or unknown": "Events and requests that got an error; their clients send them again or know why not",
  "Shortest window": "How long the partition that forgets first remembers message ids",
  "Ids remembered": "Message ids in the indexes, by which duplicates are found",
};

const partitions = new Partitions();
const throughput = new Chart(byId("throughput"), SERIES, THROUGHPUT);
const ratio = new Chart(byId("ratio"), [{ name: "duplicates", class: "duplicate", value: ratioOf }], RATIO);
const lookup = new Lookup();
const outage = new Outage();
const apart = new Apart((source, id) => lookup.show(source, id));

byId("throughput-legend").append(
  ...SERIES.map((one) => el("li", {}, el("span", { class: `swatch ${one.class}` }), one.name)));

let lost = null;
const seen = []; // totals of the last seconds, oldest first
const restoring = { lag: null, at: 0, rate: 0 };

// ---- what is wrong

function problemsOf(stats, group, all) {
  const found = [];
  const away = all.filter((partition) => partition.state !== "active");
  const short = all.filter((partition) => levelOf(partition) === "short");
  if (stats.outage) found.push(["bad", sentence(stats.outage)]);
  if (stats.disk?.has_room === false) {
    found.push(["bad", `Nothing is taken: ${bytes(stats.disk.free_bytes)} of disk are free, and ` +
      `${bytes(stats.disk.free_min_bytes)} must be.`]);
  }
  const waiting = stats.reshard?.waiting_seconds ?? null;
  if (waiting !== null) {
    found.push([waiting > STUCK_S ? "bad" : "warn",
      `The topic is being divided: requests have waited for ${span(Math.max(1, waiting))}.`]);
  } else if (away.length && !stats.outage) found.push(awayOf(away, all));
  const preparing = stats.reshard?.preparing ?? [];
  if (preparing.length) {
    const lags = preparing.map((each) => each.lag).filter((lag) => lag !== null);
    const left = lags.length ? `; the last one has ${count(Math.max(...lags))} records to read` : "";
    found.push(["warn", `The topic will be divided: this worker prepares ${preparing.length} new partitions${left}.`]);
  }
  if (short.length) {
    const least = Math.min(...short.map((partition) => partition.window_seconds));
    found.push(["bad", `${named(short)} remember${short.length > 1 ? "" : "s"} ids for ${span(least)}: less than a day.`]);
  }
  for (const [name, why] of Object.entries(group?.silent ?? {})) {
    found.push(["warn", `Worker ${name} does not answer: ${why}.`]);
  }
  for (const link of group?.broken ?? []) found.push(["warn", `Worker ${link.replace(" -> ", " does not reach ")}.`]);
  for (const wrong of stats.wrong_settings ?? []) found.push(["warn", sentence(wrong)]);
  const quarantined = (stats.quarantine ?? []).filter((lane) => lane.last_error && lane.state !== "active");
  if (quarantined.length) found.push(["warn", "Quarantine does not serve: requests with a bad event wait."]);
  return [...found, ...inputProblems(stats), ...keyProblems(stats, group)];
}

function awayOf(away, all) {
  const back = away.filter((partition) => ["fencing", "restoring"].includes(partition.state));
  const failed = away.filter((partition) => partition.state === "failed");
  const level = failed.length ? "bad" : "warn";
  const words = [];
  const heirs = back.filter((partition) => partition.inherited_lag);
  const doing = heirs.length ? "read what they inherit" : "restore";
  if (back.length) words.push(`${back.length} of ${all.length} partitions ${doing}${leftOf(back)}`);
  if (failed.length) words.push(`${named(failed)} failed: ${failed[0].last_error ?? "the reason is not known"}`);
  const others = away.length - back.length - failed.length;
  if (others) words.push(`${others} of ${all.length} partitions are served by no worker that answers`);
  return [level, sentence(words.join("; "))];
}

/** Return how far the restoring ones are, and how long they will take: as they say, or by their pace so far. */
function leftOf(back) {
  const lag = back.reduce((sum, partition) => sum + (partition.restore_lag ?? 0), 0);
  const now = performance.now() / 1000;
  if (restoring.lag !== null && now > restoring.at && lag < restoring.lag) {
    const pace = (restoring.lag - lag) / (now - restoring.at);
    restoring.rate = restoring.rate ? 0.7 * restoring.rate + 0.3 * pace : pace;
  }
  Object.assign(restoring, { lag, at: now });
  const done = back.reduce((sum, partition) => sum + progressOf(partition), 0) / back.length;
  const told = back.map((partition) => partition.restore?.remaining_seconds).filter(Number.isFinite);
  const seconds = told.length ? Math.max(...told) : restoring.rate && lag ? lag / restoring.rate : null;
  const left = seconds === null ? "" : `, about ${span(Math.max(1, seconds))} left`;
  return `: ${Math.floor(done * 100)} % done${left}`;
}

const named = (some) => some.length > 1 ? `${some.length} partitions` : `Partition ${some[0].partition}`;
function sentence(text) {
  const local = inLocalTime(text);
  return `${local.charAt(0).toUpperCase()}${local.slice(1)}${/[.!?]$/.test(local) ? "" : "."}`;
}

function tellState(problems, all, below) {
  const level = problems.some(([one]) => one === "bad") ? "bad" : problems.length ? "warn" : "good";
  byId("status").dataset.level = level;
  const word = { good: "", warn: "! ", bad: "✕ " }[level];
  document.title = `${word}Gateway ${byId("topic").textContent}`;
  const fine = all.length === 1 ? "The partition serves." : `All ${all.length} partitions serve.`;
  problems.sort(([one], [other]) => (one === other ? 0 : one === "bad" ? -1 : 1));
  const told = problems.length ? problems.map(([, text]) => text) : [fine];
  const [first, ...others] = told.map((text) => el("p", {}, text));
  show(byId("sentences"), first, ...below, ...others);
}

function tellLost(why) {
  lost ??= Date.now();
  byId("status").dataset.level = "bad";
  document.title = "✕ Gateway";
  document.body.classList.add("lost");
  show(byId("sentences"), el("p", {}, `No answer since ${timeWithSeconds(lost)}: what stands below is from then.`),
    el("p", {}, why));
}

// ---- figures

function figuresOf(stats, totals, all, refusedRequests) {
  const windows = all.map((partition) => partition.window_seconds).filter((window) => window !== null);
  const least = windows.length ? Math.min(...windows) : null;
  const known = all.filter((partition) => partition.keys !== null);
  const keys = known.reduce((sum, partition) => sum + partition.keys, 0);
  const { perSecond, share } = paceOf(totals);
  const events = totals.refused + totals.unknown;
  return [
    ["Events a second", perSecond === null ? "–" : rate(perSecond), `${count(totals.received)} since the start`],
    ["Duplicates", share === null ? "–" : percent(share), `${count(totals.duplicates)} in all`],
    ["Quarantined", count(totals.conflicts + totals.rejected),
      `${count(totals.conflicts)} of them conflicts`],
    ["Refused or unknown", count(events + refusedRequests),
      refusedRequests ? `${count(refusedRequests)} are whole requests` : `${count(stats.in_flight)} in flight`],
    ["Shortest window", least === null ? "–" : span(least), `of ${span(stats.window_seconds)}`,
      least !== null && least < DAY_S ? "bad" : ""],
    ["Ids remembered", known.length ? count(keys) : "–", `of ${count(stats.index_keys_max)}`],
  ];
}

/** Return what the last seconds brought, by the totals of then and now; null before there are two. */
function paceOf(totals) {
  const now = performance.now() / 1000;
  if (seen.length && totals.received < seen.at(-1).totals.received) seen.length = 0; // it was started again
  seen.push({ now, totals });
  while (seen.length > 2 && now - seen[0].now > RATE_S) seen.shift();
  const then = seen[0];
  if (now - then.now < 1) return { perSecond: null, share: null };
  const accepted = totals.accepted - then.totals.accepted;
  const duplicates = totals.duplicates - then.totals.duplicates;
  const taken = (of) => of.received - of.refused - of.unknown; // what was refused is no throughput
  const perSecond = Math.max(0, taken(totals) - taken(then.totals)) / (now - then.now);
  return { perSecond, share: accepted + duplicates ? duplicates / (accepted + duplicates) : 0 };
}

function tellFigures(figures) {
  show(byId("figures"), ...figures.map(([name, value, more, level]) =>
    el("div", { class: "figure", "data-level": level ?? "" },
      el("dt", { title: WORDS[name] }, name), el("dd", { class: "value" }, value), el("dd", { class: "more" }, more))));
}

// ---- rounds

async function lookAtStats() {
  const stats = await ask("admin/v1/stats");
  const group = stats.group ? await ask("admin/v1/group").catch(() => null) : null;
  const all = partitionsOf(stats, group);
  byId("topic").textContent = stats.topic;
  const workers = group ? Object.keys(group.workers).length : 0;
  const facts = [
    stats.log === "kafka" ? "on Kafka" : "embedded log",
    stats.mode === "development" ? "development" : null,
    group ? `${workers} of ${workers + Object.keys(group.silent).length} workers answer` : null,
    `up ${span(stats.uptime_seconds)}`,
    `${count(stats.connections.open)} connection${stats.connections.open === 1 ? "" : "s"}`,
    `${bytes(stats.disk.free_bytes)} disk free`,
  ];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  const worker = stats.group?.worker;
  byId("foot").textContent = [
    `gateway ${stats.version}`, worker ? `asked: ${worker}; the live tail shows its clients` : null, `log ${stats.log_id}`, `times in ${zone}`,
  ].filter(Boolean).join(" · ");
  tabs.mark(all.some((one) => ["short", "away"].includes(levelOf(one))) ? "bad" : "");
  partitions.update(all, stats.window_seconds, stats.reshard);
  tellFigures(figuresOf(stats, group?.totals ?? stats.totals, all, requestsWithoutEvents(stats, group)));
  tellRefused(stats, group);
  tellInputs(stats);
  events.areShown = stats.mode === "development" && !token.get();
  await tail.in(stats.mode);
  await first.update(group?.totals ?? stats.totals);
  tellState(problemsOf(stats, group, all), all, await outage.below(stats, all));
  lost = null;
  document.body.classList.remove("lost");
}

async function lookAtHistory() {
  const history = await ask("admin/v1/history");
  const points = pointsOf(history);
  for (const chart of [throughput, ratio]) chart.update(points, history.now_ms, history.step_seconds * 1000);
}

async function lookAtApart() {
  apart.update((await ask("admin/v1/tail/apart")).events);
}

/** Repeat something; rarely while the page is hidden, and at once when it is shown. */
function repeat(look, everyMs, onError) {
  let timer = null;
  let isLooking = false;
  async function round() {
    clearTimeout(timer);
    if (isLooking) return;
    isLooking = true;
    try {
      await look();
    } catch (error) {
      onError?.(error instanceof Refusal ? error.message : "The gateway cannot be reached.");
    }
    isLooking = false;
    timer = setTimeout(round, document.hidden ? HIDDEN_MS : everyMs);
  }
  document.addEventListener("visibilitychange", () => document.hidden || round());
  round();
  return round;
}

const first = new First();
const events = new Events(() => !byId("panel-events").hidden);
const tabs = new Tabs(() => events.look());
const tail = new Tail((source, id) => lookup.show(source, id), () => lookAtApartNow(), (event) => first.arrived(event));
repeat(lookAtStats, STATS_MS, tellLost);
repeat(lookAtHistory, HISTORY_MS);
const sources = new Sources();
repeat(() => sources.look(), SOURCES_MS);
const lookAtApartNow = repeat(lookAtApart, APART_MS);

// ---- colours and token

const THEMES = ["auto", "light", "dark"];
const THEME = "gateway-theme";

function useTheme(theme) {
  localStorage.setItem(THEME, theme);
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = byId("theme");
  button.textContent = theme.charAt(0).toUpperCase() + theme.slice(1);
  button.setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system" : theme}`);
}

useTheme(THEMES.includes(localStorage.getItem(THEME)) ? localStorage.getItem(THEME) : "auto");
byId("theme").addEventListener("click", () => {
  useTheme(THEMES[(THEMES.indexOf(localStorage.getItem(THEME)) + 1) % THEMES.length]);
});
byId("forget").hidden = !token.get();
byId("forget").addEventListener("click", () => {
  token.forget();
  location.reload();
});
