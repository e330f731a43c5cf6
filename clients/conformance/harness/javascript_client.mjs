// The harness of the JavaScript client, in Node: see clients/conformance/README.md.

import { createInterface } from "node:readline";
import { Client } from "../../javascript/gateway-client.js";
import { fileStorage } from "../../javascript/node-storage.js";

/** @type {Client} */ let client;
/** @type {ReturnType<typeof fileStorage>} */ let storage;

/** @type {Record<string, (command: any) => Promise<object>>} */
const commands = {
  open: async ({ url, key, path }) => {
    storage = fileStorage(path);
    client = new Client(url, key, { storage });
    return { client: await client.clientId };
  },
  track: async ({ events }) => ({ places: await Promise.all(events.map((event) => client.send(event))) }),
  flush: async ({ timeoutMs }) => ({ flushed: await client.flush(timeoutMs) }),
  close: async ({ timeoutMs }) => ({ closed: await client.close(timeoutMs) }),
  deadLetters: async () => ({ letters: (await storage.read("deadLetters")).map(([, { code, event }]) => ({ code, event })) }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  console.log(JSON.stringify(await commands[command.do](command)));
}
