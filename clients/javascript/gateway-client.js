/**
 * A client that loses no event and has none stored twice: it keeps each in IndexedDB until the gateway
 * has it. The twin of clients/python/gateway_client.py; README.md says what a page must know.
 *
 * An event gets its place, a sequence in a client session, in the transaction that makes it durable, and
 * before it is sent for the first time; it keeps that place however often it is sent. Each tab numbers
 * its events in a session of its own, over reloads, and holds a Web Lock named after it: the queue of a
 * tab that is gone has no such lock, and any other tab delivers it. Batches of a session go out one at a
 * time, oldest first, so what is stored of it has no gaps and the 512 sequences that the gateway takes
 * ahead of its watermark are never exceeded.
 */

const BATCH_EVENTS = 100;
const BATCH_BYTES = 60_000; // fetch lets bodies of 64 KiB outlive their page
const EVENT_CHARS_MAX = 200_000; // at most 600 KB: the gateway's own limit is 800 KiB
const DEAD_LETTERS_MAX = 1_000; // older ones are deleted: the gateway has them in its quarantine

const LINGER_MS = 200; // how long a batch waits for more events, unless the page is left
const ADOPT_MS = 3_000; // how often tabs that are gone are looked for
const BACKOFF_MS = 500;
const BACKOFF_MAX_MS = 60_000;
const RETRY_AFTER_MAX_S = 300;

const SESSION_IS_OVER = new Set(["session_expired", "session_fenced"]);
const STORES = ["installation", "sessions", "events", "deadLetters"];

/** The gateway refuses this page's requests as such (400, 401): its configuration must change. */
export class StoppedError extends Error {}

/** So many events wait already that no more are taken. */
export class QueueFullError extends Error {}

export class Client {
  #url;
  #options;
  #db;
  #ready;
  #loop;
  #own = null; // the session that new events are in
  #numbered = new Set(); // sessions in which this tab has numbered events: their rows exist, or were deleted
  #held = new Map(); // sessions whose locks this tab has, with what releases each
  #adoptAt = 0;
  #failures = 0;
  #stopped = null;
  #isClosed = false;
  #signals = new Set(); // what has happened since the queue was last looked at
  #wakeUp = () => {};
  #waiters = new Set();
  #listeners = new AbortController();

