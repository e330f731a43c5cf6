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
