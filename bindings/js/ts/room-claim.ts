/** Lets a room have one participant of toolbridge at a time. */

/** Marks the rooms that are in use; by a registered symbol, since this module may be loaded twice (ESM and CommonJS). */
const USED = Symbol.for('toolbridge.used');

/** The end of the last packets of the participants before. */
const LEAVING = Symbol.for('toolbridge.leaving');

/** Claims a room for one participant of toolbridge. @throws Error if another one has it. */
export function claim(room: object, role: string): void {
  const used: unknown = Reflect.get(room, USED);
  if (typeof used === 'string') {
    throw new Error(`this room already has ${used}; close it before you create ${role}`);
  }
  Object.defineProperty(room, USED, { value: role, configurable: true, enumerable: false, writable: true });
}

/** Frees a room for another participant of toolbridge, whose packets follow the last ones of this one: others see one sender. */
export function release(room: object, leaving?: Promise<void>): void {
  Reflect.deleteProperty(room, USED);
  if (leaving === undefined) return;
  const all = Promise.all([lastPackets(room), leaving]);
  Object.defineProperty(room, LEAVING, { value: all, configurable: true, enumerable: false, writable: true });
}

/** Resolves when the participants before have sent their last packets. */
export async function lastPackets(room: object): Promise<void> {
  await Reflect.get(room, LEAVING);
}
