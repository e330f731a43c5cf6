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
 * @typedef {{ session: string, sequence: number, content: string, hasId: boolean, time?: number,
 *   refusals?: number }} Queued an event that waits; its JSON never changes
 * @typedef {{ session: string, last: number, doubtfulThrough: number, client: string, source?: string }} Row
 *   a session, as it is kept; the first version did not keep `client`
 * @typedef {{ session: string, events: Queued[], sentBefore: number, doubtfulThrough: number, client: string,
 *   source?: string,
 *   last: number, isLast: boolean }} Batch events of a session without a gap, the oldest that wait
 * @typedef {{ fate: "done" | "again" | "rejected" | "session over", code?: string, message?: string }} Verdict
 * @typedef {{ session: string, sequence: number, code: string, message: string, event: Record<string, any> }} Letter
 *   an event that the gateway will not take
 *
 * @typedef {"installation" | "sessions" | "events" | "deadLetters"} Kind
 * @typedef {string | [string, number]} Key
 * @typedef {[kind: Kind, key: Key, value?: any]} Change a value of null or undefined deletes
 * @typedef {object} Storage where the queue is kept; README.md has one for React Native
 * @property {boolean} isDurable
 * @property {() => void} [close] called when the page is left; it may be used again
 * @property {(kind: Kind, session?: string) => Promise<[Key, any][]>} read all of a kind by key; of events those of
 *   a session
 * @property {(changes: Change[]) => Promise<void>} write all of the changes, or none
 * @typedef {{ _isFree: Promise<boolean>, _release: () => void }} Lock
 * @typedef {"storage" | "delivery"} Trouble
 *
 * @typedef {object} Options
 * @property {string} [name] of the database
 * @property {Storage} [storage] instead of IndexedDB
 * @property {number} [queueEventsMax] how many events may wait
 * @property {number} [timeoutMs] for one answer
 * @property {(letter: Letter) => void} [onRejected] called for each new dead letter
 * @property {(err: Error, since: Date) => void} [onProblem] called when something is wrong, and hourly while it is
 * @property {typeof fetch} [fetch]
 */

// ---- what is kept

const KEY_PATHS = { installation: null, sessions: "session", events: ["session", "sequence"], deadLetters: null };
const KINDS = Object.keys(KEY_PATHS);
const STORAGE_MS = 10_000; // storage that has not answered by then is not waited for

/** A storage whose failures stop nothing: what it has not taken is kept here, and it is asked again. */
class Keeper {
  /** @type {Map<string, Change>} not written, or not known to be */ _unwritten = new Map();
  /** @type {boolean | undefined} Whether more is not written than is under way. */ _isBehind;
  /** @type {boolean | undefined} Whether anything is known to be there; else there is nothing to be delivered or deleted. */ _isInUse;
  /** @type {boolean | undefined} Whether what is remembered is read. */ _isOpen;
  /** @type {boolean | undefined} Whether the page is gone, and maybe comes back. */ _isLeft;
  /** @type {string} where it is noted, in localStorage */ _noteKey;

  /** @type {Storage} */ _storage;
  /** @type {Promise<string>} resolves to the client's id when it is open */ _ready;

  /** Whether what waits survives the end of the page; if not, it is in memory. */
  get isDurable() {
    return this._storage.isDurable && !this._isBehind;
  }

  /** Whether there is no time to write, and a note has to do. */
  get _isNoting() {
    return !this._isOpen || this._isLeft;
  }

  /**
   * Be told each failure of the storage, and of nothing when there is none any more.
   *
   * @param {Trouble} what
   * @param {unknown} [err]
   */
  _tell(what, err) {}

  /**
   * Resolve to all of a kind by key, of events to those of a session; to nothing if the storage fails.
   *
   * @param {Kind} kind
   * @param {string} [session]
   * @returns {Promise<[any, any][] | undefined>}
   */
  async _read(kind, session) {
    return this.#asked(() => this._storage.read(kind, session));
  }

