/** What the rooms of livekit-client and `@livekit/rtc-node` have in common. */
import type { ReportedParticipant, StreamInfo } from './core.js';
import type { Destination, PortEvents, RoomPort, RoomState } from './room-port.js';

/** The part of both SDKs' `Room` that is used. */
export interface SdkRoom<Participant extends SdkParticipant, Info> {
  readonly remoteParticipants: ReadonlyMap<string, Participant>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  off(event: string, listener: (...args: never[]) => void): unknown;
  registerByteStreamHandler(topic: string, handler: (reader: Reader<Info>, from: { identity: string }) => void): void;
  unregisterByteStreamHandler(topic: string): void;
}

export interface SdkParticipant {
  readonly identity: string;
  readonly kind: number;
  readonly attributes: Readonly<Record<string, string>>;
}

export interface SdkLocalParticipant {
  streamBytes(options: {
    streamId: string;
    name: string;
    topic: string;
    totalSize: number;
    attributes: Record<string, string>;
    destinationIdentities: string[];
  }): Promise<{ write(bytes: Uint8Array): Promise<void>; close(): Promise<void> }>;
}

export interface Reader<Info> extends AsyncIterable<Uint8Array> {
  readonly info: Info;
}

/** The listeners of a room, by the names of its events. */
export type Listeners = readonly (readonly [string, (...args: never[]) => void])[];

/** The bytes that end-to-end encryption adds to a packet, with its envelope. */
export const ENCRYPTION_OVERHEAD = 44;

/**
 * The part of a stream that is passed to the SDK at once, in bytes: ten of its chunks. Between two parts a stream that is
 * no longer wanted ends.
 */
const STREAM_PART = 150_000;

/** A room of an SDK as a port. */
export abstract class SdkPort<Room extends SdkRoom<Participant, Info>, Participant extends SdkParticipant, Info> implements RoomPort {
  readonly room: Room;

  constructor(room: Room) {
    this.room = room;
  }

  abstract readonly state: RoomState;
  abstract readonly name: string;
  abstract readonly overhead: number;
  abstract local(): ReportedParticipant;
  abstract isAnnounced(): boolean | undefined;
  abstract publish(bytes: Uint8Array, reliable: boolean, to: Destination): Promise<void>;
  abstract listen(events: PortEvents): () => void;

  /** Describes one of the SDK's participants. */
  protected abstract describe(who: Participant): ReportedParticipant;
  protected abstract readonly localParticipant: SdkLocalParticipant;

  participants(): readonly ReportedParticipant[] {
    return [...this.room.remoteParticipants.values()].map((who) => this.describe(who));
  }

  participant(identity: string): ReportedParticipant | undefined {
    const found = this.room.remoteParticipants.get(identity);
    return found === undefined ? undefined : this.describe(found);
  }

  async sendStream(bytes: Uint8Array, header: StreamInfo, { to }: Destination, isWanted: () => boolean): Promise<void> {
    const writer = await this.localParticipant.streamBytes({
      streamId: header.id,
      name: 'frame',
      topic: header.topic,
      totalSize: header.length,
      attributes: { ...header.attributes },
      destinationIdentities: [...to],
    });
    for (let at = 0; at < bytes.length && isWanted(); at += STREAM_PART) {
      await writer.write(bytes.subarray(at, at + STREAM_PART));
    }
    // Also of a stream that is cut: its receiver sees that bytes are missing, and forgets it.
    await writer.close();
  }

  /** The listeners of what both SDKs call and report alike. */
  protected commonListeners(events: PortEvents): Listeners {
    const changed = (who: Participant) => events.changed(who.identity);
    const changedSecond = (_: unknown, who: Participant) => events.changed(who.identity);
    return [
      ['reconnecting', () => events.reconnecting()],
      ['reconnected', () => events.reconnected()],
      ['participantConnected', changed],
      ['participantDisconnected', changed],
      ['participantAttributesChanged', changedSecond],
      ['participantMetadataChanged', changedSecond],
    ];
  }

  protected listenTo(listeners: Listeners): void {
    for (const [event, listener] of listeners) this.room.on(event, listener);
  }

  protected stopListeningTo(listeners: Listeners): void {
    for (const [event, listener] of listeners) this.room.off(event, listener);
  }
}

/** @throws Error that names the missing functions and both versions, if there are any missing. */
export function requireFunctions(
  { sdk, oldest, found }: { readonly sdk: string; readonly oldest: string; readonly found?: string | undefined },
  functions: Readonly<Record<string, boolean>>,
): void {
  const missing = Object.keys(functions).filter((name) => !functions[name]);
  if (missing.length === 0) return;
  // A room does not tell its version, so what it lacks is named too.
  const version = found === undefined ? 'an older version' : `version ${found}`;
  throw new Error(`${sdk} ${oldest} or later is required, but this room is of ${version} (without ${missing.join(', ')})`);
}

/** The functions of both SDKs that an older version lacks. */
export function streamFunctions(room: {
  readonly registerByteStreamHandler: unknown;
  readonly unregisterByteStreamHandler: unknown;
}): Readonly<Record<string, boolean>> {
  return {
    'Room.registerByteStreamHandler': typeof room.registerByteStreamHandler === 'function',
    'Room.unregisterByteStreamHandler': typeof room.unregisterByteStreamHandler === 'function',
  };
}
