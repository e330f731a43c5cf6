/** Claims about the JavaScript client that need no browser: every answer, storages, calls. Run by node --test. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { gunzipSync } from "node:zlib";

import { Analytics, Client, hasId, itemStorage, judge, movedOf, QueueFullError, settlement, verdictOf } from "../../../../clients/javascript/gateway-analytics.js";
import { fileStorage } from "../../../../clients/javascript/node-storage.js";

console.warn = () => {};

/** Answers as a gateway, unless `answer` is set; it keeps what it has stored, by place. */
class Server {
  stored = new Map();
  bodies = [];
  requests = [];
  answer = null;
  source = null;

  static async start() {
    const server = new Server();
    server.http = createServer((request, response) => server.take(request, response)).listen(0, "127.0.0.1");
    await new Promise((resolve) => server.http.once("listening", resolve));
    server.url = `http://127.0.0.1:${server.http.address().port}`;
    return server;
  }

  async take(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const bytes = Buffer.concat(chunks);
    const body = JSON.parse(bytes[0] === 0x1f ? gunzipSync(bytes) : bytes);
    this.requests.push({ headers: request.headers, bytes: bytes.length });
    this.bodies.push(body);
    if (this.answer?.(body, response)) return;
    const sequences = body.batch.map((event, index) => body.firstSequence + index);
    body.batch.forEach((event, index) => this.stored.set(`${this.source} ${body.session} ${sequences[index]}`, event));
    this.gateway(response, 200, { success: true, receipts: sequences.map((sequence) => ({ sequence })) });
  }

  gateway(response, status, document) {
    response.writeHead(status, { "Gateway-Request-Id": "r", ...(this.source && { "Gateway-Source": this.source }) });
    response.end(typeof document === "string" ? document : JSON.stringify(document));
    return true;
  }

  names() {
    return [...this.stored.values()].map(({ event }) => event).sort();
  }

  stop() {
    this.http.closeAllConnections();
    this.http.close();
  }
}

/** The core, and all of it. */
const KINDS = [Client, Analytics];

/** They mostly wait, for answers and for times. */
const AT_ONCE = 4;
const sideBySide = [];

/** A test with a server and clients, which are closed. */
function client_test(name, work) {
  sideBySide.push([name, async () => {
    const server = await Server.start();
    const clients = [];
    const open = (options = {}, Kind = Client) => {
      const client = new Kind(server.url, "key", { timeoutMs: 500, ...options });
      clients.push(client);
      return client;
    };
    try {
      await work(server, open);
    } finally {
      for (const client of clients) await client.close();
      server.stop();
    }
  }]);
}

const raw = (status, text, headers = {}) => (_, response) => {
  response.writeHead(status, headers);
  response.end(text);
  return true;
};
const word = (status, document) => function (_, response) {
  return this.gateway(response, status, document);
};

const WAITING = {
  "a portal's page": raw(200, "<html>welcome</html>"),
  "empty": raw(200, ""),
  "null": raw(200, "null"),
  "receipts that are not the gateway's": raw(200, '{"receipts":[{"sequence":1}]}'),
  "a list for a sequence": word(200, { receipts: [{ sequence: [1] }] }),
  "an object for an index": word(200, { rejected: [{ index: {}, code: "x" }] }),
  "no code": word(200, { rejected: [{ index: 0 }] }),
  "receipts that are none": word(200, { receipts: { length: 1 } }),
  "no receipts": word(200, {}),
  "deep nesting": word(200, "[".repeat(100_000)),
  "a WAF's 403": raw(403, '{"code":1020}'),
  "a proxy's 401": raw(401, '{"code":"invalid_write_key"}'),
  "a balancer's 404": raw(404, '{"code":"not_found"}'),
  "a 405": raw(405, "{}"),
  "a 415": raw(415, '{"code":"x"}'),
  "a 418": raw(418, "tea"),
  "a proxy's 400": raw(400, '{"code":"invalid_json"}'),
  "a 301": raw(301, "", { Location: "http://127.0.0.1:1/" }),
  "a 429": word(429, { code: "quota_exceeded" }),
  "a 500": raw(500, "oops"),
  "a 503": word(503, { code: "overloaded" }),
  "the gateway's 401": word(401, { code: "invalid_write_key" }),
  "the gateway's 403": word(403, { code: "scope_missing" }),
  "the gateway's other 400": word(400, { code: "session_fields_invalid" }),
  "the gateway's word on an encoding": word(400, { code: "unsupported_encoding" }),
  "the gateway's word on a compressed body": word(400, { code: "body_not_decompressable" }),
  "a code nobody knows": word(409, { code: "new_in_2030" }),
  "cut": (_, response) => {
    response.writeHead(200, { "Content-Length": 1000, "Gateway-Request-Id": "r" });
    response.write('{"receipts":[');
    setTimeout(() => response.destroy(), 20);
    return true;
  },
  "no answer": () => true,
  "dripping": (_, response) => {
    response.writeHead(200, { "Gateway-Request-Id": "r" });
    const drip = setInterval(() => response.write(" "), 50);
    response.on("close", () => clearInterval(drip));
    return true;
  },
  "endless": (_, response) => {
    response.writeHead(200, { "Gateway-Request-Id": "r" });
    const write = () => {
      while (!response.destroyed && response.write(" ".repeat(65_536)));
    };
    response.on("drain", write);
    write();
    return true;
  },
};