  /**
   * Write in this tick: a page that is being left has no other. Never rejects; resolves to whether it is written.
   *
   * @param {Change[]} changes
   * @returns {Promise<boolean | undefined>}
   */
  async _write(changes) {
    for (const change of changes) this._unwritten.set(nameOf(change), change); // the later one of two counts
    if (this._isNoting) {
      this._note();
      await this._ready;
      return false;
    }
    const write = async () => {
      await this._storage.write(changes);
      this.#drop(changes);
      return true;
    };
    const isWritten = !changes.length || (await this.#asked(write)); // no change says nothing of the storage
    if (!this._isInUse) this.#drop(changes.filter(isDeletion));
    return isWritten;
  }

  /** Write what was not written; resolve to whether nothing is left. What is deleted makes room where it is full. */
  async _writeAll() {
    if (!this._isBehind) return true;
    const isKept = await this._write([...this._unwritten.values()].filter((change) => !isDeletion(change)));
    return (await this._write([...this._unwritten.values()].filter(isDeletion))) && isKept;
  }

  /** Note what is not written where the next page finds it: this one may not see the end of it. */
  _note() {
    this._isBehind ||= this._unwritten.size > 0;
    if (this._isBehind) attempt(() => (localStorage[this._noteKey] = JSON.stringify([...this._unwritten.values()])));
  }

  /** @param {Change[]} changes */
  #drop(changes) {
    for (const change of changes) if (this._unwritten.get(nameOf(change)) === change) this._unwritten.delete(nameOf(change));
  }

  /**
   * Resolve to what a storage answers; to nothing, if it does not.
   *
   * @param {() => Promise<any>} work
   * @returns {Promise<any>}
   */
  async #asked(work) {
    try {
      const found = await within(STORAGE_MS, work());
      if (!found) throw new Error("storage_late");
      this._isInUse ||= found.length !== 0;
      if (this._isBehind && !this._unwritten.size) {
        this._isBehind = false;
        this._tell("storage");
        attempt(() => localStorage.removeItem(this._noteKey));
      }
      return found;
    } catch (err) {
      this._isBehind = true;
      this._storage.close?.(); // and opened anew
      this._tell("storage", err);
    }
  }
}

/** @param {Change} change */
function isDeletion([, , value]) {
  return value == null;
}

/** @param {Change} change */
function nameOf([kind, key]) {
  return `${kind} ${key}`;
}

/**
 * Keep a queue in IndexedDB. It is opened when it is first used, and again after it was closed or deleted.
 *
 * @param {string} name
 * @returns {Storage}
 */
function indexedDBStorage(name) {
  /** @type {IDBDatabase | undefined} */ let db;
  /** @type {Promise<IDBDatabase> | undefined} */ let opening;
  const close = () => {
    db?.close();
    db = opening = undefined;
  };
  const open = async () => {
    const request = indexedDB.open(name, 1);
    request.onupgradeneeded = () => {
      for (const [kind, keyPath] of Object.entries(KEY_PATHS)) request.result.createObjectStore(kind, { keyPath });
    };
    /** @type {IDBDatabase} */ const opened = await result(request);
    opened.onclose = opened.onversionchange = close; // the user has deleted it; a later version, or the page, wants to
    return (db = opened);
  };
  return {
    isDurable: true,
    close,
    async read(kind, session) {
      const transaction = (db ?? (await (opening ??= open()))).transaction(kind);
      const store = transaction.objectStore(kind);
      const range = session && IDBKeyRange.bound([session], [session, []]);
      const found = [result(store.getAllKeys(range)), result(store.getAll(range))];
      transaction.commit?.(); // a page that WebKit keeps while it is left would have others wait for its end
      const [keys, values] = await Promise.all(found);
      return keys.map((/** @type {Key} */ key, /** @type {number} */ index) => [key, values[index]]);
    },
    async write(changes) {
      const transaction = (db ?? (await (opening ??= open()))).transaction(KINDS, "readwrite", { durability: "strict" }); // less would lose events with the power
      for (const [kind, key, value] of changes) {
        attempt(() => {
          const store = transaction.objectStore(kind);
          value == null ? store.delete(key) : store.put(value, store.keyPath ? undefined : key);
        }); // what is damaged has no such kind, or is no key
      }
      transaction.commit?.();
      await result(transaction);
    },
  };
}

