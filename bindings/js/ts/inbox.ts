/** Passes what arrives to the core: packets, also those that arrive too early, and whole byte streams. */
import { peer, type ReceivedPacket, type ReceivedStream, type RoomPort } from './room-port.js';
import type { RoomView } from './room-view.js';
import type { SessionRunner } from './session-runner.js';

/** The largest frame that is read, in bytes. A stream that is longer is not read to its end. */
const MAX_FRAME = 16 * 1024 * 1024;

/**
 * What arrives before the session exists waits; at most this many packets and bytes. Senders repeat the requests and results that are
 * dropped. Of a goodbye that is dropped, the room's report of its sender's leave takes the place.
 */
const EARLY_PACKETS = 1_024;
const EARLY_BYTES = 4 * 1024 * 1024;

/**
 * The most streams of one sender that are read at the same time, and the bytes of them that are held: two frames of the largest size.
 * Those of others are not affected. The core takes four, but an SDK reports the streams of a burst before it passes their chunks.
 */
const STREAMS = 64;
const STREAM_BYTES = 2 * MAX_FRAME;

/** The same for all senders together. Beyond them, the sender that has most loses a stream: those that have little are not affected. */
const ALL_STREAMS = 1_024;
const ALL_STREAM_BYTES = 4 * STREAM_BYTES;

/** A stream without a chunk for so long is given up, in milliseconds, as in the core (`Times::stream_idle`). */
const STREAM_IDLE = 10_000;

export class Inbox {
  readonly #port: RoomPort;
  readonly #runner: SessionRunner;
  readonly #view: RoomView;
  readonly #warn: (message: string) => void;
  readonly #early: ReceivedPacket[] = [];
  #earlyBytes = 0;
  readonly #count: (name: string) => void;
  readonly #senders = new Map<string, Sender>();
  #streams = 0;
  #streamBytes = 0;
  #isClosed = false;

  constructor(port: RoomPort, runner: SessionRunner, view: RoomView, warn: (message: string) => void, count: (name: string) => void) {
    this.#port = port;
    this.#runner = runner;
    this.#view = view;
    this.#warn = warn;
    this.#count = count;
  }

