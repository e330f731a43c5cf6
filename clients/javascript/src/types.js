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