/**
 * @param {any} request of IndexedDB, or a transaction
 * @returns {Promise<any>} what comes of it
 */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = request.oncomplete = () => resolve(request.result);
    request.onerror = request.onabort = () => reject(request.error ?? new Error("aborted"));
  });
}

// ---- a session: the events of a tab

/**
 * A session that this tab has the lock of: its row, and what waits of it. The numbers are given here, in memory,
 * since nobody else gives any.
 */
class Session {
  /** Sequences up to it are in requests that outlive the page. */ _leftThrough = 0;

  /**
   * @param {Row} row
   * @param {Queued[]} events that wait; nobody noted how many were sent
   * @param {() => void} [release] lets others have it
   */
  constructor(row, events, release) {
    this._row = row;
    this._release = release;
    /** Sequences up to it may have been sent. */ this._sentThrough = events.at(-1)?.sequence ?? 0;
    this._events = new Map(events.map((event) => [event.sequence, event]));
  }

  /**
   * Give an event its place; return what is to be written.
   *
   * @param {string} content
   * @param {boolean} hasId
   * @param {number} [time]
   * @returns {Change[]}
   */
  _append(content, hasId, time = Date.now()) {
    const { session } = this._row;
    const sequence = ++this._row.last;
    const event = { session, sequence, content, hasId, time };
    this._events.set(sequence, event);
    return [this._kept, ["events", [session, sequence], event]];
  }

  /**
   * Return what is to be written when events do not wait any more; nothing of those that do not now.
   *
   * @param {number[]} sequences
   * @returns {Change[]}
   */
  _delete(sequences) {
    return sequences
      .filter((sequence) => this._events.delete(sequence))
      .map((sequence) => ["events", [this._row.session, sequence]]);
  }

  /** @returns {Change} */
  get _kept() {
    return ["sessions", this._row.session, { ...this._row }];
  }

  /**
   * Return the oldest events that wait, and note that they are sent.
   *
   * @param {number} eventsMax
   * @param {number} bytesMax at least one event is returned
   * @returns {Batch}
   */
  _batch(eventsMax, bytesMax) {
    /** @type {Queued[]} */ const events = [];
    const sentBefore = this._sentThrough;
    let next = 0;
    for (const event of this._events.values()) {
      bytesMax -= bytesOf(event.content);
      if (next && (event.sequence !== next || events.length >= eventsMax || bytesMax < 0)) break;
      events.push(event);
      next = event.sequence + 1;
    }
    this._sentThrough = Math.max(sentBefore, next - 1);
    return { ...this._row, events, sentBefore, isLast: events.length === this._events.size };
  }
}

// ---- the queue: sessions, their locks, what others left

const ADOPT_MS = 3_000; // how often tabs that are gone are looked for

/** The sessions that this tab delivers, with a lock each, and the one in which new events are. */
class Queue extends Keeper {
  /** @type {boolean | undefined} Whether sessions wait that may be of another source than ours, which the gateway has not told yet. */ _needsSource;
  /** @type {boolean | undefined} Whether it is known what others left. */ _isAllRead;
  /** @type {Map<string, Session>} */ _sessions = new Map();
  /** @type {string | undefined} as the gateway's answers name it; "" if they do not */ _source;
  _adoptAt = 0;

  /** @type {Record<string, any>} of this installation: what is remembered */ _known;
  /** @type {Session} which new events are in; the page's first moment has one of its own */ _own;
  /** @type {string} */ _client;
  /** @type {string} */ _name;
  /** @type {string} where its events go: url and write key */ _target;

  /** How many events this tab has to deliver. */
  get waiting() {
    let count = 0;
    for (const { _events } of this._sessions.values()) count += _events.size;
    return count;
  }

