/** Passes what arrives to the core: packets, also those that arrive too early, and whole byte streams. */
import { peer, type ReceivedPacket, type ReceivedStream, type RoomPort } from './room-port.js';
import type { RoomView } from './room-view.js';
import type { SessionRunner } from './session-runner.js';

/** The largest frame that is read, in bytes. A stream that is longer is not read to its end. */
const MAX_FRAME = 16 * 1024 * 1024;

/** What arrives before the session exists waits; at most this many packets and bytes. Their senders repeat what is dropped. */
const EARLY_PACKETS = 1_024;
const EARLY_BYTES = 4 * 1024 * 1024;

/** The most streams that are read at the same time: of all senders, and of one, as in the core (`streams_per_peer`). */
const STREAMS = 64;
const STREAMS_OF_ONE = 4;

/** A stream without a chunk for so long is given up, in milliseconds, as in the core (`Times::stream_idle`). */
const STREAM_IDLE = 10_000;

export class Inbox {
  readonly #port: RoomPort;
  readonly #runner: SessionRunner;
  readonly #view: RoomView;
  readonly #warn: (message: string) => void;
  readonly #early: ReceivedPacket[] = [];
  #earlyBytes = 0;
  /** The streams that are read, by their senders. */
  readonly #streams = new Map<string, number>();
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
    // Otherwise one participant could keep the large frames of all others out, with streams that do not end.
    const ofOne = this.#streams.get(from) ?? 0;
    const ofAll = [...this.#streams.values()].reduce((sum, count) => sum + count, 0);
    if (ofOne >= STREAMS_OF_ONE || ofAll >= STREAMS) {
      const limit = ofOne >= STREAMS_OF_ONE ? `${STREAMS_OF_ONE} byte streams of one participant` : `${STREAMS} byte streams`;
      this.#warn(`more than ${limit} arrive at once; one of ${from} is not read`);
      return giveUp(chunks[Symbol.asyncIterator]());
    }
    this.#streams.set(from, ofOne + 1);
    const parts: Uint8Array[] = [];
    let size = 0;
    try {
      if (!isTooLong) {
        for await (const chunk of untilIdle(chunks)) {
          size += chunk.length;
          parts.push(chunk);
          if (size > max) break; // the core sees that it is too long
        }
      }
    } catch {
      return; // its sender repeats it
    } finally {
      const left = (this.#streams.get(from) ?? 1) - 1;
      if (left > 0) this.#streams.set(from, left);
      else this.#streams.delete(from);
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
