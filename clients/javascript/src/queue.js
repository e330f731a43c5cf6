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