const eachKind = (cases) => KINDS.flatMap((Kind) => Object.entries(cases).map(([name, value]) => [Kind, name, value]));

for (const [Kind, name, answer] of eachKind(WAITING)) {
  client_test(`${Kind.name}: after ${name} an event waits, somebody is told once, and it goes on`, async (server, open) => {
    const [problems, rejected] = [[], []];
    const onProblem = (err, since) => problems.push([err, since]);
    const client = open({ onProblem, onRejected: (letter) => rejected.push(letter) }, Kind);
    server.answer = answer;
    await client.track("Seen");
    const ofDelivery = () => problems.filter(([err]) => !(err instanceof ReferenceError));
    while (!ofDelivery().length) assert.equal(await client.flush(100), false);
    await client.flush(100);
    assert.equal(client.waiting, 1);
    if (Kind === Analytics) assert.ok(client.lastError instanceof Error);
    assert.equal(ofDelivery().length, 1);
    assert.ok(ofDelivery()[0][1] instanceof Date);
    if (Kind === Analytics) assert.ok(client.oldest <= new Date());
    server.answer = null;
    assert.equal(await client.flush(5_000), true);
    assert.deepEqual(server.names(), ["Seen"]);
    assert.deepEqual(rejected, []);
  });
}

for (const Kind of KINDS) client_test(`${Kind.name}: of an endless answer little is read`, async (server, open) => {
  const client = open({ timeoutMs: 15_000 }, Kind);
  const chunk = Buffer.alloc(65_536, '{"sequence":9},');
  let written = 0;
  const ended = new Promise((resolve) => {
    server.answer = (_, response) => {
      response.writeHead(200, { "Gateway-Request-Id": "r" });
      response.write('{"receipts":[');
      const write = () => {
        while (!response.destroyed && written < 256 << 20 && response.write(chunk)) written += chunk.length;
        written += chunk.length;
        if (written >= 256 << 20) response.end();
      };
      response.on("drain", write).on("close", resolve);
      write();
      return true;
    };
  });
  await client.track("Seen");
  await ended;
  assert.ok(written < 8 << 20, `${written} bytes`);
  server.answer = null;
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual(server.names(), ["Seen"]);
});

for (const Kind of KINDS) client_test(`${Kind.name}: an answer of 900 KiB is read whole`, async (server, open) => {
  const client = open({}, Kind);
  server.answer = (body, response) => {
    const receipts = body.batch.map((_, index) => ({ sequence: body.firstSequence + index }));
    return server.gateway(response, 200, { padding: "x".repeat(900 << 10), receipts });
  };
  await client.track("Seen");
  assert.equal(await client.flush(5_000), true);
});

for (const Kind of KINDS) client_test(`${Kind.name}: an answer is read where fetch has no streams`, async (server, open) => {
  const asInReactNative = async (...request) => {
    const answer = await fetch(...request);
    return { status: answer.status, headers: answer.headers, text: () => answer.text() };
  };
  const client = open({ fetch: asInReactNative }, Kind);
  await client.track("Seen");
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual(server.names(), ["Seen"]);
});

