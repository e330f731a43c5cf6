// ---- ids

/** Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62. */
export function ksuid() {
  let time = (Math.abs(Date.now() / 1_000 - 1_400_000_000) % 2 ** 32) * 483.0651; // 2 ** 128 / 62 ** 20, to some seconds
  let digits = "";
  for (const byte of crypto.getRandomValues(new Uint8Array(27))) {
    const digit = Math.floor(digits.length < 21 ? byte : (time /= 62)) % 62; // the last ones are those that random ones do not fill
    digits = String.fromCharCode(digit + (digit < 10 ? 48 : digit < 36 ? 55 : 61)) + digits; // 0-9, A-Z, a-z
  }
  return digits;
}

/**
 * Return whether an event has an id of its own: one of white space is none to the gateway.
 *
 * @param {Record<string, any>} event
 * @returns {boolean}
 */
export function hasId({ messageId }) {
  return (messageId?.replace?.(/[\s\u200b-\u200d\u2060]/g, "") ?? messageId ?? "") !== "";
}
