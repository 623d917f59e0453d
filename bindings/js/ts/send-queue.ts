/** Queues the packets that wait to be published, as `src/transport/send_queue.rs` does. */
import type { Transmit } from './core.js';
import type { RoomPort } from './room-port.js';

/** The largest number of queued packets. */
const CAP = 4_096;

/** The largest size of all queued packets, in bytes: two frames of the largest size. A single packet may exceed it. */
const CAP_BYTES = 32 * 1024 * 1024;

/** Additional room for packets that overtake, so that a queue full of large packets does not block stops. */
const RESERVE = 1_024;
const RESERVE_BYTES = 1024 * 1024;

/** Why a packet was not sent, in the form of the core's input `send_failed`. */
export interface SendFailure {
  readonly why: 'too_large' | 'not_allowed' | 'closed' | 'interrupted' | 'queue_full' | 'other';
  readonly text?: string;
}

interface Queued {
  readonly packet: Transmit;
  readonly bytes: Uint8Array;
}

/** Packets of one lane are published one after the other. `urgent` packets do not wait for byte streams. */
type LaneName = 'urgent' | 'ordered' | 'lossy';

interface Lane {
  readonly waiting: Queued[];
  sending: Queued | undefined;
}

export interface SendQueueOwner {
  /** Whether the core still wants this large packet to be sent. */
  isWanted(packet: number): boolean;
  /** A packet was not sent. */
  failed(packet: number, failure: SendFailure): void;
  /** A packet was sent, or failed. */
  moved(): void;
}

export class SendQueue {
  readonly #port: RoomPort;
  readonly #owner: SendQueueOwner;
  readonly #lanes: Readonly<Record<LaneName, Lane>> = {
    urgent: { waiting: [], sending: undefined },
    ordered: { waiting: [], sending: undefined },
    lossy: { waiting: [], sending: undefined },
  };
  /** Grows when all packets are given up. The end of one that the SDK still sends then is ignored. */
  #generation = 0;
  #count = 0;
  #bytes = 0;
  /** The bytes that wait on the reliable lane. */
  #reliable = 0;
  /** How many reliable packets were queued. */
  #pushed = 0;
  #lastReport = { bytes: 0, pushed: 0 };
  #streams = 0;
  #idle: (() => void)[] = [];

  constructor(port: RoomPort, owner: SendQueueOwner) {
    this.#port = port;
    this.#owner = owner;
  }

  /** The bytes that wait on the reliable lane, if they have changed or packets were queued since the last report. */
  takeBacklog(): number | undefined {
    if (this.#reliable === this.#lastReport.bytes && this.#pushed === this.#lastReport.pushed) return undefined;
    this.#lastReport = { bytes: this.#reliable, pushed: this.#pushed };
    return this.#reliable;
  }

  /** Begins the reports for a new session, which knows of no bytes. */
  beginReports(): void {
    this.#lastReport = { bytes: 0, pushed: this.#pushed };
  }

  /** Queues a packet. Returns false if the queue is full. */
  push(packet: Transmit, bytes: Uint8Array): boolean {
    const overtakes = packet.overtakes && packet.stream === undefined;
    const [cap, capBytes] = overtakes ? [CAP + RESERVE, CAP_BYTES + RESERVE_BYTES] : [CAP, CAP_BYTES];
    if (this.#count >= cap || (this.#count > 0 && this.#bytes + bytes.length > capBytes)) return false;
    const name = packet.lane === 'lossy' ? 'lossy' : overtakes && this.#streams > 0 ? 'urgent' : 'ordered';
    const queued = { packet, bytes };
    this.#count += 1;
    this.#bytes += bytes.length;
    if (packet.lane === 'reliable') {
      this.#reliable += bytes.length;
      this.#pushed += 1;
    }
    if (packet.stream !== undefined) this.#streams += 1;
    const lane = this.#lanes[name];
    lane.waiting.push(queued);
    if (lane.sending === undefined) void this.#run(lane);
    return true;
  }

  /** Gives up all packets, and returns their keys. */
  interrupt(): number[] {
    this.#generation += 1;
    const keys: number[] = [];
    for (const lane of Object.values(this.#lanes)) {
      if (lane.sending !== undefined) keys.push(lane.sending.packet.packet);
      lane.sending = undefined;
      keys.push(...lane.waiting.splice(0).map(({ packet }) => packet.packet));
    }
    this.#count = this.#bytes = this.#reliable = this.#streams = 0;
    this.#wake();
    return keys;
  }

  /** Gives up the byte streams that wait: a goodbye would wait for them. */
  dropStreams(): void {
    const { ordered } = this.#lanes;
    for (const queued of ordered.waiting.splice(0)) {
      if (queued.packet.stream === undefined) ordered.waiting.push(queued);
      else this.#forget(queued);
    }
    this.#wake();
  }

  /** Resolves when nothing is queued. */
  async flushed(): Promise<void> {
    if (this.#count === 0) return;
    await new Promise<void>((resolve) => this.#idle.push(resolve));
  }

  async #run(lane: Lane): Promise<void> {
    const generation = this.#generation;
    for (;;) {
      const queued = lane.waiting.shift();
      lane.sending = queued;
      if (queued === undefined) return;
      const { packet, bytes } = queued;
      let failure: SendFailure | undefined;
      try {
        if (packet.stream === undefined) await this.#port.publish(bytes, packet.lane === 'reliable', packet);
        else if (this.#owner.isWanted(packet.packet)) {
          const isWanted = () => generation === this.#generation && this.#owner.isWanted(packet.packet);
          await this.#port.sendStream(bytes, packet.stream, packet, isWanted);
        }
      } catch (error) {
        failure = this.#failure(error);
      }
      if (generation !== this.#generation) return; // all were given up meanwhile
      lane.sending = undefined;
      this.#forget(queued);
      if (failure !== undefined) this.#owner.failed(packet.packet, failure);
      this.#owner.moved();
      if (generation !== this.#generation || lane.sending !== undefined) return;
      this.#wake();
    }
  }

  #failure(error: unknown): SendFailure {
    const { state } = this.#port;
    if (state === 'disconnected') return { why: 'closed' };
    if (state === 'reconnecting') return { why: 'interrupted' };
    if (!this.#port.local().canPublishData) return { why: 'not_allowed' };
    return { why: 'other', text: error instanceof Error ? error.message : String(error) };
  }

  #forget({ packet, bytes }: Queued): void {
    this.#count -= 1;
    this.#bytes -= bytes.length;
    if (packet.lane === 'reliable') this.#reliable -= bytes.length;
    if (packet.stream !== undefined) this.#streams -= 1;
  }

  #wake(): void {
    if (this.#count > 0) return;
    for (const resolve of this.#idle.splice(0)) resolve();
  }
}
