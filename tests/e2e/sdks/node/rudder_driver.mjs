// Send events with @rudderstack/rudder-sdk-node, one flush a name, and wait for each.
//
// Usage: node rudder_driver.mjs HOST TIMEOUT_S EVENTS_PER_NAME NAME...
// Prints as JSON the names of which the SDK gave up an event.

import RudderAnalytics from "@rudderstack/rudder-sdk-node";

const [host, timeoutS, eventsPerName, ...names] = process.argv.slice(2);
const givenUp = [];

const analytics = new RudderAnalytics("rudder-node", {
  dataPlaneUrl: host,
  flushAt: Number(eventsPerName),
  flushInterval: 50,
  timeout: Number(timeoutS) * 1000,
  logLevel: "none",
  errorHandler: () => {}, // without one the SDK throws where nobody can catch it
});

const send = (event, n) =>
  new Promise((resolve) => {
    analytics.track({ userId: `user-${n}`, event, properties: { n } }, (error) => resolve(error));
  });

for (const name of names) {
  const errors = await Promise.all(Array.from({ length: Number(eventsPerName) }, (_, n) => send(name, n)));
  if (errors.some(Boolean)) givenUp.push(name);
}
console.log(JSON.stringify(givenUp.sort()));
process.exit();
