/** The room of `@livekit/rtc-node`, in Node. */
import type { CoreParticipant, StreamHeader } from './core.js';
import { tooOld } from './livekit-client.js';
import {
  closeReason,
  participantKind,
  STREAM_TOPIC,
  type Destination,
  type PortEvents,
  type RoomPort,
  type RoomState,
} from './room-port.js';

/** The oldest version that is supported. */
export const OLDEST_RTC_NODE = '0.13.34';

/** The part of rtc-node's `Room` that is used. */
export interface RtcNodeRoom {
  readonly connectionState: number;
  readonly isConnected: boolean;
  readonly name: string | undefined;
  readonly localParticipant?: RtcNodeLocalParticipant | undefined;
  readonly remoteParticipants: ReadonlyMap<string, RtcNodeParticipant>;
  readonly e2eeManager?: unknown;
  on(event: string, listener: (...args: never[]) => void): unknown;
  off(event: string, listener: (...args: never[]) => void): unknown;
  registerByteStreamHandler(topic: string, handler: (reader: Reader, from: { identity: string }) => void): void;
  unregisterByteStreamHandler(topic: string): void;
}

interface RtcNodeParticipant {
  readonly identity: string;
  readonly sid: string | undefined;
  readonly kind: number;
  readonly attributes: Readonly<Record<string, string>>;
}

interface RtcNodeLocalParticipant extends RtcNodeParticipant {
  publishData(data: Uint8Array, options: { reliable: boolean; topic: string; destination_identities: string[] }): Promise<void>;
  streamBytes(options: {
    streamId: string;
    name: string;
    topic: string;
    totalSize: number;
    attributes: Record<string, string>;
    destinationIdentities: string[];
  }): Promise<{ write(bytes: Uint8Array): Promise<void>; close(): Promise<void> }>;
}

interface Reader extends AsyncIterable<Uint8Array> {
  readonly info: {
    readonly streamId: string;
    readonly topic: string;
    readonly totalSize?: number | undefined;
    readonly attributes?: Readonly<Record<string, string>> | undefined;
  };
}

/** The numbers of the FFI's `ConnectionState`. */
const CONNECTED = 1;
const RECONNECTING = 2;

/** The number of the FFI's reliable kind of packets. */
const RELIABLE = 1;

/** The bytes that end-to-end encryption adds to a packet, with its envelope. */
const ENCRYPTION_OVERHEAD = 44;

/** The part of a stream that is passed to the SDK at once, in bytes. */
const STREAM_PART = 150_000;

/** Returns whether this is rtc-node's `Room`. */
export function isRtcNodeRoom(room: object): room is RtcNodeRoom {
  return 'isConnected' in room && 'connectionState' in room && 'remoteParticipants' in room;
}

/** @throws Error if the SDK is too old. */
function check(room: RtcNodeRoom): void {
  const missing = [
    typeof room.registerByteStreamHandler === 'function' ? undefined : 'Room.registerByteStreamHandler',
    typeof room.unregisterByteStreamHandler === 'function' ? undefined : 'Room.unregisterByteStreamHandler',
  ].filter((name) => name !== undefined);
  if (missing.length > 0) throw tooOld('@livekit/rtc-node', OLDEST_RTC_NODE, undefined, missing);
}

export class RtcNodePort implements RoomPort {
  readonly room: RtcNodeRoom;

  constructor(room: RtcNodeRoom) {
    check(room);
    this.room = room;
  }

  get state(): RoomState {
    switch (this.room.connectionState) {
      case CONNECTED:
        return 'connected';
      case RECONNECTING:
        return 'reconnecting';
      default:
        return 'disconnected';
    }
  }

  get name(): string {
    return this.room.name ?? '';
  }

  get overhead(): number {
    return this.room.e2eeManager ? ENCRYPTION_OVERHEAD : 0;
  }

