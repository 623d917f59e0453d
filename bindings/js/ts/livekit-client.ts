/** The room of `livekit-client`, in browsers and React Native. */
import type { CoreParticipant, StreamHeader } from './core.js';
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
export const OLDEST_LIVEKIT_CLIENT = '2.22.0';

/** The part of livekit-client's `Room` that is used. */
export interface LiveKitClientRoom {
  readonly state: string;
  readonly name: string;
  readonly options: { readonly encryption?: unknown; readonly disconnectOnPageLeave?: boolean };
  readonly localParticipant: LiveKitClientLocalParticipant;
  readonly remoteParticipants: ReadonlyMap<string, LiveKitClientParticipant>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  off(event: string, listener: (...args: never[]) => void): unknown;
  registerByteStreamHandler(topic: string, handler: (reader: Reader, from: { identity: string }) => void): void;
  unregisterByteStreamHandler(topic: string): void;
}

interface LiveKitClientParticipant {
  readonly identity: string;
  readonly sid: string;
  readonly kind: number;
  readonly attributes: Readonly<Record<string, string>>;
  readonly permissions?: { readonly canPublishData: boolean; readonly canUpdateMetadata: boolean } | undefined;
}

interface LiveKitClientLocalParticipant extends LiveKitClientParticipant {
  readonly isActive: boolean;
  publishData(data: Uint8Array<ArrayBuffer>, options: { reliable: boolean; topic: string; destinationIdentities: string[] }): Promise<void>;
  streamBytes(options: {
    streamId: string;
    name: string;
    topic: string;
    totalSize: number;
    attributes: Record<string, string>;
    destinationIdentities: string[];
  }): Promise<{ write(bytes: Uint8Array): Promise<void>; close(): Promise<void> }>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  off(event: string, listener: (...args: never[]) => void): unknown;
}

interface Reader extends AsyncIterable<Uint8Array> {
  readonly info: {
    readonly id: string;
    readonly topic: string;
    readonly size?: number | undefined;
    readonly attributes?: Readonly<Record<string, string>> | undefined;
    readonly encryptionType?: number | undefined;
  };
}

/** The number of LiveKit's reliable kind of packets. */
const RELIABLE = 1;

/** The number of LiveKit's encryption type of packets that are not encrypted. */
const NOT_ENCRYPTED = 0;

/** The bytes that end-to-end encryption adds to a packet, with its envelope. */
const ENCRYPTION_OVERHEAD = 44;

/**
 * The part of a stream that is passed to the SDK at once, in bytes: ten of its chunks. Between two parts a stream that is
 * no longer wanted ends.
 */
const STREAM_PART = 150_000;

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
export function checkLiveKitClient(room: LiveKitClientRoom): void {
  const missing = [
    typeof room.registerByteStreamHandler === 'function' ? undefined : 'Room.registerByteStreamHandler',
    typeof room.unregisterByteStreamHandler === 'function' ? undefined : 'Room.unregisterByteStreamHandler',
    typeof room.localParticipant.streamBytes === 'function' ? undefined : 'LocalParticipant.streamBytes',
    room.remoteParticipants instanceof Map ? undefined : 'Room.remoteParticipants',
  ].filter((name) => name !== undefined);
  if (missing.length > 0) throw tooOld('livekit-client', OLDEST_LIVEKIT_CLIENT, foundVersion(), missing);
}

/** The error about an SDK that is too old. A room does not tell its version, so what it lacks is named too. */
export function tooOld(sdk: string, oldest: string, found: string | undefined, missing: readonly string[]): Error {
  const version = found === undefined ? 'an older version' : `version ${found}`;
  return new Error(`${sdk} ${oldest} or later is required, but this room is of ${version} (without ${missing.join(', ')})`);
}

/** The version of livekit-client, if the page loaded it with a script tag: otherwise nothing shows it. */
function foundVersion(): string | undefined {
  const sdk: unknown = Reflect.get(globalThis, 'LivekitClient');
  if (typeof sdk !== 'object' || sdk === null || !('version' in sdk)) return undefined;
  return typeof sdk.version === 'string' ? sdk.version : undefined;
}

export class LiveKitClientPort implements RoomPort {
  readonly room: LiveKitClientRoom;

  constructor(room: LiveKitClientRoom) {
    checkLiveKitClient(room);
    this.room = room;
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

  local(): CoreParticipant {
    return describe(this.room.localParticipant);
  }

  isAnnounced(): boolean {
    return this.room.localParticipant.isActive;
  }

  participants(): readonly CoreParticipant[] {
    return [...this.room.remoteParticipants.values()].map(describe);
  }

  participant(identity: string): CoreParticipant | undefined {
    const found = this.room.remoteParticipants.get(identity);
    return found === undefined ? undefined : describe(found);
  }

  async publish(bytes: Uint8Array, reliable: boolean, { topic, to }: Destination): Promise<void> {
    await this.room.localParticipant.publishData(bytes as Uint8Array<ArrayBuffer>, {
      reliable,
      topic,
      destinationIdentities: [...to],
    });
  }

  async sendStream(bytes: Uint8Array, header: StreamHeader, { to }: Destination, isWanted: () => boolean): Promise<void> {
    const writer = await this.room.localParticipant.streamBytes({
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

  listen(events: PortEvents): () => void {
    const { room } = this;
    const { localParticipant } = room;
    const changed = (who: LiveKitClientParticipant) => events.changed(who.identity);
    const changedSecond = (_: unknown, who: LiveKitClientParticipant) => events.changed(who.identity);
    const active = () => events.changed(localParticipant.identity);
    const listeners: readonly [string, (...args: never[]) => void][] = [
      ['connected', () => events.connected()],
      ['reconnecting', () => events.reconnecting()],
      ['signalReconnecting', () => events.reconnecting()],
      ['reconnected', () => events.reconnected()],
      ['disconnected', (reason?: number) => events.disconnected(closeReason(reason))],
      ['participantConnected', changed],
      ['participantDisconnected', changed],
      ['participantActive', changed],
      ['participantPermissionsChanged', changedSecond],
      ['participantAttributesChanged', changedSecond],
      ['participantMetadataChanged', changedSecond],
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
    for (const [event, listener] of listeners) room.on(event, listener);
    localParticipant.on('active', active);
    return () => {
      for (const [event, listener] of listeners) room.off(event, listener);
      localParticipant.off('active', active);
      room.unregisterByteStreamHandler(STREAM_TOPIC);
    };
  }

  /**
   * The SDK disconnects at the same events. Its listeners may be older, so these are called in the capturing phase, which
   * comes first.
   */
  onPageLeave(leave: () => void): () => void {
    if (typeof window === 'undefined' || typeof window.addEventListener !== 'function') return () => {};
    const names = this.room.options.disconnectOnPageLeave === false ? ['pagehide'] : ['pagehide', 'beforeunload', 'freeze'];
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
    for (const name of names) {
      window.addEventListener(name, first, { capture: true });
      window.addEventListener(name, second, { capture: true });
    }
    return () => {
      for (const name of names) {
        window.removeEventListener(name, first, { capture: true });
        window.removeEventListener(name, second, { capture: true });
      }
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

/** Permissions are unknown for a moment after a participant has connected: its attributes are not trusted then. */
function describe(who: LiveKitClientParticipant): CoreParticipant {
  return {
    identity: who.identity,
    sid: who.sid,
    kind: participantKind(who.kind),
    attributes: who.attributes,
    can_update_metadata: who.permissions?.canUpdateMetadata ?? true,
    can_publish_data: who.permissions?.canPublishData ?? true,
  };
}
