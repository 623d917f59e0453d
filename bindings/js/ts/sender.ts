/** Publishes the packets of the core, whose queue lets one of each lane out at a time, except when the participant leaves. */
import type { Transmit } from './core.js';
import { textOf } from './core-errors.js';
import type { RoomPort } from './room-port.js';
import type { SessionRunner } from './session-runner.js';

export class Sender {
  readonly #port: RoomPort;
  readonly #runner: SessionRunner;
  /** The end of the last packet of each lane, while it is being published. Packets do not wait for byte streams. */
  readonly #lanes = new Map<'reliable' | 'lossy' | 'stream', Promise<void>>();
  /** Grows with each session and each join. The end of a packet is reported in its own only: others have other packets of its key. */
  #join = 0;
  /** Packets of earlier joins are not published. */
  #firstJoin = 0;

  constructor(port: RoomPort, runner: SessionRunner) {
    this.#port = port;
    this.#runner = runner;
  }

  /** Begins a session. The last packets of the one before are still published. */
  begin(): void {
    this.#join += 1;
  }

  /** Gives up all packets: their join has ended. */
  interrupt(): void {
    this.#firstJoin = this.#join += 1;
    this.#lanes.clear();
  }

  /** Publishes a packet, after those of its lane that are being published. */
  send(packet: Transmit, bytes: Uint8Array): void {
    const lane = packet.stream === undefined ? packet.lane : 'stream';
    const join = this.#join;
    const before = this.#lanes.get(lane);
    // The first one at once: a page that goes away may not give anything else a turn.
    const end = before === undefined ? this.#publish(packet, bytes, join) : before.then(() => this.#publish(packet, bytes, join));
    this.#lanes.set(lane, end);
    void end.then(() => this.#lanes.get(lane) === end && this.#lanes.delete(lane));
  }

  /** Resolves when no packet is being published. */
  async flushed(): Promise<void> {
    await Promise.all(this.#lanes.values());
  }

  async #publish(packet: Transmit, bytes: Uint8Array, join: number): Promise<void> {
    const { packet: key, lane, stream } = packet;
    if (join < this.#firstJoin) return;
    let failure: object | undefined;
    try {
      // The SDKs send without the permission, too, and the server drops the packets.
      if (this.#isForbidden) failure = { why: 'not_allowed' };
      else if (stream === undefined) await this.#port.publish(bytes, lane === 'reliable', packet);
      else await this.#port.sendStream(bytes, stream, packet, () => join === this.#join && this.#isWanted(key));
    } catch (error) {
      failure = this.#failure(error);
    }
    if (join !== this.#join) return;
    if (failure === undefined) this.#runner.sent(key);
    else this.#runner.pass({ type: 'send_failed', packet: key, ...failure });
  }

  /** Whether the core still wants this large packet to be sent. */
  #isWanted(packet: number): boolean {
    const reply = this.#runner.query({ type: 'is_wanted', packet });
    return reply?.type === 'is_wanted' && reply.wanted;
  }

  get #isForbidden(): boolean {
    return this.#port.state === 'connected' && !this.#port.local().canPublishData;
  }

  /** Why a packet was not sent, in the form of the core. */
  #failure(error: unknown): object {
    const { state } = this.#port;
    if (state === 'disconnected') return { why: 'closed' };
    if (state === 'reconnecting') return { why: 'interrupted' };
    if (this.#isForbidden) return { why: 'not_allowed' };
    return { why: 'other', text: textOf(error) };
  }
}
