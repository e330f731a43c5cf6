/** The harness of all of the JavaScript client in Node, that of the core is in clients/conformance, see clients/conformance/README.md. */
import { createInterface } from "node:readline";

import { Analytics } from "../../../../clients/javascript/gateway-analytics.js";
import { fileStorage } from "../../../../clients/javascript/node-storage.js";

console.warn = () => {};
let client;

const DO = {
  async open({ url, key, path }) {
    client = new Analytics(url, key, { storage: fileStorage(path), gzip: false }); // the proxy reads bodies
    return { client: await client.clientId };
  },
  async track({ events }) {
    const places = await Promise.all(events.map((event) => client.send(event)));
    return { places: places.map(({ session, sequence }) => [session, sequence]) };
  },
  flush: async ({ timeoutMs }) => ({ flushed: await client.flush(timeoutMs) }),
  close: async ({ timeoutMs }) => ({ closed: (await client.close(timeoutMs), client.waiting === 0) }),
  deadLetters: async () => ({ letters: (await client.deadLetters()).map(({ code, event }) => ({ code, event })) }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  console.log(JSON.stringify(await DO[command.do](command)));
}