  /**
   * Give an event its place and write it, in this tick; resolve to it when it is kept.
   *
   * @param {string} content
   * @param {boolean} hasId
   * @returns {Promise<Place>}
   */
  async _add(content, hasId) {
    const written = this._write(this._own._append(content, hasId));
    const { session, last: sequence } = this._own._row;
    await written;
    return { session, sequence };
  }

  /**
   * Return a batch of the first session in which events wait.
   *
   * @param {number} eventsMax
   * @param {number} bytesMax at least one event is returned
   * @returns {Batch | undefined}
   */
  _nextBatch(eventsMax, bytesMax) {
    for (const session of this._sessions.values()) {
      const isOver = session !== this._own && this._isOpen;
      if (session._events.size) {
        const batch = session._batch(eventsMax, bytesMax);
        batch.isLast &&= /** @type {any} */ (isOver);
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
  _settle(batch, verdicts) {
    const session = this._sessions.get(batch.session);
    if (!session) return [];
    const { _events, _row } = session;
    const { done, moved, letters, doubtfulThrough } = settlement(batch, verdicts);
    const found = letters.filter(({ sequence }) => _events.has(sequence));
    /** @type {Change[]} */ const changes = found.map((letter) => ["deadLetters", `${new Date().toJSON()} ${letter.session} ${letter.sequence}`, letter]);
    if (verdicts.some(({ fate }) => fate === "session over")) {
      if (session === this._own) this._own = this._begin();
      for (const event of _events.values()) {
        const isMoved = batch.events.includes(event) ? moved.includes(event) : event.sequence > doubtfulThrough; // behind it nothing is stored
        if (!isMoved) continue;
        changes.push(...this._own._append(JSON.stringify(movedOf(event)), true, event.time));
        done.push(event.sequence);
      }
    }
    _row.doubtfulThrough = doubtfulThrough;
    this._write([...changes, session._kept, ...session._delete(done)]);
    return found;
  }

  /**
   * Remember something of this installation, here for the first moment of other pages, too.
   *
   * @param {string} key
   * @param {any} value
   */
  _remember(key, value) {
    this._known = { ...this._known, [key]: value };
    attempt(() => (localStorage[this._name] = JSON.stringify(this._known)));
    return this._write([["installation", key, value]]);
  }

  // ---- opening, and what others left

  async _open() {
    this._known = objectIn(attempt(() => localStorage[this._name])) ?? {};
    this._client = idIn(this._known) ?? ksuid();
    this._own = this._begin();
    this._noteKey = `${this._name} note ${this._own._row.session}`;
    await this._readInstallation().catch((err) => this._tell("storage", err));
    this._own = this._begin(); // what is noted of the first moment may be written once more
    this._isOpen = true;
    if (!this._isLeft) await this._writeAll();
    return this._client;
  }

  /** Read what is remembered of this installation; write it where it is not there, or not any more. */
  async _readInstallation() {
    const known = this._known;
    const kept = Object.fromEntries((await this._read("installation")) ?? []);
    if (this._isOpen && known !== this._known) return; // something was remembered meanwhile
    if (!this._isOpen) this._client = idIn(kept) ?? this._client;
    const { source } = Object.assign(this._known, kept, { client: this._client });
    if (source?.target === this._target) this._source ??= source.source;
    if (kept.client !== this._client) for (const [key, value] of Object.entries(this._known)) this._remember(key, value);
  }

  /** Take over sessions of tabs that are gone. Without locks (no https) nobody knows which: those that are there, then. */
  async _adopt() {
    this._adoptAt = performance.now() + ADOPT_MS;
    try {
      if (this._isNoting || !(await this._writeAll())) return; // what was delivered may still be there
      await this._readInstallation();
      if (this._isAllRead && !globalThis.navigator?.locks) return;
      for (const key of attempt(() => Object.keys(localStorage)) ?? []) {
        if (!key.startsWith(`${this._name} note `) || key === this._noteKey) continue;
        const changes = attempt(() => JSON.parse(localStorage[key]).filter((/** @type {any} */ [kind]) => kind));
        if (await this._write(changes ?? [])) attempt(() => localStorage.removeItem(key));
      }
      const rows = await this._read("sessions");
      this._needsSource = false;
      for (const [, row] of rows ?? []) {
        if (this._sessions.has(row.session)) continue;
        if (this._isDue(row)) await this._take(row);
        else this._needsSource ||= this._source === undefined;
      }
      this._isAllRead = !!rows && !this._needsSource;
    } catch (err) {
      this._tell("storage", err);
    }
  }

  /** @param {Row} row */
  _isDue({ source }) {
    return !source || source === this._source || this._source === "";
  }

  /**
   * Take a session, if its lock is free, and return it.
   *
   * @param {Row} row
   */
  async _take(row) {
    const lock = hold(`${this._name} ${row.session}`);
    const events = (await lock._isFree) && (await this._read("events", row.session));
    if (!events) return lock._release();
    return this.#add({ client: this._client, .../** @type {any} */ (row) }, lock, events.map(([, event]) => event));
  }

  /** Number events to come in a new session, whose lock is ours as soon as it is asked for. */
  _begin() {
    const session = ksuid();
    const row = { session, last: 0, doubtfulThrough: 0, client: this._client, source: this._source };
    return this.#add(row, /** @type {any} */ (this._isLeft || hold(`${this._name} ${session}`)));
  }

  /**
   * @param {Row} row
   * @param {Lock} [lock]
   * @param {Queued[]} [events]
   */
  #add(row, lock, events = []) {
    const session = new Session(row, events, lock?._release);
    this._sessions.set(row.session, session);
    return session;
  }

  /**
   * Forget a session that has nothing left to deliver.
   *
   * @param {Session} session
   */
  async #forget({ _row: { session }, _release }) {
    this._sessions.delete(session);
    if ((await this._read("events", session))?.length === 0) await this._write([["sessions", session]]);
    _release?.();
  }

  /** Let others have what is held: the page is left, or the client closed. What it numbers now is in no session of theirs. */
  _leave() {
    for (const { _release } of this._sessions.values()) _release?.();
    this._isLeft = true;
    this._own = this._begin();
    this._note();
    this._storage.close?.(); // else WebKit may have the next page wait
  }

  /** Go on in a page that was left and came back. Of what others may have delivered meanwhile the gateway says so. */
  _comeBack() {
    if (!this._isLeft) return;
    this._isLeft = false;
    this._own = this._begin();
  }

  // ---- the source

  /** Whether to ask for it before anything is sent: an answer may be lost, and the next key be another source's. */
  get _mustAsk() {
    return this._source === undefined && (this._needsSource || this.waiting > 0);
  }

  /**
   * Note which source a 200 of the gateway names, if it does. Sessions of another one are kept, and not sent.
   *
   * @param {string | null} source
   */
  _learn(source) {
    const before = this._source;
    if (!source || source === before) return void (this._source ??= "");
    this._source = source;
    this._adoptAt = 0;
    this._remember("source", { target: this._target, source });
    for (const session of this._sessions.values()) {
      session._row.source ||= source;
      if (session._row.source === source) this._write([session._kept]);
      else this._sessions.delete(session._row.session);
    }
    if (before) this._own = this._begin();
  }
}

/**
 * Ask for a lock, to hold it until it is released, or the tab is gone. Where there are no locks all are free.
 *
 * @param {string} name
 * @returns {Lock}
 */
function hold(name) {
  const [released, _release] = deferred();
  const [_isFree, tell] = deferred();
  const ask = async () => navigator.locks.request(name, { ifAvailable: true }, (lock) => (tell(!!lock), lock && released));
  ask().catch(() => tell(true));
  return { _isFree, _release };
}

/** @param {Record<string, any>} known @returns {string | undefined} the id of an installation, unless it is damaged */
function idIn({ client }) {
  return client?.match?.(/^[!-~]{1,100}$/)?.[0];
}

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

// ---- what is taken, and what is sent

export const VERSION = "1.0.0";

const EVENT_BYTES_MAX = 700_000; // the gateway's own limit is 800 KiB

/**
 * Return an event's JSON, with what it lacks, and whether it has an id of its own.
 *
 * @param {Record<string, any>} event
 * @param {string} client whose event it is without a user
 * @returns {[string, boolean]}
 */
function contentOf(event, client) {
  const plain = objectIn(JSON.stringify(event));
  if (!plain || Array.isArray(plain) || plain.sequence != null) throw new TypeError("event_invalid");
  if (!plain.userId) plain.anonymousId ||= client;
  plain.timestamp ??= new Date();
  if (isObject((plain.context ??= {}))) plain.context.library ??= { name: "gateway-client.js", version: VERSION };
  const content = JSON.stringify(plain);
  if (bytesOf(content) > EVENT_BYTES_MAX) throw new RangeError("event_too_large");
  return [content, hasId(plain)];
}

/** @param {Batch} batch */
function bodyOf({ client, session, events, isLast }) {
  const firstSequence = events[0].sequence;
  const acknowledgedThrough = firstSequence - 1;
  const head = JSON.stringify({ client, session, acknowledgedThrough, firstSequence, sentAt: new Date(), ended: isLast || undefined });
  return `${head.slice(0, -1)},"batch":[${events.map(({ content }) => content)}]}`;
}

/** @param {string} text */
function bytesOf(text) {
  return new TextEncoder().encode(text).length;
}

/**
 * Return an answer's text, of which no more than a chunk beyond ANSWER_MAX is read: what is cut is no verdict.
 *
 * @param {Response} answer
 */
async function textOf(answer) {
  const reader = answer.body?.pipeThrough?.(new TextDecoderStream()).getReader();
  if (!reader) return answer.text(); // React Native has no streams
  let text = "";
  /** @type {any} */ let part;
  while (text.length < ANSWER_MAX && !(part = await reader.read()).done) text += part.value;
  return text;
}

/** @returns {[promise: Promise<any>, resolve: (value?: any) => void]} */
function deferred() {
  /** @type {any} */ let resolve;
  return [new Promise((settle) => (resolve = settle)), resolve];
}

/**
 * Resolve to what a work comes to, or after so long to nothing.
 *
 * @template T
 * @param {number} ms
 * @param {Promise<T>} [work]
 * @returns {Promise<T | undefined>}
 */
async function within(ms, work) {
  const [late, end] = deferred();
  const timer = setTimeout(end, ms);
  return Promise.race([work ?? late, late]).finally(() => clearTimeout(timer));
}

/**
 * Return a pause in ms with jitter, longer after each failure, and not shorter than asked for.
 *
 * @param {any} err
 * @param {number} failures
 */
function pauseAfter(err, failures) {
  const longest = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** failures);
  return Math.max(err?.retryAfterMs ?? 0, Math.random() * longest * (err?.kind === "refused" ? REFUSED : 1));
}

