// ---- ids

/** Return a new KSUID: 4 bytes of time, which sort it roughly, and 16 random ones, in base 62. */
export function ksuid() {
  const seconds = Math.max(0, Math.floor(Date.now() / 1_000) - 1_400_000_000) % 2 ** 32;
  let number = BigInt(`0x${seconds.toString(16)}${randomHex()}`);
  let digits = "";
  for (let place = 0; place < 27; place++) {
    const digit = Number(number % 62n);
    digits = String.fromCharCode(digit + (digit < 10 ? 48 : digit < 36 ? 55 : 61)) + digits; // 0-9, A-Z, a-z
    number /= 62n;
  }
  return digits;
}

/** Return 16 random bytes in hex. */
export function randomHex() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Return whether an event has an id of its own: one of white space is none to the gateway.
 *
 * @param {Record<string, any>} event
 */
export function hasId({ messageId }) {
  return messageId != null && !(typeof messageId === "string" && /^[\s\u200b-\u200d\u2060]*$/.test(messageId));
}
