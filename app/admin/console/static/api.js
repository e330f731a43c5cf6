// What the page asks the admin port, wherever that is: one folder above the page.

import { byId } from "./view.js";

const BASE = new URL("../", document.baseURI);
const TOKEN = "gateway-admin-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** A refusal: its `code` and a sentence. */
export class Refusal extends Error {
  constructor(status, document) {
    super(document?.detail ?? document?.message ?? `the gateway answered ${status}`);
    this.status = status;
    this.code = document?.code;
  }
}

function urlOf(path, query = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) if (value !== "") url.searchParams.set(name, value);
  return url;
}

/** Return the address of a runbook, which the gateway has itself. */
export const runbook = (name) => urlOf(`runbooks/${name}`).href;

let asking = null;

/** Ask the operator for the token, once however many requests want it. */
function askForToken(why) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("ask");
    const form = byId("ask-form");
    if (why) byId("ask-why").textContent = why;
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, form.elements.token.value.trim());
      form.reset();
      dialog.close();
    };
    dialog.onclose = () => {
      asking = null;
      byId("forget").hidden = !token.get();
      resolve();
    };
    dialog.showModal();
  });
  return asking;
}

async function request(path, query, options = {}) {
  for (;;) {
    const shown = token.get();
    const headers = shown ? { Authorization: `Bearer ${shown}` } : {};
    const answer = await fetch(urlOf(path, query), { ...options, headers, cache: "no-store" });
    if (answer.ok) return answer;
    const document = await answer.json().catch(() => null);
    if (answer.status !== 401) throw new Refusal(answer.status, document);
    if (shown !== token.get()) continue; // a late answer: another token is there, or asked for
    token.forget();
    await askForToken(shown ? "That token is not (or no longer) the gateway's." : null);
  }
}

/** Return the document at a path below the admin port's root. Raises Refusal, or TypeError without an answer. */
export async function ask(path, query = {}) {
  const answer = await request(path, query, { signal: AbortSignal.timeout(15_000) });
  return answer.json();
}

/** Ask for a change, and return what the gateway says of it. Raises as `ask`. */
export async function change(path, query = {}) {
  const answer = await request(path, query, { method: "POST", signal: AbortSignal.timeout(20_000) });
  return answer.json();
}

/** Yield the lines of a stream as documents until it ends or is aborted. */
export async function* lines(path, query, signal) {
  const answer = await request(path, query, { signal });
  const decoder = new TextDecoder();
  const reader = answer.body.getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const whole = rest.split("\n");
    rest = whole.pop();
    yield whole.filter(Boolean).map((line) => JSON.parse(line));
  }
}

export const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Return a command that asks the same; a token is named, never told. */
export function curl(path, query = {}, options = "-s") {
  const authorization = token.get() ? ` -H "Authorization: Bearer $GATEWAY_ADMIN_TOKEN"` : "";
  return `curl ${options}${authorization} ${quoted(urlOf(path, query).href)}`;
}
