// Send events with @segment/analytics-node, one batch a name, and wait for each batch.
//
// Usage: node segment_driver.mjs PACKAGE HOST TIMEOUT_S EVENTS_PER_NAME NAME...
// Prints as JSON the names of which the SDK gave up an event.

const [sdk, host, timeoutS, eventsPerName, ...names] = process.argv.slice(2);
const { Analytics } = await import(sdk);

const analytics = new Analytics({
  writeKey: "segment-node",
  host,
  flushAt: Number(eventsPerName),
  httpRequestTimeout: Number(timeoutS) * 1000,
});
const givenUp = [];

const send = (event, n) =>
  new Promise((resolve) => {
    analytics.track({ userId: `user-${n}`, event, properties: { n } }, (error) => resolve(error));
  });

for (const name of names) {
  const errors = await Promise.all(Array.from({ length: Number(eventsPerName) }, (_, n) => send(name, n)));
  if (errors.some(Boolean)) givenUp.push(name);
}
await analytics.closeAndFlush();
console.log(JSON.stringify(givenUp.sort()));