  /**
   * @param {string} url of the gateway, without a path
   * @param {string} writeKey names the source
   * @param {object} [options] name: of the database; onRejected: called for each new dead letter;
   *   onStopped: called once with a StoppedError; queueEventsMax; timeoutMs: for one answer
   */
  constructor(url, writeKey, options = {}) {
    this.#url = `${url}/v1/events?writeKey=${encodeURIComponent(writeKey)}`;
    this.#options = { name: "gateway", queueEventsMax: 10_000, timeoutMs: 15_000, ...options };
    this.#ready = this.#open();
    this.#loop = this.#ready.then(() => this.#run());
    this.#loop.catch((err) => console.error("gateway client:", err));
    const { signal } = this.#listeners;
    const hurry = () => this.#wake("hurry");
    addEventListener("online", () => this.#wake("online"), { signal });
    addEventListener("pagehide", hurry, { signal });
    document.addEventListener("visibilitychange", hurry, { signal });
  }

  /** Resolves to the id of this installation. */
  get clientId() {
    return this.#ready;
  }

  /** Queue an action of a user, now; without an id it is this installation's. See send. */
  async track(event, properties = {}, { userId, anonymousId } = {}) {
    const timestamp = new Date().toISOString();
    const who = userId || anonymousId ? { userId, anonymousId } : { anonymousId: await this.#ready };
    return this.send({ type: "track", event, ...who, properties, timestamp });
  }

  /**
   * Queue an event, and resolve to its place {session, sequence} when it is durable.
   *
   * @param {object} event JSON without `sequence`. A `messageId` is not needed; one that this installation
   *   sends again within the window is stored once.
   * @throws {TypeError|RangeError} it is no JSON, too large, or has a sequence
   * @throws {QueueFullError} the gateway has not been there for long
   */
  async send(event) {
    if (event.sequence != null) throw new TypeError("an event's sequence is given by the client");
    const content = JSON.stringify(event);
    if (content.length > EVENT_CHARS_MAX) throw new RangeError(`an event may have ${EVENT_CHARS_MAX} characters`);
    await this.#ready;
    const place = await this.#add({ content, hasId: event.messageId != null });
    this.#wake("event");
    return place;
  }

  /** Resolve to whether all that this tab is to deliver was, or became a dead letter, within the time. */
  async flush(timeoutMs = 10_000) {
    const end = performance.now() + timeoutMs;
    await this.#ready;
    this.#wake("hurry");
    while (await this.#waiting()) {
      if (this.#stopped) throw this.#stopped;
      const left = end - performance.now();
      if (left <= 0) return false;
      await new Promise((resolve) => {
        this.#waiters.add(resolve);
        setTimeout(resolve, left);
      });
    }
    return true;
  }

  /** Send nothing any more. What is left waits for the next tab. */
  async close() {
    this.#isClosed = true;
    this.#listeners.abort();
    this.#wake("close");
    await this.#loop.catch(() => {});
    for (const release of this.#held.values()) release();
    (await this.#db).close();
  }

  /** Resolve to the newest events that the gateway would not take: {session, sequence, code, message, event}. */
  async deadLetters() {
    await this.#ready;
    return this.#transaction("readonly", ({ deadLetters }) => result(deadLetters.getAll()));
  }

  // ---- delivery

  async #run() {
    while (!this.#isClosed) {
      this.#signals.clear();
      try {
        const hasSent = !this.#stopped && (await this.#deliver());
        this.#failures = 0;
        this.#waiters.forEach((resolve) => resolve());
        this.#waiters.clear();
        if (!hasSent && (await this.#sleep(ADOPT_MS, ["event", "hurry", "close"])) === "event")
          await this.#sleep(LINGER_MS, ["hurry", "close"]);
      } catch (err) {
        await this.#sleep(this.#pauseAfter(err), ["online", "close"]);
      }
    }
  }

  /** Send one batch once; resolve to whether there was one. */
  async #deliver() {
    if (!navigator.onLine) throw new NoAnswerError("offline");
    await this.#adopt();
    for (const session of this.#held.keys()) {
      const batch = await this.#nextBatch(session);
      if (!batch) {
        if (session !== this.#own) await this.#forget(session);
        continue;
      }
      const verdicts = await this.#post(batch);
      if (!verdicts) return false;
      const letters = await this.#settle(batch, verdicts);
      for (const letter of letters) {
        console.warn("gateway client: will not be stored:", letter);
        call(this.#options.onRejected, letter);
      }
      if (verdicts.some(({ fate }) => fate === "again")) throw new NoAnswerError("some events were not taken yet");
      return true;
    }
    return false;
  }

  /** Send a batch, and resolve to the verdict on each event; to nothing if the client has to stop. */
  async #post(batch) {
    const body = JSON.stringify({
      client: await this.#ready,
      session: batch.session,
      acknowledgedThrough: batch.firstSequence - 1,
      firstSequence: batch.firstSequence,
      sentAt: new Date().toISOString(),
    });
    const contents = batch.events.map(({ content }) => content).join(",");
    const bytes = new TextEncoder().encode(`${body.slice(0, -1)},"batch":[${contents}]}`);
    const answer = await fetch(this.#url, {
      method: "POST",
      body: bytes,
      headers: { "Content-Type": "text/plain" }, // and no other header: no preflight, also while the page is left
      credentials: "omit",
      keepalive: bytes.length <= BATCH_BYTES + 1_000,
      signal: AbortSignal.timeout(this.#options.timeoutMs),
    });
    const text = await answer.text();
    const document = objectIn(text);
    const isRefused = answer.status >= 400 && answer.status < 500 && ![408, 429].includes(answer.status);
    if (isRefused && document?.code) {
      this.#stopped = new StoppedError(`${answer.status} ${text}`);
      console.error("gateway client: all requests are refused:", this.#stopped.message);
      call(this.#options.onStopped, this.#stopped);
      return null;
    }
    if (answer.status !== 200 || !document) {
      throw new NoAnswerError(`${answer.status} ${text.slice(0, 200)}`, answer.headers.get("Retry-After"));
    }
    return judge(batch, document);
  }

  /** Return a pause with full jitter, longer after each failure, and not shorter than asked for. */
  #pauseAfter(err) {
    this.#failures += 1;
    const longest = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** Math.min(this.#failures, 30));
    const pause = Math.max(err.retryAfterMs ?? 0, Math.random() * longest);
    console.info(`gateway client: not delivered, trying again in ${Math.round(pause)} ms:`, err.message);
    return pause;
  }

  #wake(signal) {
    this.#signals.add(signal);
    this.#wakeUp();
  }

  /** Wait, or until one of these happens; resolve to which did. */
  async #sleep(ms, signals) {
    const found = () => signals.find((signal) => this.#signals.has(signal));
    if (!found()) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, ms);
        this.#wakeUp = () => {
          if (!found()) return;
          clearTimeout(timer);
          resolve();
        };
      });
    }
    return found();
  }

  // ---- sessions and their locks

  async #open() {
    this.#db = openDatabase(this.#options.name);
    const client = await this.#transaction("readwrite", async ({ installation }) => {
      const known = await result(installation.get("client"));
      const id = known ?? hex(crypto.getRandomValues(new Uint8Array(16)));
      if (!known) installation.put(id, "client");
      return id;
    });
    const earlier = sessionStorage.getItem(this.#tabKey); // of the page that was in this tab before
    if (earlier && (await this.#hold(earlier))) {
      const row = await this.#transaction("readonly", ({ sessions }) => result(sessions.get(earlier)));
      if (row) {
        this.#own = earlier;
        this.#numbered.add(earlier);
      } else {
        this.#release(earlier);
      }
    }
    if (!this.#own) await this.#begin();
    return client;
  }

  get #tabKey() {
    return `${this.#options.name} session`;
  }

  /** Number the events to come in a new session. */
  async #begin() {
    const session = ksuid();
    await this.#hold(session);
    this.#own = session;
    sessionStorage.setItem(this.#tabKey, session);
  }

  /** Hold the lock of a session until it is released, or the tab is gone; resolve to whether it was free. */
  #hold(session) {
    if (!navigator.locks) {
      this.#held.set(session, () => {});
      return Promise.resolve(true);
    }
    return new Promise((resolve, reject) => {
      const work = (lock) => {
        resolve(lock !== null);
        return lock && new Promise((release) => this.#held.set(session, release));
      };
      const name = `${this.#options.name} ${session}`;
      navigator.locks.request(name, { ifAvailable: true }, work).catch(reject);
    });
  }

  #release(session) {
    this.#held.get(session)?.();
    this.#held.delete(session);
  }

