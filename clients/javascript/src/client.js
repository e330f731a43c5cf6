// ---- the client

const BATCH_EVENTS = 100;
const BATCH_BYTES = 60_000; // of all requests that outlive a page together, fetch takes 64 KiB

export const QUEUE_EVENTS = 10_000;
const ANSWER_MAX = 1_000_000; // what is longer is cut, and so no JSON
const TIMEOUT_MS = 15_000;
const LINGER_MS = 200; // how long a batch waits for more events, unless the page is left
const BACKOFF_MS = 500;
const BACKOFF_MAX_MS = 60_000;
const REFUSED = 10; // times as long: a key that is being rotated is right again soon, one that is wrong is not
const REFUSALS_MAX = 3;
const TELL_MS = 3_600_000;
const POLL_MS = 20; // of what waits, by flush
const POLLS_OF_A_TRY = 50; // so often does flush try at least

const EVENT = 1; // what ends a pause
const URGENT = 2;
const END = 3;

/** So many events wait already that no more are taken. */
export class QueueFullError extends Error {}

/** Queues events, and delivers each once. */
export class Client extends Queue {
  /** @type {Options} */ #options;
  #loop;
  #eventsMax = BATCH_EVENTS; // less for a while after a batch that was too much for somebody
  #failures = 0;
  #end = new AbortController();
  #signal = this.#end.signal;
  /** @type {{ [what in Trouble]?: { since: Date, toldAt: number } }} */ #troubles = {};
  #urgency = 0; // of what has happened since the queue was last looked at
  /** @type {() => any} */ #wakeUp = () => {};

