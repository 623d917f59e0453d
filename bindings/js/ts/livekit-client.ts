/** The room of `livekit-client`, in browsers and React Native. */
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
export const OLDEST_LIVEKIT_CLIENT = '2.22.0';

/** The part of livekit-client's `Room` that is used. */
export interface LiveKitClientRoom extends SdkRoom<LiveKitClientParticipant, StreamInfo> {
  readonly state: string;
  readonly name: string;
  readonly options: { readonly encryption?: unknown; readonly disconnectOnPageLeave?: boolean };
  readonly localParticipant: LiveKitClientLocalParticipant;
}

interface LiveKitClientParticipant extends SdkParticipant {
  readonly sid: string;
  readonly permissions?: { readonly canPublishData: boolean; readonly canUpdateMetadata: boolean; readonly hidden: boolean } | undefined;
}

interface LiveKitClientLocalParticipant extends LiveKitClientParticipant, SdkLocalParticipant {
  readonly isActive: boolean;
  publishData(data: Uint8Array<ArrayBuffer>, options: { reliable: boolean; topic: string; destinationIdentities: string[] }): Promise<void>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  off(event: string, listener: (...args: never[]) => void): unknown;
}

interface StreamInfo {
  readonly id: string;
  readonly topic: string;
  readonly size?: number | undefined;
  readonly attributes?: Readonly<Record<string, string>> | undefined;
  readonly encryptionType?: number | undefined;
}

/** The number of the reliable kind of packets, in LiveKit's protocol. */
const RELIABLE = 0;

/** The number of LiveKit's encryption type of packets that are not encrypted. */
const NOT_ENCRYPTED = 0;

/**
 * How long a page waits when it goes away after it has sent the goodbye, in milliseconds. The SDK tells the server next
 * that it leaves, over another connection, and closes the one that has the goodbye.
 */
const LEAVE_PAUSE = 20;

/** Returns whether this is livekit-client's `Room`: it has a local participant before it is connected. */
export function isLiveKitClientRoom(room: object): room is LiveKitClientRoom {
  return 'switchActiveDevice' in room && 'state' in room && 'localParticipant' in room;
}

/** @throws Error with both versions if the SDK is too old. */
function check(room: LiveKitClientRoom): void {
  requireFunctions(
    { sdk: 'livekit-client', oldest: OLDEST_LIVEKIT_CLIENT, found: foundVersion() },
    {
      ...streamFunctions(room),
      'LocalParticipant.streamBytes': typeof room.localParticipant.streamBytes === 'function',
      'Room.remoteParticipants': room.remoteParticipants instanceof Map,
    },
  );
}

/** The version of livekit-client, if the page loaded it with a script tag: otherwise nothing shows it. */
function foundVersion(): string | undefined {
  const sdk: unknown = Reflect.get(globalThis, 'LivekitClient');
  if (typeof sdk !== 'object' || sdk === null || !('version' in sdk)) return undefined;
  return typeof sdk.version === 'string' ? sdk.version : undefined;
}

export class LiveKitClientPort extends SdkPort<LiveKitClientRoom, LiveKitClientParticipant, StreamInfo> {
  constructor(room: LiveKitClientRoom) {
    check(room);
    super(room);
  }

  get state(): RoomState {
    switch (this.room.state) {
      case 'connected':
      case 'connecting':
      case 'disconnected':
        return this.room.state;
      default:
        return 'reconnecting'; // reconnecting, signalReconnecting
    }
  }

  get name(): string {
    return this.room.name;
  }

  get overhead(): number {
    return this.#isEncrypted ? ENCRYPTION_OVERHEAD : 0;
  }

