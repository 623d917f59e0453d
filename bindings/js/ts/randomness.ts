/** The random numbers that each session needs. */

/** The random bytes of a session. */
const SEED = 32;

/** @throws Error with the polyfill's name, if there is no source of randomness. */
export function checkRandomness(): void {
  if (typeof globalThis.crypto?.getRandomValues === 'function') return;
  throw new Error('crypto.getRandomValues is missing; in React Native, import "react-native-get-random-values" first');
}

/** Random bytes for a session, in hexadecimal digits. */
export function seed(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(SEED));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
