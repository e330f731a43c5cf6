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