const REFUSALS = {
  "the gateway's invalid_json": word(400, { code: "invalid_json" }),
  "the gateway's body_too_complex": word(400, { code: "body_too_complex" }),
  "a proxy's 413": raw(413, "<html>too large</html>"),
};

for (const [Kind, name, refusal] of eachKind(REFUSALS)) {
  client_test(`${Kind.name}: ${name} costs the one event that it is about`, async (server, open) => {
    const told = [];
    const client = open({ onRejected: (letter) => told.push(letter) }, Kind);
    server.answer = function (body, response) {
      return body.batch.some(({ event }) => event === "Bad") && refusal.call(server, body, response);
    };
    const queued = Array.from({ length: 30 }, (_, n) => client.track(n === 17 ? "Bad" : `Good ${n}`));
    const place = (await Promise.all(queued))[17];
    assert.equal(await client.flush(10_000), true);
    assert.equal(server.stored.size, 29);
    const [letter] = told;
    assert.equal(told.length, 1);
    if (Kind === Analytics) assert.deepEqual(await client.deadLetters(), told);
    assert.deepEqual([letter.session, letter.sequence, letter.event.event], [place.session, place.sequence, "Bad"]);
  });
}

client_test("an event that a firewall refuses again and again costs itself alone", async (server, open) => {
  const told = [];
  const client = open({ onRejected: (letter) => told.push(letter) });
  server.answer = (body, response) => body.batch.some(({ event }) => event === "<script>") && raw(403, "blocked")(body, response);
  for (const name of ["A", "<script>", "B"]) await client.track(name);
  while (client.waiting) await client.flush(300);
  assert.deepEqual(server.names(), ["A", "B"]);
  assert.deepEqual(told.map(({ event }) => event.event), ["<script>"]);
});

for (const Kind of KINDS) client_test(`${Kind.name}: while somebody refuses all as too large nothing is a dead letter`, async (server, open) => {
  const told = [];
  const client = open({ onRejected: (letter) => told.push(letter) }, Kind);
  await client.track("A");
  assert.equal(await client.flush(5_000), true);
  server.answer = raw(413, "<html>too large</html>");
  await client.track("B");
  const before = server.bodies.length;
  assert.equal(await client.flush(1_500), false);
  assert.ok(server.bodies.length - before < 50);
  assert.deepEqual([client.waiting, told], [1, []]);
  server.answer = null;
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual(server.names(), ["A", "B"]);
});

for (const Kind of KINDS) client_test(`${Kind.name}: flush asks no sooner than it is told to, and keeps its time`, async (server, open) => {
  const client = open({}, Kind);
  server.answer = (_, response) => {
    response.writeHead(429, { "Gateway-Request-Id": "r", "Retry-After": "2" });
    response.end('{"code":"quota_exceeded"}');
    return true;
  };
  await client.track("Seen");
  for (let n = 0; n < 5; n++) assert.equal(await client.flush(100), false);
  assert.equal(server.bodies.length, 1);
  server.answer = null;
  assert.equal(await client.flush(10_000), true);
  assert.deepEqual(server.names(), ["Seen"]);
});

for (const Kind of KINDS) client_test(`${Kind.name}: flush tries each second whatever a proxy asks for`, async (server, open) => {
  const client = open({}, Kind);
  server.answer = (_, response) => {
    response.writeHead(503, { "Retry-After": "120" });
    response.end("<html>");
    return true;
  };
  await client.track("Seen");
  const flushed = client.flush(30_000);
  while (server.bodies.length < 4) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.ok(server.bodies.length < 10);
  server.answer = null;
  assert.equal(await flushed, true);
  assert.deepEqual(server.names(), ["Seen"]);
});

client_test("closing keeps its time while an answer drips", async (server, open) => {
  const client = open({ timeoutMs: 15_000 });
  server.answer = WAITING.dripping;
  await client.track("Seen");
  const start = performance.now();
  await client.close(500);
  assert.ok(performance.now() - start < 1_500);
});