  /** Take over the sessions of tabs that are gone. Without locks (no https) this is not known: once, then. */
  async #adopt() {
    if (performance.now() < this.#adoptAt) return;
    this.#adoptAt = navigator.locks ? performance.now() + ADOPT_MS : Infinity;
    const known = await this.#transaction("readonly", ({ sessions }) => result(sessions.getAllKeys()));
    for (const session of known) if (!this.#held.has(session)) await this.#hold(session);
  }

  /** Delete a session that others began, and that has nothing left to deliver. */
  async #forget(session) {
    await this.#transaction("readwrite", async ({ sessions, events }) => {
      if (!(await result(events.count(rangeOf(session))))) sessions.delete(session);
    });
    this.#release(session);
  }

  // ---- what is kept

  async #transaction(mode, work) {
    const db = await this.#db;
    const transaction = db.transaction(STORES, mode, { durability: "strict" }); // less would lose events with the power
    const end = new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was aborted"));
    });
    end.catch(() => {});
    let found;
    try {
      found = await work(Object.fromEntries(STORES.map((name) => [name, transaction.objectStore(name)])));
    } catch (err) {
      if (!transaction.error) transaction.abort();
      throw err;
    }
    await end;
    return found;
  }

  async #add(queued) {
    for (;;) {
      const session = this.#own;
      const place = await this.#transaction("readwrite", async ({ sessions, events }) => {
        if ((await result(events.count())) >= this.#options.queueEventsMax) {
          throw new QueueFullError(`${this.#options.queueEventsMax} events wait already`);
        }
        const row = await result(sessions.get(session));
        if (!row && this.#numbered.has(session)) return null; // others, or the user, have deleted it
        return append(sessions, events, row ?? newRow(session), [queued]);
      });
      this.#numbered.add(session);
      if (place) return place;
      if (session === this.#own) await this.#begin();
    }
  }

  #waiting() {
    return this.#transaction("readonly", async ({ events }) => {
      const counts = [...this.#held.keys()].map((session) => result(events.count(rangeOf(session))));
      return (await Promise.all(counts)).some((count) => count > 0);
    });
  }

  /** Resolve to the oldest events that wait in a session, and note that they are being sent. */
  #nextBatch(session) {
    return this.#transaction("readwrite", async ({ sessions, events }) => {
      const rows = await result(events.getAll(rangeOf(session), BATCH_EVENTS));
      if (!rows.length) return null;
      const batch = { session, firstSequence: rows[0].sequence, events: [] };
      let size = 0;
      for (const [index, row] of rows.entries()) {
        size += row.content.length;
        if (row.sequence !== batch.firstSequence + index || (batch.events.length && size > BATCH_BYTES)) break;
        batch.events.push(row);
      }
      const state = await result(sessions.get(session));
      batch.sentBefore = state.sentThrough;
      batch.doubtfulThrough = state.doubtfulThrough;
      state.sentThrough = Math.max(state.sentThrough, batch.events.at(-1).sequence);
      sessions.put(state);
      return batch;
    });
  }

  /** Do what an answer says, and resolve to the new dead letters. */
  async #settle(batch, verdicts) {
    const { done, moved, letters, doubtfulThrough } = settlement(batch, verdicts);
    const isOver = verdicts.some(({ fate }) => fate === "session over");
    if (isOver && batch.session === this.#own) await this.#begin();
    const current = this.#own;
    await this.#transaction("readwrite", async ({ sessions, events, deadLetters }) => {
      const state = await result(sessions.get(batch.session));
      if (!state) return; // without locks another tab may have been quicker
      sessions.put({ ...state, doubtfulThrough });
      for (const letter of letters) deadLetters.add(letter);
      if (letters.length) await trim(deadLetters);
      const going = [];
      for (const { sequence } of moved) going.push(await result(events.get([batch.session, sequence])));
      for (const sequence of done) events.delete([batch.session, sequence]);
      if (!isOver) return;
      const unsent = IDBKeyRange.bound([batch.session, state.sentThrough], [batch.session, Infinity], true);
      going.push(...(await result(events.getAll(unsent))));
      events.delete(unsent);
      const row = (await result(sessions.get(current))) ?? newRow(current);
      append(sessions, events, row, going.filter(Boolean));
      this.#numbered.add(current);
    });
    return letters;
  }
}