/**
 * Say something in the console and call the page back; its errors are not this client's.
 *
 * @param {((...told: any[]) => void) | undefined} callback
 * @param {any[]} told
 */
function tell(callback, ...told) {
  console.warn("gateway:", ...told);
  (async () => callback?.(...told))().catch(console.error);
}

// ---- what an answer says

const RETRY_AFTER_MAX_MS = 300_000;
const ABOUT_THE_BODY = /^(413|400 (invalid_json|body_too|too_many_events|request_too|batch_missing))/;

/**
 * Return the document of the gateway's 200. Only what has the gateway's request id is its word: proxies and
 * portals answer, too.
 *
 * @param {number} status
 * @param {{ get(name: string): string | null }} headers
 * @param {string} text
 * @returns {Record<string, any>}
 * @throws {Error} it is another answer, whose `kind` says what to do: "split" the batch, for it is this body that is not
 *   taken, the same in "doubt", for somebody between refuses; wait long, since the gateway has "refused"; else "again"
 */
export function verdictOf(status, headers, text) {
  const document = objectIn(text);
  const isGateway = document && headers.get("Gateway-Request-Id");
  if (isGateway && status === 200) return document;
  const said = `${status} ${isGateway ? document.code : ""}`;
  const isRefused = /^40[13] ./.test(said);
  const isDoubted = /^4(?!08|29)/.test(said);
  throw Object.assign(new Error(`${status} ${text.slice(0, 200)}`), {
    isGateway, // who is between may say so of all
    kind: ABOUT_THE_BODY.test(said) ? "split" : isRefused ? "refused" : isDoubted ? "doubt" : "again",
    retryAfterMs: Math.min(Number(headers.get("Retry-After")) * 1_000 || 0, RETRY_AFTER_MAX_MS), // a date would need a clock that is right
  });
}