client_test("events that go on in another session are known by their first place", async (server, open) => {
  const client = open();
  const first = await client.track("A");
  const withId = await client.send({ type: "track", event: "B", messageId: "own" });
  server.answer = function (body, response) {
    const rejected = body.batch.map((_, index) => ({ index, code: "session_expired" }));
    return body.session === first.session && server.gateway(response, 200, { rejected });
  };
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual([...server.stored.values()].map(({ messageId }) => messageId), [`${first.session}-1`, "own"]);
  assert.equal(withId.session, first.session);
});

client_test("a full queue throws, or drops what it is told to", async (server, open) => {
  server.answer = WAITING["a 500"];
  const client = open({ queueEventsMax: 2 });
  await client.track("A");
  await client.track("B");
  await assert.rejects(client.track("C"), QueueFullError);
  await client.close();
  for (const [whenFull, left] of [["oldest", ["B", "C"]], ["newest", ["A", "B"]]]) {
    const dropping = open({ queueEventsMax: 2, whenFull, gzip: false }, Analytics);
    await dropping.track("A");
    while (!dropping.lastError?.message.startsWith("500")) await dropping.flush(50);
    for (const name of ["B", "C"]) await dropping.track(name);
    server.answer = null;
    server.stored.clear();
    assert.equal(await dropping.flush(5_000), true);
    assert.deepEqual(server.names(), left);
    server.answer = WAITING["a 500"];
  }
});

const { vectors } = JSON.parse(readFileSync(new URL("../../../../clients/conformance/vectors.json", import.meta.url)));
const ACTIONS = { split: "halve", refused: "again long", doubt: "again", again: "again" };

