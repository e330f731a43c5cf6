/**
 * What people expect of an analytics SDK, over the client of gateway-client.js: the calls of Segment's specification,
 * the user and consent, the context of a page, hooks, compression. It needs that file beside it, and no other.
 */

import { Client, ksuid } from "./gateway-client.js";

export * from "./gateway-client.js";

const GZIP_BYTES_MIN = 1_000; // less hardly becomes smaller

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
  #isOptedOut;

  /**
   * @param {string} url of the gateway
   * @param {string} writeKey names the source
   * @param {AnalyticsOptions} [options]
   */
  constructor(url, writeKey, options = {}) {
    const { beforeSend, whenFull = "reject", isOptedOut = false, gzip = true, ...rest } = options;
    super(url, writeKey, gzip && globalThis.CompressionStream ? { encode: gzipped, ...rest } : rest);
    this.#beforeSend = beforeSend;
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
    if (this.isUnknown) await this.clientId;
    if (this.isOptedOut) return null;
    const { userId } = this.user;
    const context = typeof event.context === "object" ? event.context : {};
    const full = { ...(userId && { userId }), anonymousId: this.#anonymousId, ...event, context: { ...contextOf(), ...context } };
    const chosen = this.#beforeSend ? this.#beforeSend(full) : full;
    return chosen && this.queue(chosen);
  }

  /** What is remembered of the user. @returns {User} */
  get user() {
    return this.kept.known.user ?? {};
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
    await this.kept.clear();
    await this.kept.ready; // what the page before had left is known then, too
    await this.kept.clear();
    await this.kept.deleteLetters(await this.kept.letters());
  }

  optIn() {
    return this.#set({ isOptedOut: false });
  }

  /** Queue the dead letters again, as new events that are known by their first place, too; resolve to how many. */
  async retryDeadLetters() {
    const letters = await this.kept.letters();
    await this.kept.deleteLetters(letters);
    for (const [, { session, sequence, event }] of letters) await this.queue({ messageId: `${session}-${sequence}`, ...event });
    return letters.length;
  }

  /** @protected */
  makeRoom() {
    if (this.#whenFull === "reject") return super.makeRoom();
    if (this.#whenFull === "newest") return false;
    const oldest = [...this.kept.sessions.values()].find(({ events }) => events.size);
    if (oldest) this.kept.keeper.write(oldest.delete(oldest.events.keys().next().value ?? 0));
    return true;
  }

  get #anonymousId() {
    return this.user.anonymousId ?? this.kept.client;
  }

  /** @param {User} changes */
  #set(changes) {
    return this.kept.remember("user", { ...this.user, ...changes });
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
 * Compress a body, which the gateway knows by its first bytes: a header would cost a preflight.
 *
 * @param {string} body
 * @returns {Promise<BodyInit>}
 */
async function gzipped(body) {
  if (body.length < GZIP_BYTES_MIN) return body;
  const packed = new Blob([body]).stream().pipeThrough(new CompressionStream("gzip"));
  return new Response(packed).arrayBuffer();
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
      await last;
      const keys = (await items.getAllKeys()).filter((key) => key.startsWith(of));
      const found = (await items.multiGet(keys)).map(([key, value]) => {
        /** @type {[any, any]} */ const entry = [JSON.parse(key.slice(name.length + 1))[1], JSON.parse(value ?? "null")];
        return entry;
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
