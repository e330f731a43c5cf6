/**
 * A client that loses no event and has none stored twice: it keeps each in IndexedDB until the gateway
 * has it. The twin of clients/python/gateway_client.py; README.md says what a page must know.
 *
 * An event gets its place, a sequence in a client session, in the tick in which it is queued, and in the
 * transaction that makes it durable; it keeps that place however often it is sent. Each tab numbers its
 * events in a session of its own, over reloads, and holds a Web Lock named after it, so it numbers them in
 * memory: a page that is being left has no time to read. The queue of a tab that is gone has no such
 * lock, and any other tab delivers it. Batches of a session go out one at a time, oldest first, so what is
 * stored of it has no gaps and the 512 sequences that the gateway takes ahead of its watermark are never
 * exceeded.
 *
 * This file is joined from src by build.mjs. It needs no other and no build step.
 */

/**
 * @typedef {{ session: string, sequence: number }} Place which event it is
 * @typedef {{ session: string, sequence: number, content: string, hasId: boolean, time?: number }} Queued
 *   an event that waits; its JSON never changes
 * @typedef {{ session: string, last: number, doubtfulThrough: number, client: string, source?: string }} Row
 *   a session, as it is kept; the first version did not keep `client`
 * @typedef {{ session: string, events: Queued[], sentBefore: number, doubtfulThrough: number, client: string,
 *   isLast: boolean }} Batch events of a session without a gap, the oldest that wait
 * @typedef {{ fate: "done" | "again" | "rejected" | "session over", code?: string, message?: string }} Verdict
 * @typedef {{ session: string, sequence: number, code: string, message: string, event: Record<string, any> }} Letter
 *   an event that the gateway will not take
 *
 * @typedef {"installation" | "sessions" | "events" | "deadLetters"} Kind
 * @typedef {string | [string, number]} Key
 * @typedef {[kind: Kind, key: Key, value: unknown]} Change a value of null or undefined deletes
 * @typedef {object} Storage where the queue is kept; README.md has one for React Native
 * @property {boolean} isDurable
 * @property {(kind: Kind, session?: string) => Promise<[Key, any][]>} read all of a kind by key; of events those of
 *   a session
 * @property {(changes: Change[]) => Promise<void>} write all of the changes, or none
 * @typedef {{ isLocked: boolean, release: () => void }} Lock of a session; without locks it is always free
 *
 * @typedef {object} Options
 * @property {string} [name] of the database
 * @property {Storage} [storage] instead of IndexedDB
 * @property {number} [queueEventsMax] how many events may wait
 * @property {number} [timeoutMs] for one answer
 * @property {(letter: Letter) => void} [onRejected] called for each new dead letter
 * @property {(err: Error, since: Date) => void} [onProblem] called when something is wrong, and hourly while it is
 * @property {typeof fetch} [fetch]
 * @property {(body: string) => Promise<BodyInit>} [encode] compresses a body
 */

// ---- the client

const BATCH_EVENTS = 100;
const BATCH_BYTES = 60_000;
const KEEPALIVE_BYTES = 64_000; // of all requests that outlive a page together, fetch takes 64 KiB

const LINGER_MS = 200; // how long a batch waits for more events, unless the page is left
const BACKOFF_MS = 500;
const BACKOFF_MAX_MS = 60_000;
const REFUSED_MS = 10_000; // a key that is being rotated is right again soon, one that is wrong is not
const REFUSED_MAX_MS = 600_000;
const REFUSALS_MAX = 3;
const TELL_MS = 3_600_000;

let keepaliveBytes = 0; // of all clients of the page

/** So many events wait already that no more are taken. */
export class QueueFullError extends Error {}

/** Queues events, and delivers each once. */
export class Client {
  #url;
  /** @type {Required<Pick<Options, "queueEventsMax" | "timeoutMs">> & Options} */ #options;
  #queue;
  #loop;
  #encode;
  #eventsMax = BATCH_EVENTS; // less for a while after a batch that was too much for somebody
  #failures = 0;
  #refused = ""; // the place of an event that somebody between has refused alone
  #refusals = 0;
  #isClosed = false;
  /** @type {Map<string, { err: Error, since: number, toldAt: number }>} */ #troubles = new Map();
  /** @type {Set<string>} what has happened since the queue was last looked at */ #signals = new Set();
  #wakeUp = () => {};
  /** @type {Set<() => void>} */ #waiters = new Set();
  /** @type {Set<AbortController>} */ #inFlight = new Set();
  /** @type {(() => void)[]} */ #unlisten = [];

