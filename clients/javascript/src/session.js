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
