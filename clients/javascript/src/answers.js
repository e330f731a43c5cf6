// ---- what an answer says

const ANSWER_BYTES_MAX = 1 << 20;
const RETRY_AFTER_MAX_S = 300;
const SESSION_IS_OVER = new Set(["session_expired", "session_fenced"]);
const ABOUT_THE_BODY =
  /^(invalid_json|body_(too_|not_)\w+|unsupported_encoding|too_many_events|request_too_large|batch_missing)$/;

/**
 * A request decided nothing: what was sent may be stored or not, and waits.
 *
 * `kind` tells what to do: "again" after a pause, "split" the batch, for it is this body that is not taken, the same in
 * "doubt", for somebody between refuses, or wait long, since the gateway has "refused" this client for now.
 */
export class DeliveryError extends Error {
  /**
   * @param {string} message
   * @param {"again" | "split" | "doubt" | "refused"} [kind]
   * @param {string | null} [retryAfter] the header
   */
  constructor(message, kind = "again", retryAfter) {
    super(message);
    this.kind = kind;
    const asked = /^\d+$/.test(retryAfter ?? "") ? Number(retryAfter) : 0; // a date would need a clock that is right
    this.retryAfterMs = 1_000 * Math.min(asked, RETRY_AFTER_MAX_S);
  }
}

/**
 * Return the document of the gateway's 200. Only what has the gateway's request id is its word: proxies and
 * portals answer, too.
 *
 * @param {number} status
 * @param {{ get(name: string): string | null }} headers
 * @param {string} text
 * @returns {Record<string, unknown>}
 * @throws {DeliveryError} it is another answer
 */
export function verdictOf(status, headers, text) {
  const document = objectIn(text);
  const isGateway = !!headers.get("Gateway-Request-Id") && document !== null;
  if (isGateway && status === 200) return document;
  const told = `${status} ${text.slice(0, 200)}`;
  if (status === 413 || (isGateway && status === 400 && ABOUT_THE_BODY.test(String(document.code)))) {
    throw new DeliveryError(told, "split");
  }
  const isRefused = isGateway && [401, 403].includes(status);
  const isDoubted = status >= 400 && status < 500 && ![408, 429].includes(status);
  const kind = isRefused ? "refused" : isDoubted ? "doubt" : "again";
  throw new DeliveryError(told, kind, headers.get("Retry-After"));
}

/**
 * Return the verdict on each event of a batch. An event that the answer does not name is undecided.
 *
 * @param {Pick<Batch, "events">} batch
 * @param {Record<string, unknown>} document
 * @returns {Verdict[]}
 */
export function judge(batch, document) {
  const stored = new Set(objectsIn(document.receipts).map(({ sequence }) => sequence));
  const rejected = new Map(objectsIn(document.rejected).map((told) => [told.index, told]));
  return batch.events.map(({ sequence }, index) => {
    if (stored.has(sequence)) return { fate: "done" };
    const told = rejected.get(index);
    if (!told || told.retriable || typeof told.code !== "string") return { fate: "again" };
    const { code, message } = told;
    return { fate: SESSION_IS_OVER.has(code) ? "session over" : "rejected", code, message: String(message ?? "") };
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
export function settlement(batch, verdicts) {
  const [done, moved, letters] = [/** @type {number[]} */ ([]), /** @type {Queued[]} */ ([]), /** @type {Letter[]} */ ([])];
  let { doubtfulThrough } = batch;
  for (const [index, event] of batch.events.entries()) {
    const { sequence, content, hasId } = event;
    const { fate, code = "", message = "" } = verdicts[index];
    const isOver = fate === "session over";
    if (fate !== "again") done.push(sequence);
    if (isOver && sequence > doubtfulThrough) moved.push(event);
    else if (isOver || fate === "rejected") letters.push(letterOf(batch.session, sequence, content, code, message));
    if (sequence <= batch.sentBefore && (fate === "rejected" || hasId)) doubtfulThrough = batch.sentBefore;
  }
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

/**
 * @param {string} session
 * @param {number} sequence
 * @param {string} content
 * @param {string} code
 * @param {string} message
 * @returns {Letter}
 */
function letterOf(session, sequence, content, code, message) {
  return { session, sequence, code, message, event: JSON.parse(content) };
}

/**
 * Return an answer's text, of which at most ANSWER_BYTES_MAX are read.
 *
 * @param {Response} answer
 * @returns {Promise<string>}
 */
async function textOf(answer) {
  if (!answer.body?.getReader) return answer.text(); // React Native
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let [text, size] = ["", 0];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.length;
    if (size > ANSWER_BYTES_MAX) {
      reader.cancel().catch(() => {});
      throw new DeliveryError(`${answer.status} with an answer that is too long`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

/**
 * @param {string} text
 * @returns {Record<string, unknown> | null}
 */
function objectIn(text) {
  try {
    const document = JSON.parse(text);
    return isObject(document) ? document : null;
  } catch {
    return null;
  }
}

/**
 * @param {unknown} found
 * @returns {Record<string, unknown>[]}
 */
function objectsIn(found) {
  return Array.isArray(found) ? found.filter(isObject) : [];
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, any>}
 */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
