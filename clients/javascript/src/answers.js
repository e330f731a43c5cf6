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