  /**
   * @param {string} url of the gateway
   * @param {string} writeKey names the source
   * @param {Options} [options]
   * @throws {TypeError} the url is none, or the key is missing
   */
  constructor(url, writeKey, options = {}) {
    if (!/^https?:[^\s?#]+$/i.test(new URL(url) && url) || !writeKey) throw new TypeError("url_or_key_invalid");
    super();
    this.#options = options;
    this._target = `${url.replace(/\/+$/, "")}/v1/events?writeKey=${encodeURIComponent(writeKey)}`;
    this._name = options.name ?? "gateway";
    this._storage = options.storage ?? indexedDBStorage(this._name);
    const hurry = () => this.#wake(URGENT);
    const listeners = {
      online: hurry,
      pagehide: () => (this.#send(), this._leave()),
      pageshow: () => (this._comeBack(), hurry()),
      visibilitychange: () => document.hidden && this.#send(),
    };
    for (const [name, listener] of Object.entries(listeners))
      globalThis.addEventListener?.(name, listener, { signal: this.#signal }); // React Native has none
    this._ready = this._open();
    this.#loop = this.#run();
  }

  /** Resolves to the id of this installation. */
  get clientId() {
    return this._ready;
  }

  /**
   * Queue an action of a user, now; without an id it is this installation's. See send.
   *
   * @param {string} event
   * @param {Record<string, unknown>} [properties]
   * @param {{ userId?: string, anonymousId?: string }} [who] without one it is this installation
   */
  async track(event, properties = {}, who) {
    return this.send({ type: "track", event, properties, ...who });
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
    if (!this._isOpen && !globalThis.document) await this._ready; // there is time: this is no page that may be left
    const content = contentOf(event, this._client);
    if (this.waiting >= (this.#options.queueEventsMax ?? QUEUE_EVENTS)) throw new QueueFullError("queue_full");
    const kept = this._add(...content);
    this.#wake(EVENT);
    if (this._isLeft) queueMicrotask(() => this.#send());
    return kept;
  }

  /**
   * Resolve to whether all that this tab is to deliver was, or became a dead letter, within the time. What waits for
   * the key of another source is not.
   */
  async flush(timeoutMs = 10_000) {
    const end = performance.now() + timeoutMs;
    await within(timeoutMs, this._ready);
    this._adoptAt = 0;
    this._isAllRead = false; // until it is looked again
    const isLeft = () => this.waiting > 0 || (this._isInUse && !this._isAllRead);
    for (let polls = 0; isLeft() && !this.#signal.aborted; await within(POLL_MS)) {
      if (!(polls++ % POLLS_OF_A_TRY)) this.#wake(URGENT);
      if (performance.now() > end) break;
    }
    return !isLeft();
  }

  /** Deliver for so long, then send nothing any more. What is left waits for the next tab. */
  async close(timeoutMs = 0) {
    if (timeoutMs > 0) await this.flush(timeoutMs);
    this.#end.abort();
    this.#wake(END);
    await this.#loop;
    this._leave();
  }

  // ---- delivery

  async #run() {
    await this._ready;
    while (!this.#signal.aborted) {
      this.#urgency = 0;
      try {
        const hasSent = await this.#deliver();
        if (hasSent) {
          this.#failures = 0;
          this._tell("delivery");
        } else {
          await this.#sleep(ADOPT_MS, EVENT);
          await this.#sleep(LINGER_MS, URGENT);
        }
      } catch (/** @type {any} */ err) {
        if (this.#signal.aborted) return;
        this._tell("delivery", err ?? "failed");
        await this.#sleep(pauseAfter(err, ++this.#failures), err?.isGateway && err.retryAfterMs ? END : URGENT);
      }
    }
  }

  /** Send one batch once, or ask for the source before the first; resolve to something true if there was any to send. */
  async #deliver() {
    if (performance.now() >= this._adoptAt) await this._adopt();
    if (this._mustAsk) return this.#ask();
    const batch = this._nextBatch(this.#eventsMax, BATCH_BYTES);
    if (!batch) return false;
    /** @type {Record<string, any>} */ let document;
    try {
      document = await this.#post(bodyOf(batch));
    } catch (/** @type {any} */ err) {
      const half = batch.events.length >> 1;
      const [event] = batch.events;
      if (!/again|refused/.test(err.kind)) {
        this.#eventsMax = half || 1; // its size may be the reason
        if (!half && !(err.isGateway && err.kind === "split")) {
          await this.#ask(); // who refuses all says nothing of this one
          err.kind = (event.refusals = (event.refusals ?? 0) + 1) < REFUSALS_MAX ? "doubt" : "split";
        }
      }
      if (err.kind !== "split") throw err;
      if (half) return true;
      document = { rejected: [{ index: 0, code: "event_refused", message: err.message }] };
    }
    this.#settle(batch, document);
    return true;
  }

  /**
   * @param {Batch} batch
   * @param {Record<string, any>} document the answer
   */
  #settle(batch, document) {
    const verdicts = judge(batch, document);
    for (const letter of this._settle(batch, verdicts)) tell(this.#options.onRejected, letter);
    if (verdicts.some(({ fate }) => fate === "again")) throw new Error("not_taken");
    this.#eventsMax = Math.min(BATCH_EVENTS, this.#eventsMax + 1 + (this.#eventsMax >> 2));
  }

  /** Send no event, to learn whether it is the gateway that answers, and for which source. */
  #ask() {
    return this.#post('{"batch":[]}');
  }

  /** Send what waits in requests that outlive the page, from memory and in this tick: there is no time to ask before. */
  #send() {
    for (const session of this._sessions.values()) {
      if (session._row.last === session._leftThrough || !session._events.size) continue;
      session._leftThrough = session._row.last;
      const batch = session._batch(BATCH_EVENTS, BATCH_BYTES);
      const posted = this.#post(bodyOf(batch), true);
      posted.then((document) => this.#settle(batch, document)).catch(() => {}); // the next try tells, of this page or of another
    }
  }

  /**
   * Send a batch, and resolve to the document of the gateway's 200.
   *
   * @param {string} body
   * @param {boolean} [keepalive] whether the page is being left
   */
  async #post(body, keepalive) {
    const control = new AbortController();
    const stop = () => control.abort();
    const { signal } = control;
    const timer = setTimeout(stop, this.#options.timeoutMs ?? TIMEOUT_MS);
    this.#signal.addEventListener("abort", stop, { signal });
    try {
      const answer = await (this.#options.fetch ?? fetch)(this._target, {
        method: "POST",
        body, // a text, and no header: no preflight, also while the page is left
        keepalive,
        signal,
      });
      const document = verdictOf(answer.status, answer.headers, await textOf(answer));
      this._learn(answer.headers.get("Gateway-Source"));
      return document;
    } finally {
      clearTimeout(timer);
      stop();
    }
  }

  /**
   * Say that something is wrong: at once, and again after each hour in which it was.
   *
   * @param {Trouble} what
   * @param {any} [told] nothing, if it is right again
   */
  _tell(what, told) {
    if (!told) {
      delete this.#troubles[what];
      return;
    }
    const now = performance.now(); // the clock may jump
    const trouble = (this.#troubles[what] ??= { since: new Date(), toldAt: -Infinity });
    if (now < trouble.toldAt + TELL_MS) return;
    trouble.toldAt = now;
    tell(this.#options.onProblem, told instanceof Error ? told : new Error(told), trouble.since);
  }

  /** @param {number} urgency */
  #wake(urgency) {
    this.#urgency = Math.max(this.#urgency, urgency);
    this.#wakeUp();
  }

  /**
   * Wait, or until something as urgent happens.
   *
   * @param {number} ms
   * @param {number} urgency
   */
  async #sleep(ms, urgency) {
    const [called, call] = deferred();
    this.#wakeUp = () => this.#urgency >= urgency && call();
    this.#wakeUp();
    await within(ms, called);
  }
}