// ---- what an answer says

/** The answer decides nothing: what was sent may be stored or not. */
class NoAnswerError extends Error {
  constructor(message, retryAfter) {
    super(message);
    const asked = /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : 0; // a date would need a clock that is right
    this.retryAfterMs = 1_000 * Math.min(asked, RETRY_AFTER_MAX_S);
  }
}

/** Return the verdict on each event of a batch. An event that the answer does not name is undecided. */
export function judge(batch, document) {
  const stored = new Set((document.receipts ?? []).map(({ sequence }) => sequence));
  const rejected = new Map((document.rejected ?? []).map((told) => [told.index, told]));
  return batch.events.map(({ sequence }, index) => {
    if (stored.has(sequence)) return { fate: "done" };
    const told = rejected.get(index);
    if (!told || told.retriable) return { fate: "again" };
    const { code, message } = told;
    return { fate: SESSION_IS_OVER.has(code) ? "session over" : "rejected", code, message };
  });
}

/**
 * Return what becomes of each event.
 *
 * A session that is over takes no new event, but of each that is stored it says so: all up to its
 * watermark for good, those above while they are in the dedupe window. What is stored of a session has
 * no gaps, so nothing above the watermark is, and what was refused goes on in another session. The
 * exception is an event that was sent before, unanswered, behind one that may have left its place
 * empty, because it was rejected or its messageId was known. Nobody can tell whether it is stored:
 * it becomes a dead letter rather than be stored twice.
 */
