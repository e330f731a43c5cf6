// The first minute: how to send an event, until the first one has come, and then that event.

import { ask } from "./api.js";
import { byId, copy, el } from "./view.js";

/** Return where events go by the settings, as seen from this browser; a host of all addresses is the page's own. */
function urlOf(config) {
  const of = Object.fromEntries(config.settings.map((one) => [one.variable, one.value]));
  const host = ["0.0.0.0", "::", "", undefined].includes(of.GATEWAY_HOST) ? location.hostname : of.GATEWAY_HOST;
  return { url: `http://${host}:${of.GATEWAY_PORT ?? 8080}`, hasKeys: Boolean(of.GATEWAY_WRITE_KEYS_FILE) };
}

const snippetsOf = (url, key) => ({
  curl: `curl -i ${url}/v1/events -u ${key}: \\\n` +
    `  -d '{"messageId":"hello-1","type":"track","event":"Hello","userId":"u1"}'`,
  Python: `# pip install segment-analytics-python\nimport segment.analytics as analytics\n\n` +
    `analytics.write_key = "${key}"\nanalytics.host = "${url}"\n` +
    `analytics.track("u1", "Hello")\nanalytics.flush()`,
  Node: `// npm install @segment/analytics-node\nimport { Analytics } from "@segment/analytics-node";\n\n` +
    `const analytics = new Analytics({ writeKey: "${key}", host: "${url}" });\n` +
    `analytics.track({ userId: "u1", event: "Hello" });\nawait analytics.closeAndFlush();`,
});

export class First {
  constructor() {
    this.card = byId("first-card");
    this.isWaiting = null; // unknown before the first statistics
  }

  /** Show the way to send an event if none has come yet. */
  async update(totals) {
    if (this.isWaiting !== null) return;
    this.isWaiting = totals.received === 0;
    if (!this.isWaiting) return;
    const { url, hasKeys } = urlOf(await ask("admin/v1/config"));
    const key = hasKeys ? "WRITE_KEY" : "my-write-key";
    byId("first-key").textContent = hasKeys ? "one of your key file, which `gateway keys` lists" : key;
    byId("first-snippets").append(...Object.entries(snippetsOf(url, key)).map(([name, text]) =>
      el("div", { class: "snippet" },
        el("div", { class: "head" }, el("h3", {}, name),
          el("button", { type: "button", class: "quiet", "aria-label": `Copy ${name}`,
            onclick: () => copy(text, name) }, "Copy")),
        el("pre", {}, text))));
    this.card.hidden = false;
  }

  /** Show the first event that comes, as the tail tells it. */
  arrived(event) {
    if (!this.isWaiting) return;
    this.isWaiting = false;
    byId("first-state").textContent = `The first event is here: ${event.verdict}.`;
    byId("first-event").textContent = JSON.stringify(event.value ?? { messageId: event.message_id, event: event.event }, null, 2);
    byId("first-event").hidden = false;
  }
}
