/** Passes what arrives to the core: packets and the parts of byte streams, also those that arrive too early. */
import { peer, type ReceivedPacket, type ReceivedStream, type RoomPort } from './room-port.js';
import { textOf } from './core-errors.js';
import type { RoomView } from './room-view.js';
import type { SessionRunner } from './session-runner.js';

/**
 * What arrives before the session exists waits; at most this many packets, bytes of them, and streams, which are not read yet. Senders
 * repeat the requests and results that are dropped. Of a goodbye that is dropped, the room's report of its sender's leave takes the
 * place.
 */
const EARLY_PACKETS = 1_024;
const EARLY_BYTES = 4 * 1024 * 1024;
const EARLY_STREAMS = 64;

/**
 * The most streams that are read at the same time. The core drops those that stall, which nobody tells their readers: so the oldest
 * reader gives way.
 */
const READERS = 1_024;

export class Inbox {
  readonly #port: RoomPort;
  readonly #runner: SessionRunner;
  readonly #view: RoomView;
  #early: ReceivedPacket[] = [];
  #earlyBytes = 0;
  #earlyStreams: ReceivedStream[] = [];
  /** The streams that are being read. */
  readonly #reading = new Set<AsyncIterator<Uint8Array>>();
  #isClosed = false;
  /** How many streams were given up because too many came too early, or at once. */
  droppedStreams = 0;

  constructor(port: RoomPort, runner: SessionRunner, view: RoomView) {
    this.#port = port;
    this.#runner = runner;
    this.#view = view;
  }

  packet(packet: ReceivedPacket): void {
    if (this.#isEarly) return this.#keep(packet);
    this.#notice(packet.from);
    const { from, lane, topic, bytes } = packet;
    this.#runner.pass({ type: 'packet', lane, topic, ...(from !== undefined && { from: peer(this.#port, from) }) }, {}, bytes);
  }

  unreadable(from: string | undefined, why: string): void {
    this.#runner.pass({ type: 'unreadable', why, ...(from !== undefined && { from: peer(this.#port, from) }) });
  }

  /** Passes the parts of a stream as long as the core wants them. */
  async stream(stream: ReceivedStream): Promise<void> {
    if (this.#isEarly) return this.#keepStream(stream);
    this.#notice(stream.from);
    const { id, topic, length, attributes, chunks } = stream;
    const key = { from: peer(this.#port, stream.from), id };
    const source = chunks[Symbol.asyncIterator]();
    for (const oldest of this.#reading) {
      if (this.#reading.size < READERS) break;
      this.#reading.delete(oldest);
      giveUp(oldest);
      this.droppedStreams += 1;
    }
    this.#reading.add(source);
    let isWanted = this.#pass({ type: 'stream_header', ...key, topic, length, attributes });
    try {
      for (let index = 0; isWanted; index += 1) {
        const { done, value } = await source.next();
        if (!this.#reading.has(source)) return; // it was given up
        if (done === true) break;
        isWanted = this.#pass({ type: 'stream_chunk', ...key, index }, value);
      }
      if (isWanted) this.#pass({ type: 'stream_trailer', ...key });
      else giveUp(source);
    } catch (error) {
      // Its sender sends it again if it knows, or the call ends by its time limit.
      if (this.#reading.has(source)) this.#pass({ type: 'stream_trailer', ...key, reason: textOf(error) || 'cut off' });
    } finally {
      this.#reading.delete(source);
    }
  }

  /** Passes what waited. */
  passEarly(): void {
    const [packets, streams] = [this.#early, this.#earlyStreams];
    this.#forgetEarly();
    for (const packet of packets) this.packet(packet);
    for (const stream of streams) void this.stream(stream);
  }

  /** Gives up the streams: the session has ended. */
  end(): void {
    for (const source of this.#reading) giveUp(source);
    this.#reading.clear();
  }

  /** Drops what waits. */
  dropEarly(): void {
    for (const { chunks } of this.#earlyStreams) giveUp(chunks[Symbol.asyncIterator]());
    this.#forgetEarly();
  }

  /** No session follows. */
  close(): void {
    this.#isClosed = true;
    this.dropEarly();
  }

  /** Whether what arrives belongs to a session, or to a join, that has not begun. */
  get #isEarly(): boolean {
    return !this.#runner.isOpen || this.#view.isBehind;
  }

  /** Not all changes are events of the SDK: of permissions, rtc-node reports none, and livekit-client not that to change attributes. */
  #notice(sender: string | undefined): void {
    this.#view.flush();
    this.#view.reportUnnoticed(sender);
  }

  /** Passes a part of a stream. Returns whether the rest is to be read. */
  #pass(part: object, bytes?: Uint8Array): boolean {
    const reply = this.#runner.pass(part, {}, bytes);
    return reply?.type === 'stream' && reply.wanted;
  }

  #keep(packet: ReceivedPacket): void {
    if (this.#isClosed || this.#early.length >= EARLY_PACKETS || this.#earlyBytes + packet.bytes.length > EARLY_BYTES) return;
    this.#early.push(packet);
    this.#earlyBytes += packet.bytes.length;
  }

  #keepStream(stream: ReceivedStream): void {
    if (!this.#isClosed && this.#earlyStreams.length < EARLY_STREAMS) return void this.#earlyStreams.push(stream);
    this.droppedStreams += 1;
    giveUp(stream.chunks[Symbol.asyncIterator]());
  }

  #forgetEarly(): void {
    this.#early = [];
    this.#earlyStreams = [];
    this.#earlyBytes = 0;
  }
}

/** Ends the reading of a stream. Not awaited: an iterator may end only with its next chunk. */
function giveUp(source: AsyncIterator<Uint8Array>): void {
  source.return?.().catch(() => undefined);
}