  /** Whether data is encrypted. The older option `e2ee` encrypts media only. */
  get #isEncrypted(): boolean {
    return this.room.options.encryption !== undefined && this.room.options.encryption !== null;
  }

  local(): ReportedParticipant {
    return this.describe(this.room.localParticipant);
  }

  isAnnounced(): boolean {
    return this.room.localParticipant.isActive;
  }

  get isHidden(): boolean {
    return this.room.localParticipant.permissions?.hidden === true;
  }

  async publish(bytes: Uint8Array, reliable: boolean, { topic, to }: Destination): Promise<void> {
    await this.localParticipant.publishData(bytes as Uint8Array<ArrayBuffer>, {
      reliable,
      topic,
      destinationIdentities: [...to],
    });
  }

  listen(events: PortEvents): () => void {
    const { room, localParticipant } = this;
    const active = () => events.changed(localParticipant.identity);
    const listeners: Listeners = [
      ...this.commonListeners(events),
      ['connected', () => events.connected()],
      ['signalReconnecting', () => events.reconnecting()],
      ['disconnected', (reason?: number) => events.disconnected(closeReason(reason))],
      ['participantActive', (who: LiveKitClientParticipant) => events.changed(who.identity)],
      ['participantPermissionsChanged', (_: unknown, who: LiveKitClientParticipant) => events.changed(who.identity)],
      [
        'dataReceived',
        (
          bytes: Uint8Array,
          who?: LiveKitClientParticipant,
          kind?: number,
          topic?: string,
          encryptionType?: number,
          identity?: string,
        ) => {
          const from = who?.identity ?? (identity === '' ? undefined : identity);
          if (this.#isEncrypted && encryptionType === NOT_ENCRYPTED) return events.unreadable(from, 'not_encrypted');
          events.packet({
            bytes,
            lane: kind === RELIABLE ? 'reliable' : 'lossy',
            ...(from !== undefined && { from }),
            ...(topic !== undefined && { topic }),
          });
        },
      ],
    ];
    // First, because it throws if the topic is taken.
    room.registerByteStreamHandler(STREAM_TOPIC, (reader, { identity }) => {
      // Now, because the SDK adds the attributes of the trailer later, which any participant may have sent.
      const { id, topic, size, attributes, encryptionType } = reader.info;
      if (this.#isEncrypted && encryptionType === NOT_ENCRYPTED) return events.unreadable(identity, 'not_encrypted');
      events.stream({ from: identity, id, topic, attributes: attributes ?? {}, chunks: reader, ...(size !== undefined && { length: size }) });
    });
    this.listenTo(listeners);
    localParticipant.on('active', active);
    return () => {
      this.stopListeningTo(listeners);
      localParticipant.off('active', active);
      room.unregisterByteStreamHandler(STREAM_TOPIC);
    };
  }

  /**
   * The SDK disconnects at the same events. Its listeners may be older, so these are called in the capturing phase, which
   * comes first. A frozen page, whose events do not bubble to the window, stays connected: it returns at `resume`.
   */
  onPageLeave(leave: () => void, back: () => void): () => void {
    if (typeof window === 'undefined' || typeof window.addEventListener !== 'function') return () => {};
    const leaving = ['pagehide', 'freeze', ...(this.room.options.disconnectOnPageLeave === false ? [] : ['beforeunload'])];
    const returning = ['pageshow', 'resume'];
    let hasLeft = false;
    const first = () => {
      hasLeft = this.state === 'connected';
      leave();
    };
    // The packets are sent between these two, in microtasks.
    const second = () => {
      if (hasLeft) pause(LEAVE_PAUSE);
      hasLeft = false;
    };
    const listeners = [...leaving.flatMap((name) => [[name, first], [name, second]] as const), ...returning.map((name) => [name, back] as const)];
    for (const [name, listener] of listeners) window.addEventListener(name, listener, { capture: true });
    return () => {
      for (const [name, listener] of listeners) window.removeEventListener(name, listener, { capture: true });
    };
  }

  protected get localParticipant(): LiveKitClientLocalParticipant {
    return this.room.localParticipant;
  }

  /** Permissions are unknown for a moment after a participant has connected: its attributes are not trusted then. */
  protected describe(who: LiveKitClientParticipant): ReportedParticipant {
    return {
      identity: who.identity,
      sid: who.sid,
      kind: participantKind(who.kind),
      attributes: who.attributes,
      canUpdateMetadata: who.permissions?.canUpdateMetadata ?? true,
      canPublishData: who.permissions?.canPublishData ?? true,
    };
  }
}

/** Waits without giving anything else a turn. */
function pause(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end) {
    // Nothing else can wait while a page is unloaded.
  }
}
