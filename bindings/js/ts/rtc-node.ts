/** The room of `@livekit/rtc-node`, in Node. */
import type { ReportedParticipant } from './core.js';
import { closeReason, participantKind, STREAM_TOPIC, type Destination, type PortEvents, type RoomState } from './room-port.js';
import {
  ENCRYPTION_OVERHEAD,
  requireFunctions,
  SdkPort,
  streamFunctions,
  type Listeners,
  type SdkLocalParticipant,
  type SdkParticipant,
  type SdkRoom,
} from './sdk-room.js';

/** The oldest version that is supported. */
export const OLDEST_RTC_NODE = '0.13.34';

/** The part of rtc-node's `Room` that is used. */
export interface RtcNodeRoom extends SdkRoom<RtcNodeParticipant, StreamInfo> {
  readonly connectionState: number;
  readonly isConnected: boolean;
  readonly name: string | undefined;
  readonly localParticipant?: RtcNodeLocalParticipant | undefined;
  readonly e2eeManager?: unknown;
}

interface RtcNodeParticipant extends SdkParticipant {
  readonly sid: string | undefined;
}

interface RtcNodeLocalParticipant extends RtcNodeParticipant, SdkLocalParticipant {
  publishData(data: Uint8Array, options: { reliable: boolean; topic: string; destination_identities: string[] }): Promise<void>;
}

interface StreamInfo {
  readonly streamId: string;
  readonly topic: string;
  readonly totalSize?: number | undefined;
  readonly attributes?: Readonly<Record<string, string>> | undefined;
}

/** The numbers of the FFI's `ConnectionState`. */
const CONNECTED = 1;
const RECONNECTING = 2;

/** The number of the reliable kind of packets, in the FFI: not that of LiveKit's protocol. */
const RELIABLE = 1;

/** Returns whether this is rtc-node's `Room`. */
export function isRtcNodeRoom(room: object): room is RtcNodeRoom {
  return 'isConnected' in room && 'connectionState' in room && 'remoteParticipants' in room;
}

export class RtcNodePort extends SdkPort<RtcNodeRoom, RtcNodeParticipant, StreamInfo> {
  constructor(room: RtcNodeRoom) {
    requireFunctions({ sdk: '@livekit/rtc-node', oldest: OLDEST_RTC_NODE }, streamFunctions(room));
    super(room);
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

  local(): ReportedParticipant {
    return this.describe(this.localParticipant);
  }

  isAnnounced(): undefined {
    return undefined;
  }

  get isHidden(): boolean {
    return permission(this.localParticipant, 'hidden') === true;
  }

  async publish(bytes: Uint8Array, reliable: boolean, { topic, to }: Destination): Promise<void> {
    await this.localParticipant.publishData(bytes, { reliable, topic, destination_identities: [...to] });
  }

  listen(events: PortEvents): () => void {
    const { room } = this;
    // The SDK has no event for the first connection, except this one. It is emitted before the room's events.
    let isConnected = this.state === 'connected';
    const listeners: Listeners = [
      ...this.commonListeners(events),
      [
        'connectionStateChanged',
        (state: number) => {
          if (state === CONNECTED && !isConnected) {
            isConnected = true;
            events.connected();
          }
        },
      ],
      [
        'disconnected',
        (reason?: number) => {
          isConnected = false;
          events.disconnected(closeReason(reason));
          // `Room.disconnect` removes all listeners next, and the room may be connected again.
          queueMicrotask(() => {
            this.stopListeningTo(listeners);
            if (isListening) this.listenTo(listeners);
          });
        },
      ],
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
    this.listenTo(listeners);
    return () => {
      isListening = false;
      this.stopListeningTo(listeners);
      room.unregisterByteStreamHandler(STREAM_TOPIC);
    };
  }

  protected get localParticipant(): RtcNodeLocalParticipant {
    const local = this.room.localParticipant;
    if (local === undefined) throw new Error('the room has no local participant: it is not connected');
    return local;
  }

  /** Without permissions attributes are not trusted. */
  protected describe(who: RtcNodeParticipant): ReportedParticipant {
    return {
      identity: who.identity,
      sid: who.sid ?? '',
      kind: participantKind(who.kind),
      attributes: who.attributes,
      canUpdateMetadata: permission(who, 'canUpdateMetadata') ?? true,
      canPublishData: permission(who, 'canPublishData') ?? true,
    };
  }
}

/** A permission of a participant, if it is known. The SDK does not make permissions public, but keeps them in `info`. */
function permission(who: RtcNodeParticipant, name: string): boolean | undefined {
  const info: unknown = Reflect.get(who, 'info');
  const permissions: unknown = typeof info === 'object' && info !== null ? Reflect.get(info, 'permission') : undefined;
  const value: unknown = typeof permissions === 'object' && permissions !== null ? Reflect.get(permissions, name) : undefined;
  return typeof value === 'boolean' ? value : undefined;
}
