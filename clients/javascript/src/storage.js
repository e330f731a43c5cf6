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