  /**
   * @param {string} url of the gateway
   * @param {string} writeKey names the source
   * @param {Options} [options]
   * @throws {TypeError} the url is none, or the key is missing
   */
  constructor(url, writeKey, options = {}) {
    const base = baseOf(url);
    if (!writeKey) throw new TypeError("the write key is missing");
    this.#url = `${base}/v1/events?writeKey=${encodeURIComponent(writeKey)}`;
    this.#options = { queueEventsMax: 10_000, timeoutMs: 15_000, ...options };
    this.#encode = this.#options.encode;
    const name = options.name ?? "gateway";
    const storage = options.storage ?? new IndexedDBStorage(name);
    this.#queue = new Queue(name, `${base} ${writeKey}`, storage, !options.storage, (err) => this.#tell("storage", err));
    this.#loop = this.#run();
    this.#listen(globalThis, "online", () => this.#wake("hurry"));
    this.#listen(globalThis, "pagehide", () => {
      this.#leave();
      this.#queue.release();
    });
    this.#listen(globalThis, "pageshow", () => {
      if (this.#queue.isLeft) this.#queue.reopen();
      this.#wake("hurry");
    });
    this.#listen(globalThis.document, "visibilitychange", () => {
      if (document.visibilityState === "hidden") this.#leave();
    });
  }

  /** Resolves to the id of this installation. */
  get clientId() {
    return this.#queue.ready.then(() => this.#queue.client);
  }

  /** Whether what waits survives the end of the page; if not, it is in memory. */
  get isDurable() {
    return this.#queue.keeper.isDurable;
  }

  /** How many events this tab has to deliver. */
  get waiting() {
    return this.#queue.waiting;
  }

  /** When the oldest of them was queued; null without any. */
  get oldest() {
    const times = [...this.#queue.sessions.values()].flatMap(({ events }) => [...events.values()].slice(0, 1));
    return times.length ? new Date(Math.min(...times.map(({ time }) => time ?? Date.now()))) : null;
  }

  /** What is wrong: why nothing is delivered, or why it is not kept. Null if nothing is. */
  get lastError() {
    return [...this.#troubles.values()].at(-1)?.err ?? null;
  }

  /**
   * Queue an action of a user, now; without an id it is this installation's. See send.
   *
   * @param {string} event
   * @param {Record<string, unknown>} [properties]
   * @param {{ userId?: string, anonymousId?: string }} [who]
   */
  async track(event, properties = {}, { userId, anonymousId } = {}) {
    if (this.isUnknown) await this.#queue.ready;
    if (!userId) anonymousId ||= this.#queue.client;
    return this.queue({ type: "track", event, userId, anonymousId, properties });
  }

  /**
   * Queue an event, and resolve to its place {session, sequence} when it is kept.
   *
   * @param {Record<string, unknown>} event JSON without `sequence`. A `messageId` is not needed; one that this
   *   installation sends again within the window is stored once.
   * @returns {Promise<Place | null>} null if the user has opted out, or the event was dropped
   * @throws {TypeError | RangeError} it is no JSON, too large, or has a sequence
   * @throws {QueueFullError} the gateway has not been there for long
   */
  async send(event) {
    return this.queue(event);
  }

  /**
   * Resolve to whether all that this tab is to deliver was, or became a dead letter, within the time. What waits for
   * the key of another source is not.
   */
  async flush(timeoutMs = 10_000) {
    const end = performance.now() + timeoutMs;
    const late = pause(timeoutMs);
    const adopting = this.#queue.ready.then(() => this.#queue.adopt(true)).catch((err) => this.#tell("storage", err));
    await Promise.race([adopting, late.over]);
    this.#failures = 0;
    this.#wake("hurry");
    const isLeft = () => this.#queue.needsSource || this.#queue.waiting > 0;
    while (isLeft() && performance.now() < end && !this.#isClosed) {
      await Promise.race([new Promise((resolve) => this.#waiters.add(() => resolve(null))), late.over]);
    }
    late.cancel();
    return !isLeft() && (this.#queue.isAllRead || !this.#queue.keeper.isInUse);
  }

  /** Deliver for so long, then send nothing any more. What is left waits for the next tab. */
  async close(timeoutMs = 0) {
    if (timeoutMs > 0) await this.flush(timeoutMs);
    this.#isClosed = true;
    for (const unlisten of this.#unlisten) unlisten();
    for (const control of this.#inFlight) control.abort();
    this.#wake("close");
    await this.#loop;
    this.#queue.release();
  }

  /** Resolve to the newest events that the gateway would not take: {session, sequence, code, message, event}. */
  async deadLetters() {
    await this.#queue.ready;
    return (await this.#queue.letters()).map(([, letter]) => letter);
  }

  // ---- for classes that do more

  /**
   * Queue an event in this tick.
   *
   * @protected
   * @param {Record<string, any>} event
   * @returns {Promise<Place | null>}
   */
  async queue(event) {
    const plain = plainOf(event);
    if (this.isUnknown) await this.#queue.ready;
    if (this.#queue.waiting >= this.#options.queueEventsMax && !this.makeRoom()) return null;
    const { place, written } = this.#queue.add(plain);
    this.#wake("event");
    if (this.#queue.isLeft) queueMicrotask(() => this.#leave());
    await written;
    return place;
  }

  /** @protected whether there is time to wait for what is remembered, since this is no page that may be left */
  get isUnknown() {
    return !this.#queue.isOpen && !globalThis.document;
  }

  /**
   * Return whether there is room for an event in a full queue now.
   *
   * @protected
   * @returns {boolean}
   */
  makeRoom() {
    throw new QueueFullError(`${this.#options.queueEventsMax} events wait already`);
  }

  /** @protected what waits, and what is remembered of this installation */
  get kept() {
    return this.#queue;
  }

  // ---- delivery

  async #run() {
    await this.#queue.ready;
    while (!this.#isClosed) {
      this.#signals.clear();
      try {
        const hasSent = await this.#deliver();
        if (hasSent) {
          this.#failures = 0;
          this.#tell("delivery", null);
        }
        this.#waiters.forEach((resolve) => resolve());
        this.#waiters.clear();
        if (!hasSent && (await this.#sleep(ADOPT_MS, ["event", "hurry", "close"])) === "event")
          await this.#sleep(LINGER_MS, ["hurry", "close"]);
      } catch (err) {
        if (!this.#isClosed) await this.#sleep(this.#pauseAfter(asError(err)), ["hurry", "close"]);
      }
    }
  }

  /** Send one batch once, or ask for the source before the first; resolve to something true if there was any to send. */
  async #deliver() {
    await this.#queue.adopt().catch((err) => this.#tell("storage", err));
    if (this.#queue.mustAsk) return this.#ask();
    const batch = this.#queue.nextBatch(this.#eventsMax, BATCH_BYTES);
    if (!batch) return false;
    try {
      this.#settle(batch, judge(batch, await this.#post(bodyOf(batch))));
    } catch (err) {
      const kind = err instanceof DeliveryError && err.kind;
      if (kind === "split" || (kind === "doubt" && (await this.#isCause(batch)))) this.#split(batch, asError(err));
      else {
        const isAnswered = err instanceof DeliveryError;
        if (!isAnswered) this.#eventsMax = Math.max(1, batch.events.length >> 1); // its size may be the reason
        throw err;
      }
    }
    return true;
  }

  /**
   * @param {Batch} batch
   * @param {Verdict[]} verdicts
   */
  #settle(batch, verdicts) {
    for (const letter of this.#queue.settle(batch, verdicts)) {
      console.warn("gateway client: will not be stored:", letter);
      call(this.#options.onRejected, letter);
    }
    if (verdicts.some(({ fate }) => fate === "again")) throw new DeliveryError("some events were not taken yet");
    this.#eventsMax = Math.min(BATCH_EVENTS, this.#eventsMax + 1 + (this.#eventsMax >> 2));
  }

  /**
   * Return whether it is one event that somebody between will not have: alone it was refused again and again, while
   * the gateway answered another request each time. A batch is smaller the next time.
   *
   * @param {Batch} batch
   */
  async #isCause({ session, events }) {
    this.#encode = undefined;
    this.#eventsMax = Math.max(1, events.length >> 1);
    const name = `${session} ${events[0].sequence}`;
    if (events.length > 1 || !(await this.#ask().catch(() => {}))) return false;
    this.#refusals = this.#refused === name ? this.#refusals + 1 : 1;
    this.#refused = name;
    return this.#refusals >= REFUSALS_MAX;
  }

  /** Send no event, to learn whether it is the gateway that answers, and for which source. */
  #ask() {
    return this.#post('{"batch":[]}');
  }

  /**
   * Try a batch that as such is not taken in halves; an event that alone is not taken becomes a dead letter.
   *
   * @param {Batch} batch
   * @param {Error} err
   */
  #split(batch, err) {
    if (this.#encode) this.#encode = undefined; // somebody between may not bear compressed bodies
    else if (batch.events.length > 1) this.#eventsMax = batch.events.length >> 1;
    else this.#settle(batch, [{ fate: "rejected", code: "event_refused", message: err.message }]);
  }

  /** Send what waits in requests that outlive the page, from memory and in this tick: there is no time to ask before. */
  #leave() {
    for (const session of this.#queue.sessions.values()) {
      if (session.row.last === session.leftThrough || !session.events.size) continue;
      const batch = session.batch(BATCH_EVENTS, Math.min(BATCH_BYTES, KEEPALIVE_BYTES - keepaliveBytes));
      const body = bodyOf(batch);
      const size = bytesOf(body);
      if (keepaliveBytes + size > KEEPALIVE_BYTES) return;
      keepaliveBytes += size;
      session.leftThrough = session.row.last;
      this.#post(body, true)
        .then((document) => this.#settle(batch, judge(batch, document)))
        .catch(() => {}) // the next try tells, of this page or of another
        .finally(() => (keepaliveBytes -= size));
    }
  }

  /**
   * Send a batch, and resolve to the document of the gateway's 200.
   *
   * @param {string} body
   * @param {boolean} [keepalive] whether the page is being left
   */
  async #post(body, keepalive = false) {
    const control = new AbortController();
    const timer = setTimeout(() => control.abort(), this.#options.timeoutMs);
    this.#inFlight.add(control);
    try {
      const send = this.#options.fetch ?? fetch;
      const answer = await send(this.#url, {
        method: "POST",
        body: keepalive || !this.#encode ? body : await this.#encode(body),
        headers: { "Content-Type": "text/plain" }, // and no other header: no preflight, also while the page is left
        credentials: "omit",
        keepalive,
        signal: control.signal,
      });
      const text = await Promise.race([textOf(answer), aborted(control.signal)]);
      const document = verdictOf(answer.status, answer.headers, text);
      this.#queue.learn(answer.headers.get("Gateway-Source"));
      return document;
    } finally {
      clearTimeout(timer);
      this.#inFlight.delete(control);
    }
  }

  /**
   * Return a pause with jitter, longer after each failure, and not shorter than asked for.
   *
   * @param {Error} err
   */
  #pauseAfter(err) {
    this.#failures += 1;
    this.#tell("delivery", err);
    const isRefused = err instanceof DeliveryError && err.kind === "refused";
    const [first, most] = isRefused ? [REFUSED_MS, REFUSED_MAX_MS] : [BACKOFF_MS, BACKOFF_MAX_MS];
    const longest = Math.min(most, first * 2 ** Math.min(this.#failures, 30));
    const asked = err instanceof DeliveryError ? err.retryAfterMs : 0;
    return Math.max(asked, isRefused ? (longest * (1 + Math.random())) / 2 : longest * Math.random());
  }

  /**
   * Say that something is wrong: at once, and again after each hour in which it was.
   *
   * @param {"storage" | "delivery"} what
   * @param {Error | null} err nothing, if it is right again
   */
  #tell(what, err) {
    const now = performance.now(); // the clock may jump
    const { since = Date.now(), toldAt = -Infinity } = this.#troubles.get(what) ?? {};
    if (!err) this.#troubles.delete(what);
    else if (now < toldAt + TELL_MS) this.#troubles.set(what, { err, since, toldAt });
    else {
      this.#troubles.set(what, { err, since, toldAt: now });
      console.warn(`gateway client: trouble with ${what}, trying again:`, err);
      call(this.#options.onProblem, err, new Date(since));
    }
  }

  /** @param {string} signal */
  #wake(signal) {
    this.#signals.add(signal);
    this.#wakeUp();
  }

  /**
   * Wait, or until one of these happens; resolve to which did.
   *
   * @param {number} ms
   * @param {string[]} signals
   */
  async #sleep(ms, signals) {
    const found = () => signals.find((signal) => this.#signals.has(signal));
    const timeout = pause(ms, !this.#queue.waiting);
    const called = new Promise((resolve) => (this.#wakeUp = () => found() && resolve(null)));
    if (!found()) await Promise.race([called, timeout.over]);
    timeout.cancel();
    return found();
  }

  /**
   * @param {any} target which workers, Node and React Native may not have
   * @param {string} name
   * @param {(event: Event) => void} listener
   */
  #listen(target, name, listener) {
    if (typeof target?.addEventListener !== "function") return;
    target.addEventListener(name, listener);
    this.#unlisten.push(() => target.removeEventListener(name, listener));
  }
}

// ---- what is taken, and what is sent

export const VERSION = "1.0.0";

const EVENT_BYTES_MAX = 700_000; // the gateway's own limit is 800 KiB

/** @param {string} url @returns {string} it without slashes at the end */
function baseOf(url) {
  if (!/^https?:\/\/[^\s/?#]+[^\s?#]*$/i.test(url)) throw new TypeError(`no url of a gateway: ${url}`);
  new URL(url);
  return url.replace(/\/+$/, "");
}

/**
 * Return an event as JSON has it, with what it lacks.
 *
 * @param {Record<string, any>} event
 * @returns {Record<string, any>}
 */
function plainOf(event) {
  const plain = JSON.parse(JSON.stringify(event) ?? "null");
  if (!isObject(plain)) throw new TypeError("an event is an object");
  if (plain.sequence != null) throw new TypeError("an event's sequence is given by the client");
  plain.timestamp ??= new Date().toISOString();
  if (plain.context === undefined || isObject(plain.context)) {
    plain.context = { library: { name: "gateway-client.js", version: VERSION }, ...plain.context };
  }
  const size = bytesOf(JSON.stringify(plain));
  if (size > EVENT_BYTES_MAX) throw new RangeError(`an event may have ${EVENT_BYTES_MAX} bytes, and this one has ${size}`);
  return plain;
}

/** @param {Batch} batch */
function bodyOf({ client, session, events, isLast }) {
  const { sequence: firstSequence } = events[0];
  const acknowledgedThrough = firstSequence - 1;
  const sentAt = new Date().toISOString();
  const head = JSON.stringify({ client, session, acknowledgedThrough, firstSequence, sentAt, ...(isLast && { ended: true }) });
  return `${head.slice(0, -1)},"batch":[${events.map(({ content }) => content).join(",")}]}`;
}

/**
 * @param {number} ms
 * @param {boolean} [isIdle] whether a process may end meanwhile
 */
function pause(ms, isIdle = false) {
  /** @type {any} */ let timer;
  const over = new Promise((resolve) => (timer = setTimeout(() => resolve(null), ms)));
  if (isIdle) timer.unref?.(); // Node
  return { over, cancel: () => clearTimeout(timer) };
}

/** @param {AbortSignal} signal @returns {Promise<never>} */
function aborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DeliveryError("no answer in time"))));
}

/**
 * Call the page back; its errors are not this client's.
 *
 * @param {((...told: any[]) => void) | undefined} callback
 * @param {any[]} told
 */
function call(callback, ...told) {
  try {
    callback?.(...told);
  } catch (err) {
    console.error("gateway client: a callback failed:", err);
  }
}

// ---- what an answer says

const ANSWER_BYTES_MAX = 1 << 20;
const RETRY_AFTER_MAX_S = 300;
const SESSION_IS_OVER = new Set(["session_expired", "session_fenced"]);
const ABOUT_THE_BODY =
  /^(invalid_json|body_(too_|not_)\w+|unsupported_encoding|too_many_events|request_too_large|batch_missing)$/;

/**
 * A request decided nothing: what was sent may be stored or not, and waits.
 *
 * `kind` tells what to do: "again" after a pause, "split" the batch, for it is this body that is not taken, the same in
 * "doubt", for somebody between refuses, or wait long, since the gateway has "refused" this client for now.
 */
export class DeliveryError extends Error {
  /**
   * @param {string} message
   * @param {"again" | "split" | "doubt" | "refused"} [kind]
   * @param {string | null} [retryAfter] the header
   */
  constructor(message, kind = "again", retryAfter) {
    super(message);
    this.kind = kind;
    const asked = /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : 0; // a date would need a clock that is right
    this.retryAfterMs = 1_000 * Math.min(asked, RETRY_AFTER_MAX_S);
  }
}

/**
 * Return the document of the gateway's 200. Only what has the gateway's request id is its word: proxies and
 * portals answer, too.
 *
 * @param {number} status
 * @param {{ get(name: string): string | null }} headers
 * @param {string} text
 * @returns {Record<string, unknown>}
 * @throws {DeliveryError} it is another answer
 */
export function verdictOf(status, headers, text) {
  const document = objectIn(text);
  const isGateway = !!headers.get("Gateway-Request-Id") && document !== null;
  if (isGateway && status === 200) return document;
  const told = `${status} ${text.slice(0, 200)}`;
  if (status === 413 || (isGateway && status === 400 && ABOUT_THE_BODY.test(String(document.code)))) {
    throw new DeliveryError(told, "split");
  }
  const isRefused = isGateway && [401, 403].includes(status);
  const isDoubted = status >= 400 && status < 500 && ![408, 429].includes(status);
  const kind = isRefused ? "refused" : isDoubted ? "doubt" : "again";
  throw new DeliveryError(told, kind, headers.get("Retry-After"));
}

/**
 * Return the verdict on each event of a batch. An event that the answer does not name is undecided.
 *
 * @param {Pick<Batch, "events">} batch
 * @param {Record<string, unknown>} document
 * @returns {Verdict[]}
 */
export function judge(batch, document) {
  const stored = new Set(objectsIn(document.receipts).map(({ sequence }) => sequence));
  const rejected = new Map(objectsIn(document.rejected).map((told) => [told.index, told]));
  return batch.events.map(({ sequence }, index) => {
    if (stored.has(sequence)) return { fate: "done" };
    const told = rejected.get(index);
    if (!told || told.retriable || typeof told.code !== "string") return { fate: "again" };
    const { code, message } = told;
    return { fate: SESSION_IS_OVER.has(code) ? "session over" : "rejected", code, message: String(message ?? "") };
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
 *
 * @param {Batch} batch
 * @param {Verdict[]} verdicts
 */
export function settlement(batch, verdicts) {
  const [done, moved, letters] = [/** @type {number[]} */ ([]), /** @type {Queued[]} */ ([]), /** @type {Letter[]} */ ([])];
  let { doubtfulThrough } = batch;
  for (const [index, event] of batch.events.entries()) {
    const { sequence, content, hasId } = event;
    const { fate, code = "", message = "" } = verdicts[index];
    const isOver = fate === "session over";
    if (fate !== "again") done.push(sequence);
    if (isOver && sequence > doubtfulThrough) moved.push(event);
    else if (isOver || fate === "rejected") letters.push(letterOf(batch.session, sequence, content, code, message));
    if (sequence <= batch.sentBefore && (fate === "rejected" || hasId)) doubtfulThrough = batch.sentBefore;
  }
  return { done, moved, letters, doubtfulThrough };
}

/**
 * Return an event that goes on in another session: it stays known by its first place.
 *
 * @param {Queued} event
 * @returns {Record<string, any>}
 */
export function movedOf({ session, sequence, content, hasId }) {
  return { ...JSON.parse(content), ...(!hasId && { messageId: `${session}-${sequence}` }) };
}

/**
 * @param {string} session
 * @param {number} sequence
 * @param {string} content
 * @param {string} code
 * @param {string} message
 * @returns {Letter}
 */
function letterOf(session, sequence, content, code, message) {
  return { session, sequence, code, message, event: JSON.parse(content) };
}

/**
 * Return an answer's text, of which at most ANSWER_BYTES_MAX are read.
 *
 * @param {Response} answer
 * @returns {Promise<string>}
 */
async function textOf(answer) {
  if (!answer.body?.getReader) return answer.text(); // React Native
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let [text, size] = ["", 0];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.length;
    if (size > ANSWER_BYTES_MAX) {
      reader.cancel().catch(() => {});
      throw new DeliveryError(`${answer.status} with an answer that is too long`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

/**
 * @param {string} text
 * @returns {Record<string, unknown> | null}
 */
function objectIn(text) {
  try {
    const document = JSON.parse(text);
    return isObject(document) ? document : null;
  } catch {
    return null;
  }
}

/**
 * @param {unknown} found
 * @returns {Record<string, unknown>[]}
 */
function objectsIn(found) {
  return Array.isArray(found) ? found.filter(isObject) : [];
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, any>}
 */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// ---- the queue: sessions, their locks, what others left

const ADOPT_MS = 3_000; // how often tabs that are gone are looked for
const GO_ON_MS = 60_000;
const DEAD_LETTERS_MAX = 1_000; // older ones are deleted: the gateway has them in its quarantine

/** The sessions that this tab delivers, with a lock each, and the one in which new events are. */
class Queue {
  isOpen = false;
  /** Whether the page is gone, and maybe comes back. */ isLeft = false;
  /** Whether events wait that may be of another source than ours, which the gateway has not told yet. */ needsSource = false;
  /** @type {Map<string, Session>} oldest first */ sessions = new Map();
  /** @type {Session} which new events are in; the page's first moment has one of its own */ own;
  /** @type {Record<string, any>} of this installation: what is remembered */ known;
  /** @type {string | undefined} as the gateway's answers name it; "" if they do not */ #source;
  #told = /** @type {Record<string, any>} */ ({}); // what this page has to be remembered before that was read
  #remembered = 0;
  #adoptAt = 0;
  /** Whether it is known what others left. */ isAllRead = false;
  /** @type {Change[]} of which this page may not see the end */ #noted = [];
  #noteKey;
  #name;
  #isShared;
  #target;

  /**
   * @param {string} name
   * @param {string} target where its events go: url and write key
   * @param {Storage} storage
   * @param {boolean} isShared whether other tabs have it, too
   * @param {(err: Error | null) => void} onError
   */
  constructor(name, target, storage, isShared, onError) {
    this.#name = name;
    this.#isShared = isShared;
    this.#target = target;
    this.keeper = new Keeper(storage, onError);
    this.onError = onError;
    this.known = objectIn(inPage(() => localStorage[name]) ?? "") ?? {};
    this.client = idIn(this.known) ?? randomHex();
    this.own = this.#begin();
    this.#noteKey = `${this.#notesKey}${this.own.row.session}`;
    this.ready = this.#open();
  }

  get waiting() {
    return [...this.sessions.values()].reduce((count, { events }) => count + events.size, 0);
  }

  /**
   * Give an event its place and write it, in this tick.
   *
   * @param {Record<string, any>} event
   * @returns {{ place: Place, written: Promise<unknown> }}
   */
  add(event) {
    const changes = this.own.append(JSON.stringify(event), hasId(event));
    const { session, last: sequence } = this.own.row;
    const isNoted = !this.isOpen || this.isLeft;
    if (isNoted) this.#note(changes);
    return { place: { session, sequence }, written: isNoted ? this.ready : this.keeper.write(changes) };
  }

  /** Delete what waits, in all tabs. */
  async clear() {
    for (const { events } of this.sessions.values()) events.clear();
    for (const key of this.#notes()) inPage(() => localStorage.removeItem(key));
    this.#noted.length = 0;
    const kept = await this.keeper.read("events").catch(() => []);
    const keys = [...kept, ...this.keeper.underWay.flatMap(([kind, key]) => (kind === "events" ? [[key]] : []))];
    if (keys.length) await this.keeper.write(keys.map(([key]) => ["events", /** @type {Key} */ (key), undefined]));
  }

  /**
   * Return a batch of the first session in which events wait.
   *
   * @param {number} eventsMax
   * @param {number} bytesMax at least one event is returned
   * @returns {Batch | undefined}
   */
  nextBatch(eventsMax, bytesMax) {
    for (const session of this.sessions.values()) {
      const isOver = session !== this.own && this.isOpen;
      if (session.events.size) {
        const batch = session.batch(eventsMax, bytesMax);
        batch.isLast &&= isOver && session.isLocked;
        return batch;
      }
      if (isOver) this.#forget(session);
    }
  }

  /**
   * Do what an answer says, and return the new dead letters. What another request has settled stays so.
   *
   * @param {Batch} batch
   * @param {Verdict[]} verdicts
   * @returns {Letter[]}
   */
  settle(batch, verdicts) {
    const session = this.sessions.get(batch.session);
    if (!session) return [];
    const { events, row } = session;
    const { done, moved, letters, doubtfulThrough } = settlement(batch, verdicts);
    const found = letters.filter(({ sequence }) => events.has(sequence));
    const changes = found.map((letter) => /** @type {Change} */ (["deadLetters", letterKey(letter), letter]));
    if (verdicts.some(({ fate }) => fate === "session over")) {
      if (session === this.own) this.own = this.#begin();
      const unsent = [...events.values()].filter(({ sequence }) => sequence > session.sentThrough);
      for (const event of [...moved, ...unsent]) {
        if (!events.has(event.sequence)) continue;
        changes.push(...this.own.append(JSON.stringify(movedOf(event)), true, event.time));
        changes.push(...session.delete(event.sequence));
      }
    }
    for (const sequence of done) changes.push(...session.delete(sequence));
    if (row.doubtfulThrough !== doubtfulThrough) {
      row.doubtfulThrough = doubtfulThrough;
      changes.push(session.kept);
    }
    this.keeper.write(changes);
    if (found.length) this.letters().then((all) => this.deleteLetters(all.slice(0, -DEAD_LETTERS_MAX)));
    return found;
  }

  /** @returns {Promise<[Key, Letter][]>} */
  async letters() {
    const kept = await this.keeper.read("deadLetters").catch(() => []);
    const all = new Map(kept);
    for (const [kind, key, letter] of this.keeper.underWay) if (kind === "deadLetters" && letter) all.set(key, letter);
    return [...all];
  }

  /** @param {[Key, Letter][]} letters */
  deleteLetters(letters) {
    return this.keeper.write(letters.map(([key]) => ["deadLetters", key, undefined]));
  }

  /**
   * Remember something of this installation, here for the first moment of other pages, too.
   *
   * @param {string} key
   * @param {unknown} value
   */
  remember(key, value) {
    const plain = JSON.parse(JSON.stringify(value)); // IndexedDB refuses functions and proxies, and then all of a write
    this.#remembered++;
    this.known[key] = this.#told[key] = plain;
    inPage(() => (localStorage[this.#name] = JSON.stringify(this.known)));
    return this.keeper.write([["installation", key, plain]]);
  }

  // ---- opening, and what others left

  async #open() {
    const first = this.own;
    try {
      await this.#readInstallation();
      await this.#goOn();
    } catch (err) {
      this.onError(asError(err)); // from memory, then
    }
    this.isOpen = true;
    if (this.own === first) this.own = this.#begin(); // what is noted of the first moment may be written once more
    await this.#writeNotes(this.#noteKey, this.#noted);
  }

  /**
   * Note changes at once: IndexedDB is not open yet, or the page is being left and does not see it finish.
   *
   * @param {Change[]} changes
   */
  #note(changes) {
    this.#noted.push(...changes);
    if (this.#noted.length) inPage(() => (localStorage[this.#noteKey] = JSON.stringify(this.#noted)));
  }

  /**
   * @param {string} key
   * @param {Change[]} changes
   */
  async #writeNotes(key, changes) {
    const written = [...changes];
    if (!(await this.keeper.write(written))) return;
    changes.splice(0, written.length); // the page may have been left again meanwhile
    inPage(() => (changes.length ? (localStorage[key] = JSON.stringify(changes)) : localStorage.removeItem(key)));
  }

  /**
   * Go on in the session that the page before left in this tab a moment ago, if all that it numbered is there. A tab
   * that is restored later may be a copy, and another one would give the same numbers.
   */
  async #goOn() {
    const [left, leftAt] = (inPage(() => sessionStorage[this.#tabKey]) ?? "").split("@");
    inPage(() => sessionStorage.removeItem(this.#tabKey));
    if (!(Math.abs(Date.now() - leftAt) < GO_ON_MS)) return;
    const row = (await this.keeper.read("sessions")).find(([, { session, last }]) => `${session} ${last}` === left)?.[1];
    if (row?.client === this.client && this.#isDue(row)) await this.#take(row, true);
  }

  /** Read what is remembered of this installation; write it where it is not there, or not any more. */
  async #readInstallation() {
    const before = this.#remembered;
    const kept = Object.fromEntries(await this.keeper.read("installation"));
    if (!this.isOpen) this.client = idIn(kept) ?? this.client;
    if (before === this.#remembered || !this.isOpen) Object.assign(this.known, kept, this.isOpen ? {} : this.#told);
    if (this.known.source?.target === this.#target) this.#source ??= this.known.source.source;
    if (this.known.client !== this.client) this.remember("client", this.client);
    if (!idIn(kept)) this.keeper.write(Object.entries(this.known).map(([key, value]) => ["installation", key, value]));
  }

  /**
   * Take over sessions of tabs that are gone. Without locks (no https) nobody knows which: those that are there, then.
   *
   * @param {boolean} [isNow]
   */
  async adopt(isNow = false) {
    if (!isNow && performance.now() < this.#adoptAt) return;
    this.#adoptAt = performance.now() + ADOPT_MS;
    if (!(await this.keeper.write([]))) return; // what was delivered may still be there
    await this.#readInstallation();
    if (this.known.user?.isOptedOut) await this.clear(); // in another tab, while this one went on
    if (this.isAllRead && !globalThis.navigator?.locks) return;
    for (const key of this.#notes()) {
      if (key !== this.#noteKey) await this.#writeNotes(key, changesIn(inPage(() => localStorage[key])));
    }
    let needsSource = false;
    for (const [, row] of await this.keeper.read("sessions")) {
      if (this.sessions.has(row.session)) continue;
      if (this.#isDue(row)) await this.#take(row);
      else if (this.#source === undefined) needsSource = true;
      else if (this.needsSource && (await this.keeper.read("events", row.session)).length) this.#tellOfOthers();
    }
    this.isAllRead = !(this.needsSource = needsSource);
  }

  /**
   * Take a session, if its lock is free; to go on in it, only with its lock.
   *
   * @param {Row} row
   * @param {boolean} [isToGoOn]
   */
  async #take(row, isToGoOn = false) {
    const lock = await this.#hold(row.session, { ifAvailable: true });
    if (!lock || (isToGoOn && !lock.isLocked)) return;
    const events = await this.keeper.read("events", row.session);
    const session = this.#add({ ...row, client: row.client ?? this.client }, Promise.resolve(lock), events.map(([, event]) => event));
    if (isToGoOn) this.own = session;
  }

  /** Number events to come in a new session, whose lock is ours as soon as it is asked for. */
  #begin(isLeft = false) {
    const session = ksuid();
    const row = { session, last: 0, doubtfulThrough: 0, client: this.client, source: this.#source || undefined };
    const control = new AbortController();
    const begun = this.#add(row, isLeft ? Promise.resolve(null) : this.#hold(session, { signal: control.signal }));
    const { release } = begun;
    begun.release = () => {
      control.abort(); // it may not be ours yet
      release();
    };
    return begun;
  }

  /**
   * @param {Row} row
   * @param {Promise<Lock | null>} lock
   * @param {Queued[]} [events]
   */
  #add(row, lock, events) {
    const session = new Session(row, events);
    lock.then((held) => (session.isLocked = !!held?.isLocked));
    session.release = () => void lock.then((held) => held?.release());
    this.sessions.set(row.session, session);
    return session;
  }

  /**
   * Hold the lock of a session until it is released, or the tab is gone; resolve to nothing if it is not free.
   *
   * @param {string} session
   * @param {LockOptions} options
   * @returns {Promise<Lock | null>}
   */
  #hold(session, options) {
    return new Promise((resolve) => {
      /** @param {unknown} lock */
      const work = (lock) => lock ? new Promise((release) => resolve({ isLocked: true, release: () => release(0) })) : resolve(null);
      const asked = globalThis.navigator?.locks?.request(`${this.#name} ${session}`, options, work);
      Promise.resolve(asked ?? Promise.reject()).catch(() => resolve({ isLocked: !this.#isShared, release: () => {} }));
    });
  }

  /**
   * Forget a session that has nothing left to deliver.
   *
   * @param {Session} session
   */
  async #forget({ row, release }) {
    this.sessions.delete(row.session);
    const left = await this.keeper.read("events", row.session).catch(() => [0]);
    if (!left.length) await this.keeper.write([["sessions", row.session, undefined]]);
    release();
  }

  /** Let others have what is held: the page is left, or the client closed. What it numbers now is in no session of theirs. */
  release() {
    const { session, last } = this.own.row;
    inPage(() => (sessionStorage[this.#tabKey] = `${session} ${last}@${Date.now()}`));
    for (const { release } of this.sessions.values()) release();
    this.own = this.#begin(true);
    this.isLeft = true;
    this.#note(this.keeper.underWay);
    this.keeper.close(); // else WebKit may have the next page wait
  }

  /** Go on in a page that was left and came back: others may have delivered meanwhile. */
  reopen() {
    this.isLeft = false;
    this.#writeNotes(this.#noteKey, this.#noted);
    if (this.keeper.isDurable) this.sessions.clear();
    this.isAllRead = false;
    this.#adoptAt = 0;
    this.own = this.#begin();
  }

  // ---- the source

  /** Whether to ask for it before anything is sent: an answer may be lost, and the next key be another source's. */
  get mustAsk() {
    return this.#source === undefined && (this.needsSource || this.waiting > 0);
  }

  /**
   * Note which source a 200 of the gateway names, if it does. Sessions of another one are kept, and not sent.
   *
   * @param {string | null} source
   */
  learn(source) {
    const before = this.#source;
    this.#source = source || before || "";
    if (this.#source === before) return;
    this.#adoptAt = 0;
    if (!source) return;
    this.remember("source", { target: this.#target, source });
    for (const session of this.sessions.values()) {
      if (!session.row.source) {
        session.row.source = source;
        this.keeper.write([session.kept]);
      } else if (session.row.source !== source) {
        this.#tellOfOthers();
        this.sessions.delete(session.row.session);
        session.release();
      }
    }
    if (!this.sessions.has(this.own.row.session)) this.own = this.#begin();
  }

  #tellOfOthers() {
    this.onError(new Error("events wait for the write key of another source"));
  }

  /** @param {Row} row */
  #isDue({ source }) {
    return !source || source === this.#source || this.#source === "";
  }

  get #notesKey() {
    return `${this.#name} note `;
  }

  #notes() {
    return (inPage(() => Object.keys(localStorage)) ?? []).filter((key) => key.startsWith(this.#notesKey));
  }

  get #tabKey() {
    return `${this.#name} session`;
  }
}

/** @param {Record<string, unknown>} known @returns {string | undefined} the id of an installation, unless it is damaged */
function idIn({ client }) {
  return typeof client === "string" && /^[!-~]{1,100}$/.test(client) ? client : undefined;
}

/** @param {string | undefined} note @returns {Change[]} what it says, unless it is damaged or not ours */
function changesIn(note) {
  const { noted } = objectIn(`{"noted":${note}}`) ?? {};
  return Array.isArray(noted) ? noted.filter((change) => Array.isArray(change) && KINDS.includes(change[0])) : [];
}

/** @param {Letter} letter in order of time, and behind the numbers of an earlier version */
function letterKey({ session, sequence }) {
  return `${new Date().toISOString()} ${session} ${sequence}`;
}

// ---- a session: the events of a tab

/**
 * A session that this tab has the lock of: its row, and what waits of it. The numbers are given here, in memory,
 * since nobody else gives any.
 */
class Session {
  /** @type {Map<number, Queued>} */ events = new Map();
  /** Sequences up to it may have been sent. */ sentThrough = 0;
  /** Sequences up to it are in requests that outlive the page. */ leftThrough = 0;
  /** Whether other tabs see that it is in use. */ isLocked = false;
  /** @type {() => void} let others have it */ release = () => {};

  /**
   * @param {Row} row
   * @param {Queued[]} [events] that wait; nobody noted how many were sent
   */
  constructor(row, events = []) {
    this.row = row;
    for (const event of events) this.events.set(event.sequence, event);
    row.last = Math.max(row.last, ...this.events.keys());
    if (events.length) this.sentThrough = row.last;
  }

  /**
   * Give an event its place; return what is to be written.
   *
   * @param {string} content
   * @param {boolean} hasId
   * @param {number} [time]
   * @returns {Change[]}
   */
  append(content, hasId, time = Date.now()) {
    const sequence = ++this.row.last;
    const event = { session: this.row.session, sequence, content, hasId, time };
    this.events.set(sequence, event);
    return [this.kept, ["events", [event.session, sequence], event]];
  }

  /**
   * Return what is to be written when an event does not wait any more; nothing if it does not now.
   *
   * @param {number} sequence
   * @returns {Change[]}
   */
  delete(sequence) {
    return this.events.delete(sequence) ? [["events", [this.row.session, sequence], undefined]] : [];
  }

  /** @returns {Change} */
  get kept() {
    return ["sessions", this.row.session, { ...this.row }];
  }

  /**
   * Return the oldest events that wait, and note that they are sent.
   *
   * @param {number} eventsMax
   * @param {number} bytesMax at least one event is returned
   * @returns {Batch}
   */
  batch(eventsMax, bytesMax) {
    const { session, client, doubtfulThrough } = this.row;
    /** @type {Queued[]} */ const events = [];
    let size = 0;
    for (const event of this.events.values()) {
      size += bytesOf(event.content);
      const isNext = event.sequence === events[0]?.sequence + events.length;
      if (events.length && (!isNext || events.length >= eventsMax || size > bytesMax)) break;
      events.push(event);
    }
    const sentBefore = this.sentThrough;
    this.sentThrough = Math.max(sentBefore, events[0]?.sequence + events.length - 1);
    return { session, client, events, sentBefore, doubtfulThrough, isLast: events.length === this.events.size };
  }
}

/** @param {string} text */
function bytesOf(text) {
  return globalThis.TextEncoder ? new TextEncoder().encode(text).length : 3 * text.length; // not in React Native
}

// ---- what is kept

/** @type {Kind[]} */ const KINDS = ["installation", "sessions", "events", "deadLetters"];
const STORAGE_MS = 5_000; // storage that has not answered by then is not waited for
const WRITE_MS = 30_000;
const UNWRITTEN_MIN = 100; // so many changes are tried again with every new one; more of them now and then

/** A queue in IndexedDB. It is opened when it is first used, and again after it was closed or deleted. */
class IndexedDBStorage {
  isDurable = true;
  /** @type {IDBDatabase | null} */ #db = null;
  /** @type {Promise<IDBDatabase> | null} */ #opening = null;
  #name;

  /** @param {string} name */
  constructor(name) {
    this.#name = name;
  }

  /**
   * @param {Kind} kind
   * @param {string} [session]
   * @returns {Promise<[Key, any][]>}
   */
  async read(kind, session) {
    const transaction = (await this.#open()).transaction(kind);
    const store = transaction.objectStore(kind);
    const range = session && IDBKeyRange.bound([session, 0], [session, Infinity]);
    /** @type {Promise<any[]>[]} */ const found = [result(store.getAllKeys(range)), result(store.getAll(range))];
    transaction.commit?.(); // a page that WebKit keeps while it is left would have others wait for its end
    const [keys, values] = await Promise.all(found);
    return keys.map((key, index) => [key, values[index]]);
  }

  /**
   * Write in this very tick if the database is open: a page that is being left has no other.
   *
   * @param {Change[]} changes
   */
  write(changes) {
    return this.#db ? this.#writeTo(this.#db, changes) : this.#open().then((db) => this.#writeTo(db, changes));
  }

  /**
   * @param {IDBDatabase} db
   * @param {Change[]} changes
   */
  async #writeTo(db, changes) {
    const kinds = new Set(changes.map(([kind]) => kind));
    const transaction = db.transaction(kinds, "readwrite", { durability: "strict" }); // less would lose events with the power
    for (const [kind, key, value] of changes) {
      try {
        const store = transaction.objectStore(kind);
        if (value == null) store.delete(key);
        else if (store.keyPath) store.put(value);
        else store.put(value, key);
      } catch (err) {
        if (!/^Data/.test(asError(err).name)) throw err; // else it is no key or no value: what is beside it is written
      }
    }
    transaction.commit?.();
    await end(transaction);
  }

  /** @returns {Promise<IDBDatabase>} */
  #open() {
    if (this.#db) return Promise.resolve(this.#db);
    return (this.#opening ??= this.#opened().finally(() => (this.#opening = null)));
  }

  async #opened() {
    const opening = indexedDB.open(this.#name, 1);
    opening.onupgradeneeded = () => {
      const db = opening.result;
      db.createObjectStore("installation");
      db.createObjectStore("sessions", { keyPath: "session" });
      db.createObjectStore("events", { keyPath: ["session", "sequence"] });
      db.createObjectStore("deadLetters", { autoIncrement: true });
    };
    const db = await result(opening);
    db.onclose = () => (this.#db = null); // the user has deleted it
    db.onversionchange = () => this.close(); // a later version, or the page, wants to
    return (this.#db = db);
  }

  close() {
    this.#db?.close();
    this.#db = null;
  }
}

/** A storage whose failures stop nothing: what it has not taken is kept here, and it is asked again. */
class Keeper {
  /** @type {Map<string, Change>} that failed */ #unwritten = new Map();
  /** @type {Set<Change[]>} */ #underWay = new Set();
  #triedAt = 0;
  #isFailing = false;
  /** Whether it has ever taken anything; else nothing is there to be deleted. */ isInUse = false;
  #storage;
  #onError;

  /**
   * @param {Storage} storage
   * @param {(err: Error | null) => void} onError told each failure, and null when there is none any more
   */
  constructor(storage, onError) {
    this.#storage = storage;
    this.#onError = onError;
  }

  /** Whether all that waits is kept where it survives the page. */
  get isDurable() {
    return this.#storage.isDurable && !this.#isFailing;
  }

  /**
   * @param {Kind} kind
   * @param {string} [session]
   */
  async read(kind, session) {
    try {
      return await within(STORAGE_MS, this.#storage.read(kind, session));
    } catch (err) {
      this.#isFailing = true;
      throw err;
    }
  }

  /**
   * Write, in this tick, also what was not written before. Never rejects; resolves to whether all is written.
   *
   * @param {Change[]} changes
   * @returns {Promise<boolean>}
   */
  async write(changes) {
    if (this.#unwritten.size >= UNWRITTEN_MIN && performance.now() < this.#triedAt + STORAGE_MS) {
      for (const change of changes) this.#keep(change);
      return false;
    }
    for (const change of changes) this.#unwritten.set(nameOf(change), change); // the later one of two counts
    const all = [...this.#unwritten.values()];
    this.#unwritten.clear();
    this.#triedAt = performance.now();
    this.#underWay.add(all);
    try {
      await this.#write(all);
      this.#isFailing &&= !all.length;
      if (all.length) this.#onError(null);
      return true;
    } catch (err) {
      this.#isFailing = true;
      this.#onError(asError(err));
      const deleted = all.filter(([, , value]) => value == null); // which makes room where it is full
      const isRoomMade = deleted.length < all.length && (await this.#write(deleted).then(() => true, () => {}));
      for (const change of all) {
        if (this.#unwritten.has(nameOf(change)) || (isRoomMade && change[2] == null)) continue;
        this.#keep(change);
      }
      return false;
    } finally {
      this.#underWay.delete(all);
    }
  }

  /** What is not written, or not known to be. */
  get underWay() {
    return [...this.#underWay, [...this.#unwritten.values()]].flat();
  }

  close() {
    /** @type {{ close?: () => void }} */ (this.#storage).close?.();
  }

  /** @param {Change[]} changes */
  async #write(changes) {
    if (!changes.length) return;
    await within(WRITE_MS, this.#storage.write(changes));
    this.isInUse = true;
  }

  /** @param {Change} change */
  #keep(change) {
    this.#unwritten.delete(nameOf(change));
    if (change[2] != null || this.isInUse) this.#unwritten.set(nameOf(change), change);
  }
}

/** @param {Change} change */
function nameOf([kind, key]) {
  return `${kind} ${key}`;
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/**
 * @param {IDBTransaction} transaction
 * @returns {Promise<void>}
 */
function end(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the transaction was aborted"));
  });
}

/**
 * @template T
 * @param {number} ms
 * @param {Promise<T>} work
 * @returns {Promise<T>}
 */
function within(ms, work) {
  /** @type {ReturnType<typeof setTimeout>} */ let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`the storage has not answered for ${ms / 1_000} s`)), ms);
  });
  return Promise.race([work, /** @type {Promise<never>} */ (late)]).finally(() => clearTimeout(timer));
}

/** @param {unknown} err */
function asError(err) {
  return err instanceof Error ? err : new Error(String(err));
}

/**
 * Do what only a page can, and not each: workers have no such storage, and frames may be denied it.
 *
 * @template T
 * @param {() => T} work
 * @returns {T | undefined}
 */
function inPage(work) {
  try {
    return work();
  } catch {
    return undefined;
  }
}

// ---- ids

/** Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62. */
export function ksuid() {
  const seconds = Math.max(0, Math.floor(Date.now() / 1_000) - 1_400_000_000) % 2 ** 32;
  let number = BigInt(`0x${seconds.toString(16)}${randomHex()}`);
  let digits = "";
  for (let place = 0; place < 27; place++) {
    const digit = Number(number % 62n);
    digits = String.fromCharCode(digit + (digit < 10 ? 48 : digit < 36 ? 55 : 61)) + digits; // 0-9, A-Z, a-z
    number /= 62n;
  }
  return digits;
}

/** Return 16 random bytes in hex. */
export function randomHex() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Return whether an event has an id of its own: one of white space is none to the gateway.
 *
 * @param {Record<string, any>} event
 */
export function hasId({ messageId }) {
  return messageId != null && !(typeof messageId === "string" && /^[\s\u200b-\u200d\u2060]*$/.test(messageId));
}