/**
 * Return the verdict on each event of a batch. An event that the answer does not name is undecided.
 *
 * @param {Pick<Batch, "events">} batch
 * @param {Record<string, any>} document
 * @returns {Verdict[]}
 */
export function judge({ events }, { receipts, rejected }) {
  const stored = new Set(objectsIn(receipts).map(({ sequence }) => sequence));
  const refusals = new Map(objectsIn(rejected).map((refusal) => [refusal.index, refusal]));
  return events.map(({ sequence }, index) => {
    const { code, message = "", retriable } = refusals.get(index) ?? {};
    if (stored.has(sequence)) return { fate: "done" };
    if (retriable || typeof code !== "string") return { fate: "again" };
    return { fate: /^session_(expired|fenced)$/.test(code) ? "session over" : "rejected", code, message: `${message}` };
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
export function settlement({ session, events, sentBefore, doubtfulThrough }, verdicts) {
  /** @type {number[]} */ const done = [];
  /** @type {Queued[]} */ const moved = [];
  /** @type {Letter[]} */ const letters = [];
  events.forEach((event, index) => {
    const { sequence, content } = event;
    const { fate, code, message } = /** @type {any} */ (verdicts[index]);
    if (fate !== "again") done.push(sequence);
    if (fate === "session over" && sequence > doubtfulThrough) moved.push(event);
    else if (code) letters.push({ session, sequence, code, message, event: /** @type {any} */ (objectIn(content)) });
    if (sequence <= sentBefore && (fate === "rejected" || event.hasId)) doubtfulThrough = sentBefore;
  });
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

/** @param {any} text @returns {Record<string, any> | undefined} the object that it is the JSON of, if it is one's */
function objectIn(text) {
  const found = attempt(() => JSON.parse(text));
  return isObject(found) ? found : undefined;
}

/** @param {any} found @returns {Record<string, any>[]} */
function objectsIn(found) {
  return attempt(() => found.filter(isObject)) ?? [];
}

/** @param {any} value */
function isObject(value) {
  return Object(value) === value;
}

/**
 * Do what may throw: callbacks, and what only a page can, and not each; workers have no such storage, and frames may
 * be denied it.
 *
 * @param {() => any} work
 * @returns {any}
 */
export function attempt(work) {
  try {
    return work();
  } catch {}
}

// ---- ids

/** Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62. */
export function ksuid() {
  let time = (Math.abs(Date.now() / 1_000 - 1_400_000_000) % 2 ** 32) * 483.0651; // 2 ** 128 / 62 ** 20, to some seconds
  let digits = "";
  for (const byte of crypto.getRandomValues(new Uint8Array(27))) {
    const digit = Math.floor(digits.length < 21 ? byte : (time /= 62)) % 62; // the last ones are those that random ones do not fill
    digits = String.fromCharCode(digit + (digit < 10 ? 48 : digit < 36 ? 55 : 61)) + digits; // 0-9, A-Z, a-z
  }
  return digits;
}

/**
 * Return whether an event has an id of its own: one of white space is none to the gateway.
 *
 * @param {Record<string, any>} event
 * @returns {boolean}
 */
export function hasId({ messageId }) {
  return (messageId?.replace?.(/[\s\u200b-\u200d\u2060]/g, "") ?? messageId ?? "") !== "";
}
