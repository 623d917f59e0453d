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

/** A stream without a chunk for so long is given up, in milliseconds, as in the core (`Times::stream_idle`). */
const STREAM_IDLE = 10_000;

export class Inbox {
  readonly #port: RoomPort;
  readonly #runner: SessionRunner;
  readonly #view: RoomView;
  readonly #warn: (message: string) => void;
  readonly #early: ReceivedPacket[] = [];
  #earlyBytes = 0;
  /** What is read, by its sender. */
  readonly #reading = new Map<string, Reading>();
  #isClosed = false;

  constructor(port: RoomPort, runner: SessionRunner, view: RoomView, warn: (message: string) => void) {
    this.#port = port;
    this.#runner = runner;
    this.#view = view;
    this.#warn = warn;
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
    const reading = this.#reading.get(from) ?? { streams: 0, bytes: 0 };
    if (reading.streams >= STREAMS) {
      this.#warn(`more than ${STREAMS} byte streams of ${from} arrive at once; one is not read`);
      return giveUp(chunks[Symbol.asyncIterator]());
    }
    reading.streams += 1;
    this.#reading.set(from, reading);
    const parts: Uint8Array[] = [];
    let size = 0;
    try {
      if (!isTooLong) {
        for await (const chunk of untilIdle(chunks)) {
          size += chunk.length;
          reading.bytes += chunk.length;
          parts.push(chunk);
          if (size > max) break; // the core sees that it is too long
          if (reading.bytes > STREAM_BYTES) throw new Error('the streams of this sender are too large together');
        }
      }
    } catch {
      return; // cut off or given up: its sender sends it again if it knows, or the call ends by its time limit
    } finally {
      reading.streams -= 1;
      reading.bytes -= size;
      if (reading.streams === 0) this.#reading.delete(from);
    }
    if (!this.#runner.isOpen) return;
    this.#view.flush();
    const header = { from: peer(this.#port, from), id, topic, length, attributes };
    if (isTooLong) this.#runner.pass({ type: 'stream_header', ...header });
    else this.#runner.pass({ type: 'stream', ...header }, {}, concat(parts, size));
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

  #keep(packet: ReceivedPacket): void {
    if (this.#isClosed || this.#early.length >= EARLY_PACKETS || this.#earlyBytes + packet.bytes.length > EARLY_BYTES) return;
    this.#early.push(packet);
    this.#earlyBytes += packet.bytes.length;
  }
}

/** The streams of one sender. */
interface Reading {
  streams: number;
  bytes: number;
}

/** The chunks of a stream; throws if none comes for {@link STREAM_IDLE}. */
async function* untilIdle(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  const source = chunks[Symbol.asyncIterator]();
  try {
    for (;;) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const idle = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, STREAM_IDLE, undefined)));
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
