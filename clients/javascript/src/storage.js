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