  packet(packet: ReceivedPacket): void {
    // One that belongs to a session, or to a join, that has not begun.
    if (!this.#runner.isOpen || this.#view.isBehind) return this.#keep(packet);
    this.#view.flush();
    // Not all changes are events of the SDK: of permissions, rtc-node reports none, and livekit-client not that to change attributes.
    this.#view.reportUnnoticed(packet.from);
    const { from, lane, topic, bytes } = packet;
    this.#runner.pass({ type: 'packet', lane, topic, ...(from !== undefined && { from: peer(this.#port, from) }) }, {}, bytes);
  }

  unreadable(from: string | undefined, why: string): void {
    this.#runner.pass({ type: 'unreadable', why, ...(from !== undefined && { from: peer(this.#port, from) }) });
  }

  /** Reads a whole stream. One that is cut off, or longer than it said or than any frame, is dropped. */
  async stream({ from, id, topic, length, attributes, chunks }: ReceivedStream): Promise<void> {
    const max = Math.min(length ?? MAX_FRAME, MAX_FRAME);
    // A stream that says that it is too long is refused by the core, by its header.
    const isTooLong = length !== undefined && length > MAX_FRAME;
    if ((this.#senders.get(from)?.streams.size ?? 0) >= STREAMS) {
      this.#warn(`more than ${STREAMS} byte streams of ${from} arrive at once; one is not read`);
      return giveUp(chunks[Symbol.asyncIterator]());
    }
    if (this.#streams >= ALL_STREAMS) this.#dropOne((sender) => sender.streams.size);
    const sender = this.#senders.get(from) ?? { identity: from, streams: new Set(), bytes: 0 };
    const reading: Reading = { size: 0, stop: () => {} };
    this.#senders.set(from, sender);
    sender.streams.add(reading);
    this.#streams += 1;
    const parts: Uint8Array[] = [];
    try {
      if (!isTooLong) {
        for await (const chunk of untilIdle(chunks, reading)) {
          if (!sender.streams.has(reading)) return; // dropped
          reading.size += chunk.length;
          sender.bytes += chunk.length;
          this.#streamBytes += chunk.length;
          parts.push(chunk);
          if (reading.size > max) break; // the core sees that it is too long
          if (sender.bytes > STREAM_BYTES) throw new Error('the streams of this sender are too large together');
          if (this.#streamBytes > ALL_STREAM_BYTES) this.#dropOne((sender) => sender.bytes);
          if (!sender.streams.has(reading)) return;
        }
      }
    } catch {
      // Cut off or given up: its sender sends it again if it knows, or the call ends by its time limit.
      if (sender.streams.has(reading)) this.#count('broken_streams');
      return;
    } finally {
      this.#forget(reading, sender);
    }
    if (!this.#runner.isOpen) return;
    this.#view.flush();
    const header = { from: peer(this.#port, from), id, topic, length, attributes };
    if (isTooLong) this.#runner.pass({ type: 'stream_header', ...header });
    else this.#runner.pass({ type: 'stream', ...header }, {}, concat(parts, reading.size));
  }

  /** Passes the packets that waited. */
  passEarly(): void {
    this.#earlyBytes = 0;
    for (const packet of this.#early.splice(0)) this.packet(packet);
  }

  /** Drops the packets that wait. */
  dropEarly(): void {
    this.#early.length = this.#earlyBytes = 0;
  }

  /** No session follows. */
  close(): void {
    this.#isClosed = true;
    this.dropEarly();
  }

  /** Drops the largest stream of the sender that has most, to make room. Its call ends by its time limit. */
  #dropOne(has: (sender: Sender) => number): void {
    const sender = most(this.#senders.values(), has);
    const reading = sender && most(sender.streams, ({ size }) => size);
    if (sender === undefined || reading === undefined) return;
    this.#forget(reading, sender); // now, and not when its reader notices
    reading.stop();
    this.#count('dropped_streams');
  }

  /** Ends the reading of a stream, once. */
  #forget(reading: Reading, sender: Sender): void {
    if (!sender.streams.delete(reading)) return;
    sender.bytes -= reading.size;
    this.#streams -= 1;
    this.#streamBytes -= reading.size;
    if (sender.streams.size === 0) this.#senders.delete(sender.identity);
  }

  #keep(packet: ReceivedPacket): void {
    if (this.#isClosed || this.#early.length >= EARLY_PACKETS || this.#earlyBytes + packet.bytes.length > EARLY_BYTES) return;
    this.#early.push(packet);
    this.#earlyBytes += packet.bytes.length;
  }
}

/** A participant whose streams are being read. */
interface Sender {
  readonly identity: string;
  readonly streams: Set<Reading>;
  /** The bytes of all of them. */
  bytes: number;
}

/** A stream that is being read. */
interface Reading {
  size: number;
  /** Ends the wait for its next chunk. */
  stop: () => void;
}

/** The one of which there is most. */
function most<T>(all: Iterable<T>, has: (one: T) => number): T | undefined {
  let found: T | undefined;
  for (const one of all) if (found === undefined || has(one) > has(found)) found = one;
  return found;
}

/** The chunks of a stream; throws if none comes for {@link STREAM_IDLE}, or the reading is stopped. */
async function* untilIdle(chunks: AsyncIterable<Uint8Array>, reading: Reading): AsyncGenerator<Uint8Array> {
  const source = chunks[Symbol.asyncIterator]();
  try {
    for (;;) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const idle = new Promise<undefined>((resolve) => {
        reading.stop = () => resolve(undefined);
        timer = setTimeout(reading.stop, STREAM_IDLE);
      });
      const next = await Promise.race([source.next(), idle]).finally(() => clearTimeout(timer));
      if (next === undefined) throw new Error('the stream has stalled');
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    giveUp(source);
  }
}

/** Ends the reading of a stream. Not awaited: an iterator may end only with its next chunk. */
function giveUp(source: AsyncIterator<Uint8Array>): void {
  source.return?.().catch(() => undefined);
}

function concat(parts: readonly Uint8Array[], size: number): Uint8Array {
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