export function settlement(batch, verdicts) {
  const [done, moved, letters] = [[], [], []];
  let { doubtfulThrough } = batch;
  for (const [index, { sequence, content, hasId }] of batch.events.entries()) {
    const { fate, code, message } = verdicts[index];
    const isOver = fate === "session over";
    if (fate !== "again") done.push(sequence);
    if (isOver && sequence > doubtfulThrough) moved.push({ sequence });
    else if (isOver || fate === "rejected")
      letters.push({ session: batch.session, sequence, code, message, event: JSON.parse(content) });
    if (sequence <= batch.sentBefore && (fate === "rejected" || hasId)) doubtfulThrough = batch.sentBefore;
  }
  return { done, moved, letters, doubtfulThrough };
}

function objectIn(text) {
  try {
    const document = JSON.parse(text);
    return typeof document === "object" && !Array.isArray(document) ? document : null;
  } catch {
    return null;
  }
}

/** Call the page back; its errors are not this client's. */
function call(callback, told) {
  try {
    callback?.(told);
  } catch (err) {
    console.error("gateway client: a callback failed:", err);
  }
}

// ---- what is kept

function openDatabase(name) {
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => {
    const db = opening.result;
    db.createObjectStore("installation");
    db.createObjectStore("sessions", { keyPath: "session" });
    db.createObjectStore("events", { keyPath: ["session", "sequence"] });
    db.createObjectStore("deadLetters", { autoIncrement: true });
  };
  return result(opening);
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function rangeOf(session) {
  return IDBKeyRange.bound([session, 0], [session, Infinity]);
}

function newRow(session) {
  return { session, last: 0, sentThrough: 0, doubtfulThrough: 0 };
}

/** Put events behind the last one of a session; return the place of the last of them. */
function append(sessions, events, row, queued) {
  for (const { content, hasId } of queued) {
    row.last += 1;
    events.add({ session: row.session, sequence: row.last, content, hasId });
  }
  sessions.put(row);
  return { session: row.session, sequence: row.last };
}

async function trim(deadLetters) {
  const keys = await result(deadLetters.getAllKeys());
  for (const key of keys.slice(0, -DEAD_LETTERS_MAX)) deadLetters.delete(key);
}

// ---- ids

/** Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62. */
export function ksuid() {
  const seconds = Math.max(0, Math.floor(Date.now() / 1_000) - 1_400_000_000) % 2 ** 32;
  const random = hex(crypto.getRandomValues(new Uint8Array(16)));
  let number = (BigInt(seconds) << 128n) + BigInt(`0x${random}`);
  const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  let digits = "";
  for (let place = 0; place < 27; place++) {
    digits = alphabet[Number(number % 62n)] + digits;
    number /= 62n;
  }
  return digits;
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