  local(): CoreParticipant {
    return describe(this.#local);
  }

  /** The SDK does not tell. The core assumes it after a while, or when a packet arrives. */
  isAnnounced(): boolean {
    return false;
  }

  participants(): readonly CoreParticipant[] {
    return [...this.room.remoteParticipants.values()].map(describe);
  }

  participant(identity: string): CoreParticipant | undefined {
    const found = this.room.remoteParticipants.get(identity);
    return found === undefined ? undefined : describe(found);
  }

  async publish(bytes: Uint8Array, reliable: boolean, { topic, to }: Destination): Promise<void> {
    await this.#local.publishData(bytes, { reliable, topic, destination_identities: [...to] });
  }

  async sendStream(bytes: Uint8Array, header: StreamHeader, { to }: Destination, isWanted: () => boolean): Promise<void> {
    const writer = await this.#local.streamBytes({
      streamId: header.id,
      name: 'frame',
      topic: header.topic,
      totalSize: header.length,
      attributes: { ...header.attributes },
      destinationIdentities: [...to],
    });
    for (let at = 0; at < bytes.length && isWanted(); at += STREAM_PART) {
      await writer.write(bytes.slice(at, at + STREAM_PART));
    }
    await writer.close();
  }

  listen(events: PortEvents): () => void {
    const { room } = this;
    const changed = (who: RtcNodeParticipant) => events.changed(who.identity);
    const changedSecond = (_: unknown, who: RtcNodeParticipant) => events.changed(who.identity);
    // The SDK has no event for the first connection, except this one. It is emitted before the room's events.
    let isConnected = this.state === 'connected';
    const listeners: readonly [string, (...args: never[]) => void][] = [
      [
        'connectionStateChanged',
        (state: number) => {
          if (state === CONNECTED && !isConnected) {
            isConnected = true;
            events.connected();
          }
        },
      ],
      ['reconnecting', () => events.reconnecting()],
      ['reconnected', () => events.reconnected()],
      [
        'disconnected',
        (reason?: number) => {
          isConnected = false;
          events.disconnected(closeReason(reason));
          // `Room.disconnect` removes all listeners next, and the room may be connected again.
          queueMicrotask(() => {
            stop();
            if (isListening) start();
          });
        },
      ],
      ['participantConnected', changed],
      ['participantDisconnected', changed],
      ['participantAttributesChanged', changedSecond],
      ['participantMetadataChanged', changedSecond],
      [
        'dataReceived',
        (bytes: Uint8Array, who?: RtcNodeParticipant, kind?: number, topic?: string) => {
          events.packet({
            bytes,
            lane: kind === RELIABLE ? 'reliable' : 'lossy',
            ...(who !== undefined && { from: who.identity }),
            ...(topic !== undefined && { topic }),
          });
        },
      ],
    ];
    let isListening = true;
    const start = () => {
      for (const [event, listener] of listeners) room.on(event, listener);
    };
    const stop = () => {
      for (const [event, listener] of listeners) room.off(event, listener);
    };
    // First, because it throws if the topic is taken.
    room.registerByteStreamHandler(STREAM_TOPIC, (reader, { identity }) => {
      const { streamId, topic, totalSize, attributes } = reader.info;
      events.stream({
        from: identity,
        id: streamId,
        topic,
        attributes: attributes ?? {},
        chunks: reader,
        ...(totalSize !== undefined && { length: totalSize }),
      });
    });
    start();
    return () => {
      isListening = false;
      stop();
      room.unregisterByteStreamHandler(STREAM_TOPIC);
    };
  }

  get #local(): RtcNodeLocalParticipant {
    const local = this.room.localParticipant;
    if (local === undefined) throw new Error('the room has no local participant: it is not connected');
    return local;
  }
}

/** The SDK does not make permissions public, but keeps them in `info`. Without them attributes are not trusted. */
function describe(who: RtcNodeParticipant): CoreParticipant {
  const info: unknown = Reflect.get(who, 'info');
  const permission: unknown = typeof info === 'object' && info !== null ? Reflect.get(info, 'permission') : undefined;
  const may = (name: string): boolean => {
    const value: unknown = typeof permission === 'object' && permission !== null ? Reflect.get(permission, name) : undefined;
    return typeof value === 'boolean' ? value : true;
  };
  return {
    identity: who.identity,
    sid: who.sid ?? '',
    kind: participantKind(who.kind),
    attributes: who.attributes,
    can_update_metadata: may('canUpdateMetadata'),
    can_publish_data: may('canPublishData'),
  };
}
