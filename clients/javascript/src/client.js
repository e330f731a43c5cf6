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
