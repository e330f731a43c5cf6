/**
 * What people expect of an analytics SDK, over the client of gateway-client.js: the calls of Segment's specification,
 * the user and consent, the context of a page, hooks, compression. It needs that file beside it, and no other.
 */

import { attempt, Client, hasId, ksuid, QUEUE_EVENTS } from "./gateway-client.js";

export * from "./gateway-client.js";

const GZIP_BYTES_MIN = 1_000; // less hardly becomes smaller
const GO_ON_MS = 60_000;
const DEAD_LETTERS_MAX = 1_000; // older ones are deleted: the gateway has them in its quarantine

/**
 * @typedef {Record<string, any>} Fields
 * @typedef {import("./gateway-client.js").Options & {
 *   beforeSend?: (event: Fields) => Fields | null,
 *   whenFull?: "reject" | "oldest" | "newest",
 *   isOptedOut?: boolean,
 *   gzip?: boolean,
 * }} AnalyticsOptions `beforeSend` is called with each event before it is queued, and returns it, another one, or null to
 *   drop it; `whenFull` says which event is dropped in a full queue, else the call throws; `isOptedOut`: until `optIn`
 *   is called; `gzip`: false for never
 * @typedef {{ anonymousId?: string, userId?: string, groupId?: string, traits?: Fields, isOptedOut?: boolean }} User
 */

/** A client that knows its user. Each call queues an event, and resolves to its place; null if it was dropped. */
export class Analytics extends Client {
  #beforeSend;
  #whenFull;
  #eventsMax;
  #isOptedOut;
  /** @type {{ [what: string]: Error | undefined }} */ #errors = {};
  /** @type {User | undefined} what this page has to be remembered before that was read */ #told;

  /**
   * @param {string} url of the gateway
   * @param {string} writeKey names the source
   * @param {AnalyticsOptions} [options]
   */
  constructor(url, writeKey, options = {}) {
    const { beforeSend, whenFull = "reject", isOptedOut = false, gzip = true, ...rest } = options;
    super(url, writeKey, { ...rest, fetch: packingFetch(rest.fetch, gzip && !!globalThis.CompressionStream) });
    this.#beforeSend = beforeSend;
    this.#eventsMax = rest.queueEventsMax ?? QUEUE_EVENTS;
    this.#whenFull = whenFull;
    this.#isOptedOut = isOptedOut;
  }

  /**
   * @param {string} event
   * @param {Fields} [properties]
   * @param {Fields} [fields] of the event beside: userId, context, ...
   */
  async track(event, properties = {}, fields = {}) {
    return this.send({ type: "track", event, properties, ...fields });
  }

  /**
   * @param {string} [name]
   * @param {Fields} [properties]
   * @param {Fields} [fields]
   */
  async page(name, properties = {}, fields = {}) {
    return this.send({ type: "page", name, properties: { ...pageOf(), ...properties }, ...fields });
  }

  /**
   * @param {string} name
   * @param {Fields} [properties]
   * @param {Fields} [fields]
   */
  async screen(name, properties = {}, fields = {}) {
    return this.send({ type: "screen", name, properties, ...fields });
  }

  /**
   * Say who the user is; it is remembered over visits.
   *
   * @param {string} userId
   * @param {Fields} [traits]
   * @param {Fields} [fields]
   */
  async identify(userId, traits = {}, fields = {}) {
    const known = this.user.userId === userId ? this.user.traits : {};
    this.#set({ userId, traits: { ...known, ...traits } });
    return this.send({ type: "identify", traits: this.user.traits, ...fields });
  }

  /**
   * @param {string} groupId
   * @param {Fields} [traits]
   * @param {Fields} [fields]
   */
  async group(groupId, traits = {}, fields = {}) {
    this.#set({ groupId });
    return this.send({ type: "group", groupId, traits, ...fields });
  }

  /**
   * @param {string} userId
   * @param {string} [previousId]
   * @param {Fields} [fields]
   */
  async alias(userId, previousId = this.user.userId ?? this.#anonymousId, fields = {}) {
    this.#set({ userId });
    return this.send({ type: "alias", previousId, ...fields });
  }

