import { Client } from "/clients/javascript/gateway-client.js";

addEventListener("message", async ({ data: [host, name], ports: [port] }) => {
  const client = new Client(host, "browser");
  await client.track(name, { n: 1 });
  port.postMessage([await client.flush(30_000), client.isDurable]);
  await client.close();
});
