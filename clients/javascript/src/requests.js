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