  /** @param {Fields} event of any type; ids of the user and the context of the page are added where it has none */
  async send(event) {
    if (!this._isOpen && !globalThis.document) await this._ready;
    if (this.isOptedOut) return null;
    const { userId } = this.user;
    const context = typeof event.context === "object" ? event.context : {};
    const full = { ...(userId && { userId }), anonymousId: this.#anonymousId, ...event, context: { ...contextOf(), ...context } };
    const chosen = this.#beforeSend ? this.#beforeSend(full) : full;
    return chosen && this.#hasRoom() ? super.send(chosen) : null;
  }

  /** What is remembered of the user. @returns {User} */
  get user() {
    return this._known.user ?? {};
  }

  /** Forget the user, at a log-out: the next one is another. */
  reset() {
    return this.#set({ userId: undefined, groupId: undefined, traits: {}, anonymousId: ksuid() });
  }

  get isOptedOut() {
    return this.user.isOptedOut ?? this.#isOptedOut;
  }

  /** Take no events from now on, and delete those that wait. */
  async optOut() {
    this.#set({ isOptedOut: true });
    await this.#clear();
    await this._ready; // what the page before had left is known then, too
    await this.#clear();
    await this.#deleteLetters(await this.#letters());
  }

  optIn() {
    return this.#set({ isOptedOut: false });
  }

  /** What is wrong: why nothing is delivered, or why it is not kept. Null if nothing is. */
  get lastError() {
    return this.#errors.delivery ?? this.#errors.storage ?? null;
  }

  /** When the oldest event was queued that waits; null without any. */
  get oldest() {
    const times = [...this._sessions.values()].flatMap(({ _events }) => [..._events.values()][0]?.time ?? []);
    return times.length ? new Date(Math.min(...times)) : null;
  }

  /** Resolve to the newest events that the gateway would not take: {session, sequence, code, message, event}. */
  async deadLetters() {
    await this._ready;
    return (await this.#letters()).map(([, letter]) => letter);
  }

  /** Queue the dead letters again, as new events that are known by their first place, too; resolve to how many. */
  async retryDeadLetters() {
    const letters = (await this.#letters()).filter(([, { event }]) => event);
    for (const letter of letters) {
      const [, { session, sequence, event }] = letter;
      await super.send(hasId(event) ? event : { ...event, messageId: `${session}-${sequence}` });
      await this.#deleteLetters([letter]); // afterwards: one that is in both is known by its id
    }
    return letters.length;
  }

  /** Return whether there is room for an event now; where the call is to throw, it does so itself. */
  #hasRoom() {
    if (this.waiting < this.#eventsMax || this.#whenFull === "reject") return true;
    if (this.#whenFull === "newest") return false;
    const oldest = [...this._sessions.values()].find(({ _events }) => _events.size);
    if (oldest) this._write(oldest._delete([oldest._events.keys().next().value ?? 0]));
    return true;
  }

  get #anonymousId() {
    return this.user.anonymousId ?? this._client;
  }

  /** @param {User} changes */
  #set(changes) {
    const user = JSON.parse(JSON.stringify({ ...this.user, ...changes })); // IndexedDB refuses functions and proxies
    if (!this._isOpen) this.#told = user;
    return this._remember("user", user);
  }

  // ---- the queue: an opt-out, a tab's session, dead letters, other sources

  /** Delete what waits, in all tabs. */
  async #clear() {
    for (const { _events } of this._sessions.values()) _events.clear();
    for (const key of attempt(() => Object.keys(localStorage)) ?? []) {
      if (key.startsWith(`${this._name} note `)) attempt(() => localStorage.removeItem(key));
    }
    const kept = (await this._read("events")) ?? [];
    const keys = new Set(kept.map(([key]) => key));
    for (const [kind, key] of this._unwritten.values()) if (kind === "events") keys.add(key);
    await this._write([...keys].map((key) => ["events", key]));
  }

  async _readInstallation() {
    await super._readInstallation();
    if (!this._isOpen) {
      if (this.#told) this._remember("user", this.#told);
      await this.#goOn();
    } else if (this.user.isOptedOut) await this.#clear(); // in another tab, while this one went on
  }

  get #tabKey() {
    return `${this._name} session`;
  }

  /**
   * Go on in the session that the page before left in this tab a moment ago, if all that it numbered is there. A tab
   * that is restored later may be a copy, and another one would give the same numbers.
   */
  async #goOn() {
    const [left, leftAt] = (attempt(() => sessionStorage[this.#tabKey]) ?? "").split("@");
    attempt(() => sessionStorage.removeItem(this.#tabKey));
    if (!globalThis.navigator?.locks || !(Math.abs(Date.now() - leftAt) < GO_ON_MS)) return;
    const rows = (await this._read("sessions")) ?? [];
    const row = rows.find(([, { session, last }]) => `${session} ${last}` === left)?.[1];
    if (row?.client === this._client && this._isDue(row)) this._goingOn = await this._take(row);
  }

  _begin() {
    /** @type {ReturnType<Client["_begin"]> | void} */ const goingOn = this._goingOn;
    this._goingOn = undefined;
    return goingOn ?? super._begin();
  }

  _leave() {
    const { session, last } = this._own._row;
    attempt(() => (sessionStorage[this.#tabKey] = `${session} ${last}@${Date.now()}`));
    super._leave();
  }

  /** @param {Parameters<Client["_settle"]>} told */
  _settle(...told) {
    const found = super._settle(...told);
    /** @param {[string, import("./gateway-client.js").Letter]} entry */
    const isElsewhere = ([, { code }]) => code !== "event_refused";
    if (found.length) this.#letters().then((all) => this.#deleteLetters(all.slice(0, -DEAD_LETTERS_MAX).filter(isElsewhere)));
    return found;
  }

  /** @returns {Promise<[string, import("./gateway-client.js").Letter][]>} */
  async #letters() {
    const all = new Map(await this._read("deadLetters"));
    for (const [kind, key, letter] of this._unwritten.values()) if (kind === "deadLetters") all.set(key, letter);
    return [...all].filter(([, letter]) => letter);
  }

  /** @param {[string, unknown][]} letters */
  #deleteLetters(letters) {
    return this._write(letters.map(([key]) => ["deadLetters", key]));
  }

  /** @param {Parameters<Client["_tell"]>} told */
  _tell(...told) {
    const [what, err] = told;
    this.#errors[what] = err && !(err instanceof Error) ? new Error(err) : err;
    super._tell(...told);
  }

  /** @param {Parameters<Client["_isDue"]>[0]} row */
  _isDue(row) {
    const isDue = super._isDue(row);
    if (!isDue && this._source) this.#tellOf(row.session);
    return isDue;
  }

  /** @param {string} session of another source */
  async #tellOf(session) {
    const events = await this._read("events", session);
    if (events?.length) this._tell("storage", new Error("events wait for the write key of another source"));
  }
}

function contextOf() {
  const { language: locale, userAgent } = globalThis.navigator ?? {};
  return { ...(locale && { locale }), ...(userAgent && { userAgent }), ...(globalThis.document && { page: pageOf() }) };
}

function pageOf() {
  const { document, location } = globalThis;
  if (!document || !location) return {};
  const { pathname: path, search, href: url } = location;
  return { path, search, url, referrer: document.referrer, title: document.title };
}

/**
 * Fetch with compressed bodies, until somebody does not bear them.
 *
 * @param {typeof fetch | undefined} send
 * @param {boolean} isPacking
 * @returns {(url: any, init: any) => Promise<Response>}
 */
function packingFetch(send, isPacking) {
  return async (url, init) => {
    init = { credentials: "omit", ...init };
    const isPacked = isPacking && !init.keepalive && init.body.length >= GZIP_BYTES_MIN;
    const plainly = () => (send ?? fetch)(url, init); // in this tick, if the page is being left
    let answer = await (isPacked ? (send ?? fetch)(url, await packed(init)) : plainly());
    if (isPacked && /^4(?!0[138]|29)/.test(`${answer.status}`)) {
      isPacking = false;
      answer = await plainly();
    }
    return answer;
  };
}

/**
 * Compress a body, which the gateway knows by its first bytes: a header would cost a preflight.
 *
 * @param {RequestInit & { body: string }} init
 */
async function packed(init) {
  const body = new Blob([init.body]).stream().pipeThrough(new CompressionStream("gzip"));
  return { ...init, headers: { "Content-Type": "text/plain" }, body: await new Response(body).arrayBuffer() };
}

/**
 * Keep a queue in React Native's AsyncStorage, or what else has these four methods.
 *
 * @param {{ getAllKeys(): Promise<readonly string[]>, multiGet(keys: string[]): Promise<readonly (readonly [string, string | null])[]>,
 *   multiSet(pairs: [string, string][]): Promise<void>, multiRemove(keys: string[]): Promise<void> }} items
 * @param {string} [name]
 * @returns {import("./gateway-client.js").Storage}
 */
export function itemStorage(items, name = "gateway") {
  /** @param {string} kind @param {unknown} key */
  const nameOf = (kind, key) => `${name}/${JSON.stringify([kind, key])}`;
  let last = Promise.resolve();
  return {
    isDurable: true,
    async read(kind, session) {
      const of = nameOf(kind, session === undefined ? "" : [session, 0]).replace(session === undefined ? /""]$/ : /0]]$/, "");
      const reading = last.then(async () => items.multiGet((await items.getAllKeys()).filter((key) => key.startsWith(of))));
      last = reading.then(() => {}, () => {}); // what is written meanwhile is not in it
      /** @type {[any, any][]} */ const found = (await reading).flatMap(([key, value]) => {
        const entry = attempt(() => [JSON.parse(key.slice(name.length + 1))[1], JSON.parse(value ?? "")]);
        return entry ? [entry] : []; // what is damaged stays where it is
      });
      return found.sort(([a], [b]) => (Array.isArray(a) ? a[1] - b[1] : a < b ? -1 : 1));
    },
    write(changes) {
      /** @type {[string, string][]} */
      const set = changes.flatMap(([kind, key, value]) => (value == null ? [] : [[nameOf(kind, key), JSON.stringify(value)]]));
      const removed = changes.flatMap(([kind, key, value]) => (value == null ? [nameOf(kind, key)] : []));
      const written = last.then(async () => {
        if (set.length) await items.multiSet(set); // before: an event that moves is twice there rather than lost
        if (removed.length) await items.multiRemove(removed);
      });
      last = written.catch(() => {});
      return written;
    },
  };
}
