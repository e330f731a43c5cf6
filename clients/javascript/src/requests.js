// ---- what is taken, and what is sent

export const VERSION = "1.0.0";

const EVENT_BYTES_MAX = 700_000; // the gateway's own limit is 800 KiB

/** @param {string} url @returns {string} it without slashes at the end */
function baseOf(url) {
  if (!/^https?:\/\/[^\s/?#]+[^\s?#]*$/i.test(url)) throw new TypeError(`no url of a gateway: ${url}`);
  new URL(url);
  return url.replace(/\/+$/, "");
}

/**
 * Return an event as JSON has it, with what it lacks.
 *
 * @param {Record<string, any>} event
 * @returns {Record<string, any>}
 */
function plainOf(event) {
  const plain = JSON.parse(JSON.stringify(event) ?? "null");
  if (!isObject(plain)) throw new TypeError("an event is an object");
  if (plain.sequence != null) throw new TypeError("an event's sequence is given by the client");
  plain.timestamp ??= new Date().toISOString();
  if (plain.context === undefined || isObject(plain.context)) {
    plain.context = { library: { name: "gateway-client.js", version: VERSION }, ...plain.context };
  }
  const size = bytesOf(JSON.stringify(plain));
  if (size > EVENT_BYTES_MAX) throw new RangeError(`an event may have ${EVENT_BYTES_MAX} bytes, and this one has ${size}`);
  return plain;
}

/** @param {Batch} batch */
function bodyOf({ client, session, events, isLast }) {
  const { sequence: firstSequence } = events[0];
  const acknowledgedThrough = firstSequence - 1;
  const sentAt = new Date().toISOString();
  const head = JSON.stringify({ client, session, acknowledgedThrough, firstSequence, sentAt, ...(isLast && { ended: true }) });
  return `${head.slice(0, -1)},"batch":[${events.map(({ content }) => content).join(",")}]}`;
}

/**
 * @param {number} ms
 * @param {boolean} [isIdle] whether a process may end meanwhile
 */
function pause(ms, isIdle = false) {
  /** @type {any} */ let timer;
  const over = new Promise((resolve) => (timer = setTimeout(() => resolve(null), ms)));
  if (isIdle) timer.unref?.(); // Node
  return { over, cancel: () => clearTimeout(timer) };
}

/** @param {AbortSignal} signal @returns {Promise<never>} */
function aborted(signal) {
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DeliveryError("no answer in time"))));
}

/**
 * Call the page back; its errors are not this client's.
 *
 * @param {((...told: any[]) => void) | undefined} callback
 * @param {any[]} told
 */
function call(callback, ...told) {
  try {
    callback?.(...told);
  } catch (err) {
    console.error("gateway client: a callback failed:", err);
  }
}