for (const { name, batch: told, answer, action, verdicts, settlement: settled } of vectors) {
  test(`the protocol's vector: ${name}`, () => {
    const { session, firstSequence, sentBefore, doubtfulThrough } = told;
    const events = told.events.map((event, index) => {
      const [sequence, content] = [firstSequence + index, JSON.stringify(event)];
      return { session, sequence, content, hasId: hasId(event) };
    });
    const batch = { session, events, sentBefore, doubtfulThrough };
    const text = answer.body.replace(/^\[\*(\d+)$/, (_, count) => "[".repeat(Number(count)));
    let judged;
    try {
      judged = judge(batch, verdictOf(answer.status, new Headers(answer.headers), text));
    } catch (err) {
      assert.equal(ACTIONS[err.kind], action);
      return;
    }
    if (action !== "settle") {
      assert.ok(judged.every(({ fate }) => fate === "again"));
      return;
    }
    assert.deepEqual(judged.map(({ fate, code }) => (code ? [fate, code] : fate)), verdicts);
    const found = settlement(batch, judged);
    assert.deepEqual(found.done, settled.done);
    assert.equal(found.doubtfulThrough, settled.doubtfulThrough);
    assert.deepEqual(found.moved.map(movedOf), settled.moved);
    assert.deepEqual(found.letters.map(({ sequence, code }) => [sequence, code]), settled.deadLetters);
  });
}

test("what is no event and what is no url is refused at once", async () => {
  for (const url of ["", "events.example.com", "ftp://example.com", "http://", "http://a b", "http://a?x", undefined, "http://a:99999"]) {
    assert.throws(() => new Client(url, "key"), TypeError);
  }
  assert.throws(() => new Client("http://127.0.0.1:1", ""), TypeError);
  const client = new Client("http://127.0.0.1:1", "key");
  for (const event of [null, undefined, 5, "x", [], () => {}, { sequence: 1 }, { n: 1n }]) {
    await assert.rejects(client.send(event), TypeError);
  }
  await assert.rejects(client.send({ text: "x".repeat(700_000) }), RangeError);
  assert.equal(client.waiting, 0);
  await client.close();
});

const STORAGES = {
  "a file": () => {
    const path = join(mkdtempSync(join(tmpdir(), "queue-")), "queue.jsonl");
    return { path, open: () => fileStorage(path) };
  },
  "items": () => {
    const items = new Map();
    const store = {
      getAllKeys: async () => [...items.keys()],
      multiGet: async (keys) => keys.map((key) => [key, items.get(key) ?? null]),
      multiSet: async (pairs) => pairs.forEach(([key, value]) => items.set(key, value)),
      multiRemove: async (keys) => keys.forEach((key) => items.delete(key)),
    };
    return { open: () => itemStorage(store) };
  },
};

for (const [name, make] of Object.entries(STORAGES)) {
  client_test(`what one process queued in ${name} the next one delivers`, async (server, open) => {
    const { path, open: storage } = make();
    server.answer = WAITING["a 500"];
    const before = open({ storage: storage() });
    const place = await before.track("A");
    for (let n = 0; n < 12; n++) await before.track(`B${n}`);
    assert.equal(before.isDurable, true);
    const id = await before.clientId;
    await before.close();
    if (path) {
      assert.equal(statSync(path).mode & 0o777, 0o600);
      appendFileSync(path, '[["cut'); // as a crash leaves it
    }
    server.answer = null;
    const after = open({ storage: storage() });
    assert.equal(await after.flush(5_000), true);
    assert.equal(await after.clientId, id);
    assert.equal(server.stored.size, 13);
    assert.equal(server.bodies.at(-1).ended, true);
    assert.equal(server.bodies.at(-1).session, place.session);
    assert.notEqual((await after.track("C")).session, place.session);
  });
}

const queueFile = () => join(mkdtempSync(join(tmpdir(), "queue-")), "queue.jsonl");

client_test("a file that cannot be opened is replaced by memory, and it is told", async (server, open) => {
  const problems = [];
  const client = open({ storage: fileStorage(tmpdir()), onProblem: (err) => problems.push(err) });
  await client.track("A");
  assert.equal(client.isDurable, false);
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual(server.names(), ["A"]);
  assert.match(String(problems), /EISDIR/);
});

client_test("what is damaged in a file is set aside, and the rest delivered", async (server, open) => {
  const path = queueFile();
  server.answer = WAITING["a 500"];
  const before = open({ storage: fileStorage(path) });
  for (const name of ["A", "B"]) await before.track(name);
  await before.close();
  const content = readFileSync(path, "utf8");
  writeFileSync(path, `${content}[1,[2]]\n[["gateway/[\\"events\\",","x"]]\nnoise\n${content.split("\n")[0]}\n`);
  server.answer = null;
  const after = open({ storage: fileStorage(path) });
  assert.equal(await after.flush(5_000), true);
  assert.deepEqual(server.names(), ["A", "B"]);
  assert.equal(readdirSync(join(path, "..")).filter((name) => name.includes(".corrupt-")).length, 1);
});

client_test("a file that is deleted in use is written anew", async (server, open) => {
  const path = queueFile();
  server.answer = WAITING["a 500"];
  const before = open({ storage: fileStorage(path) });
  await before.track("A");
  rmSync(path);
  await before.track("B");
  const copy = queueFile();
  writeFileSync(copy, readFileSync(path)); // as a kill leaves it
  server.answer = null;
  const after = open({ storage: fileStorage(copy) });
  assert.equal(await after.flush(5_000), true);
  assert.deepEqual(server.names(), ["A", "B"]);
});

test("what a disk that becomes full has taken of a file is there afterwards", async () => {
  const path = queueFile();
  const library = new URL("../../../../clients/javascript/node-storage.js", import.meta.url);
  const code = `
    import { fileStorage } from "${library}";
    const [storage, kept] = [fileStorage(process.argv[1]), []];
    for (let n = 1; n <= 60; n++) {
      const event = { text: "x".repeat(n % 7 ? 100 : 997) };
      await storage.write([["events", ["s", n], event]]).then(() => kept.push(n), () => {});
    }
    console.log(JSON.stringify(kept));`;
  const limited = ["-c", 'ulimit -f 16 && exec "$0" --input-type=module -e "$1" -- "$2"', process.execPath, code, path];
  const { stdout, stderr } = spawnSync("sh", limited, { encoding: "utf8" });
  const kept = JSON.parse(stdout || assert.fail(stderr));
  assert.ok(kept.length > 5 && kept.length < 60);
  const numbers = async () => (await fileStorage(path).read("events", "s")).map(([[, n]]) => n);
  assert.deepEqual((await numbers()).filter((n) => kept.includes(n)), kept);
  await fileStorage(path).write([["events", ["s", 61], {}]]);
  assert.deepEqual((await numbers()).filter((n) => kept.includes(n) || n > 60), [...kept, 61]);
});

client_test("sending goes on while nothing can be written, and it is told", async (server, open) => {
  const broken = { isDurable: true, read: async () => [], write: () => Promise.reject(new Error("full")) };
  const problems = [];
  const client = open({ storage: broken, onProblem: (err) => problems.push(err.message) });
  for (let n = 0; n < 300; n++) await client.track(`A${n}`);
  assert.equal(client.isDurable, false);
  assert.equal(await client.flush(5_000), true);
  assert.equal(server.stored.size, 300);
  assert.deepEqual(problems, ["full"]);
});

for (const Kind of KINDS) client_test(`${Kind.name}: a queue knows its source`, async (server, open) => {
  const { open: storage } = STORAGES.items();
  server.source = "one";
  const first = open({ storage: storage() }, Kind);
  await first.track("A");
  assert.equal(await first.flush(5_000), true);
  server.answer = WAITING["a 500"];
  await first.track("B");
  await first.close();
  server.answer = null;
  server.source = "two";
  const problems = [];
  const other = new Kind(server.url, "other key", { storage: storage(), onProblem: (err) => problems.push(err) });
  assert.equal(await other.flush(5_000), true); // B is not this key's
  if (Kind === Analytics) assert.match(String(problems), /another source/);
  await other.track("C");
  assert.equal(await other.flush(5_000), true);
  await other.close();
  assert.deepEqual(server.names(), ["A", "C"]);
  server.source = "one";
  const rotated = new Kind(server.url, "third key", { storage: storage() });
  await rotated.flush(5_000);
  while (rotated.waiting || server.stored.size < 3) await new Promise((resolve) => setTimeout(resolve, 50));
  await rotated.close();
  assert.deepEqual(server.names(), ["A", "B", "C"]);
});

client_test("nothing is sent before the source is known: with the key of another one it would be stored twice", async (server, open) => {
  const { open: storage } = STORAGES.items();
  server.source = "one";
  const take = server.gateway;
  server.gateway = (response) => !!response.destroy(); // what is stored is not told
  const first = open({ storage: storage() });
  await first.track("A");
  assert.equal(await first.flush(1_000), false);
  await first.close();
  server.gateway = take;
  server.source = "two";
  const other = new Client(server.url, "other key", { storage: storage() });
  assert.equal(await other.flush(5_000), true);
  await other.close();
  assert.deepEqual(server.names(), ["A"]);
});

client_test("only a 200 of the gateway tells the source, and one without it forgets none", async (server, open) => {
  const { open: storage } = STORAGES.items();
  server.source = "one";
  const first = open({ storage: storage() });
  await first.track("A");
  assert.equal(await first.flush(5_000), true);
  server.answer = WAITING["a 500"];
  await first.track("B");
  await first.close();
  const other = new Client(server.url, "other key", { storage: storage() });
  server.source = null;
  server.answer = WAITING["the gateway's 401"];
  assert.equal(await other.flush(500), false);
  server.source = "two";
  server.answer = null;
  assert.equal(await other.flush(5_000), true);
  server.source = null;
  await other.track("C");
  assert.equal(await other.flush(5_000), true);
  await other.close();
  assert.deepEqual(server.names(), ["A", "C"]);
});

client_test("the calls of an analytics SDK", async (server, open) => {
  const { open: storage } = STORAGES.items();
  const client = open({ storage: storage(), beforeSend: (event) => (event.event === "Secret" ? null : event) }, Analytics);
  await client.page("Home");
  await client.identify("u1", { plan: "pro" });
  await client.track("Bought", { total: 1 });
  assert.equal(await client.track("Secret"), null);
  await client.group("g1");
  await client.screen("Start");
  await client.alias("u2");
  await client.reset();
  await client.track("After");
  assert.equal(await client.flush(5_000), true);
  const events = [...server.stored.values()];
  const id = await client.clientId;
  assert.deepEqual(events.map(({ type }) => type), ["page", "identify", "track", "group", "screen", "alias", "track"]);
  assert.deepEqual(events.map(({ userId }) => userId), [undefined, "u1", "u1", "u1", "u1", "u2", undefined]);
  assert.deepEqual([events[1].traits, events[5].previousId, events[3].groupId], [{ plan: "pro" }, "u1", "g1"]);
  assert.equal(events[5].anonymousId, id);
  assert.notEqual(events[6].anonymousId, id);
  assert.equal(events[0].context.library.name, "gateway-client.js");
  assert.match(events[0].context.library.version, /^\d+\.\d+\.\d+$/);
});

client_test("who opts out has no events, before and after", async (server, open) => {
  const { open: storage } = STORAGES.items();
  server.answer = WAITING["a 500"];
  const client = open({ storage: storage() }, Analytics);
  await client.track("A");
  await client.optOut();
  assert.equal(await client.track("B"), null);
  assert.equal(client.waiting, 0);
  await client.close();
  server.answer = null;
  const next = open({ storage: storage() }, Analytics);
  assert.equal(await next.track("C"), null);
  await next.optIn();
  await next.track("D");
  assert.equal(await next.flush(5_000), true);
  assert.deepEqual(server.names(), ["D"]);
});

client_test("large bodies are compressed without a header that would cost a preflight", async (server, open) => {
  const client = open({}, Analytics);
  await client.track("A", { text: "x".repeat(5_000) });
  assert.equal(await client.flush(5_000), true);
  const { headers, bytes } = server.requests[server.bodies.findIndex(({ batch }) => batch.length)];
  assert.ok(bytes < 1_000);
  assert.deepEqual([headers["content-type"], headers["content-encoding"]], ["text/plain", undefined]);
  for (const { headers } of server.requests) assert.match(headers["content-type"], /^text\/plain/);
});

client_test("dead letters are tried again", async (server, open) => {
  const client = open({}, Analytics);
  server.answer = function (body, response) {
    return server.gateway(response, 200, { rejected: body.batch.map((_, index) => ({ index, code: "type_invalid" })) });
  };
  const place = await client.track("A");
  assert.equal(await client.flush(5_000), true);
  assert.equal((await client.deadLetters()).length, 1);
  server.answer = null;
  assert.equal(await client.retryDeadLetters(), 1);
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual(await client.deadLetters(), []);
  assert.equal([...server.stored.values()][0].messageId, `${place.session}-${place.sequence}`);
});

const letterOf = (n) => ({ session: "s", sequence: n, code: "event_refused", message: "", event: { type: "track", event: `E${n}` } });

client_test("dead letters that find no room in the queue stay", async (server, open) => {
  const { open: storage } = STORAGES.items();
  await storage().write([1, 2, 3].map((n) => ["deadLetters", `${n}`, letterOf(n)]));
  const client = open({ storage: storage(), queueEventsMax: 2 }, Analytics);
  server.answer = WAITING["a 500"];
  await assert.rejects(client.retryDeadLetters(), QueueFullError);
  assert.deepEqual((await client.deadLetters()).map(({ sequence }) => sequence), [3]);
  server.answer = null;
  assert.equal(await client.flush(5_000), true);
  assert.deepEqual(server.names(), ["E1", "E2"]);
});

client_test("of many dead letters those stay that the gateway has no copy of", async (server, open) => {
  const { open: storage } = STORAGES.items();
  const known = (n) => ({ ...letterOf(n), code: "type_invalid" });
  const letters = Array.from({ length: 1_002 }, (_, n) => ["deadLetters", `${10_000 + n}`, n % 2 ? known(n) : letterOf(n)]);
  await storage().write(letters);
  const client = open({ storage: storage() }, Analytics);
  server.answer = (body, response) => body.batch.length > 0 && server.gateway(response, 200, { rejected: [{ index: 0, code: "type_invalid" }] });
  await client.track("Bad");
  assert.equal(await client.flush(5_000), true);
  while ((await client.deadLetters()).length > 1_002) await new Promise((resolve) => setTimeout(resolve, 20));
  const left = (await client.deadLetters()).map(({ sequence }) => sequence);
  assert.deepEqual(left.slice(0, 4), [0, 2, 3, 4]);
});

describe("with a server", { concurrency: AT_ONCE }, () => {
  for (const [name, run] of sideBySide) test(name, { timeout: 60_000 }, run);
});
