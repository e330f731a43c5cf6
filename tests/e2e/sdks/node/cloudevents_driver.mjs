// Send CloudEvents with the SDK for JavaScript, each of them in both of its modes.
//
// Usage: node cloudevents_driver.mjs URL
// Prints as JSON the status of each answer (0: the SDK does not tell), and the events in CloudEvents' JSON format.

import { CloudEvent, emitterFor, HTTP, httpTransport, Mode } from "cloudevents";

const url = process.argv[2];
const data = [
  ["application/json; charset=utf-8", { price: 10, name: "Käse", tags: [1.5, null, true] }],
  ["application/octet-stream", new Uint8Array([0, 255, 254])],
];
const statuses = [];
const events = [];

const post = async ({ headers, body }) => {
  const answer = await fetch(url, { method: "POST", headers, body });
  statuses.push(answer.status);
};

for (const [datacontenttype, content] of data) {
  const event = new CloudEvent({
    id: `node ${datacontenttype}`,
    source: "https://sdk.example/javascript",
    type: "com.example.sold",
    time: "2026-01-01T00:00:00.000Z",
    subject: "größe",
    datacontenttype,
    data: content,
  });
  const structured = HTTP.structured(event);
  events.push(JSON.parse(structured.body));
  await post(structured);
  await post(HTTP.binary(event));
  await post({ headers: { "content-type": "application/cloudevents-batch+json" }, body: `[${structured.body}]` });
  for (const mode of [Mode.STRUCTURED, Mode.BINARY]) {
    await emitterFor(httpTransport(url), { mode })(event);
    statuses.push(0);
  }
}
console.log(JSON.stringify({ statuses, events }));
