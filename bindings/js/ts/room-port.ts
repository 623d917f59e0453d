/** What a participant needs of a room: the adapters of both SDKs, and rooms of your own, implement it. */
import type { CloseReason, ReportedParticipant, Peer, StreamInfo } from './core.js';

export type RoomState = 'disconnected' | 'connecting' | 'connected' | 'reconnecting';

/** A packet that arrived. */
export interface ReceivedPacket {
  /** Missing if the SDK names no sender. */
  readonly from?: string;
  readonly lane: 'reliable' | 'lossy';
  readonly topic?: string;
  readonly bytes: Uint8Array;
}

/** A byte stream that begins to arrive. */
export interface ReceivedStream {
  readonly from: string;
  readonly id: string;
  readonly topic: string;
  /** Missing if the sender does not say. */
  readonly length?: number;
  /** Those of the header, not of the trailer: the core checks the content by its hash in them. */
  readonly attributes: Readonly<Record<string, string>>;
  /** Ends when the stream is complete, and throws if it was cut off. Returning early ends the reading. */
  readonly chunks: AsyncIterable<Uint8Array>;
}

export interface PortEvents {
  connected(): void;
  reconnecting(): void;
  reconnected(): void;
  disconnected(reason: CloseReason): void;
  /** Something about this participant has changed: it joined, left, or its description is another one. */
  changed(identity: string): void;
  packet(packet: ReceivedPacket): void;
  stream(stream: ReceivedStream): void;
  unreadable(from: string | undefined, why: 'encrypted' | 'not_encrypted' | 'undecryptable'): void;
}

export interface Destination {
  readonly topic: string;
  /** Empty: everybody. */
  readonly to: readonly string[];
}

export interface RoomPort {
  /** The object that identifies the room: one participant of toolbridge may use it at a time. */
  readonly room: object;
  readonly state: RoomState;
  readonly name: string;
  /** The bytes by which the SDK makes each packet larger (end-to-end encryption). */
  readonly overhead: number;
  /** The local participant, in its current join. Called only while the room is connected or reconnecting. */
  local(): ReportedParticipant;
  /**
   * Whether the server has described the local participant, and so announced it to the others. `undefined` if the SDK does not
   * tell: the core assumes it after a while, or when a packet arrives.
   */
  isAnnounced(): boolean | undefined;
  /** Whether the token hides the local participant from the others. Missing if the SDK does not tell. */
  readonly isHidden?: boolean;
  /** The other participants in the room. */
  participants(): readonly ReportedParticipant[];
  participant(identity: string): ReportedParticipant | undefined;
  /** Publishes a packet. Resolves when the SDK has taken it. Packets of one lane are published one after the other. */
  publish(bytes: Uint8Array, reliable: boolean, to: Destination): Promise<void>;
  /** Sends a byte stream. `isWanted` is asked between its parts: if it returns false, the rest need not be sent. */
  sendStream(bytes: Uint8Array, header: StreamInfo, to: Destination, isWanted: () => boolean): Promise<void>;
  /** Reports events until the returned function is called. */
  listen(events: PortEvents): () => void;
  /**
   * Calls `leave` as early as possible when the page goes away or is frozen, and `back` when it runs again. Returns what ends
   * that.
   */
  onPageLeave?(leave: () => void, back: () => void): () => void;
}

/** The topic of the byte streams that carry large frames. */
export const STREAM_TOPIC = 'toolbridge.frame';

/** Returns whether this is a port and not an SDK's room. */
export function isPort(room: object): room is RoomPort {
  return 'listen' in room && 'sendStream' in room && 'publish' in room;
}

export function peer(port: RoomPort, identity: string): Peer {
  const known = port.participant(identity);
  return known === undefined ? { identity } : { identity, sid: known.sid };
}

/** The reasons of LiveKit's `DisconnectReason`, which both SDKs share, by their numbers. */
export function closeReason(reason: number | undefined): CloseReason {
  switch (reason) {
    case 1: // CLIENT_INITIATED
      return { kind: 'closed' };
    case 2: // DUPLICATE_IDENTITY
      return { kind: 'duplicate_identity' };
    case 3: // SERVER_SHUTDOWN
      return { kind: 'server_shutdown' };
    case 4: // PARTICIPANT_REMOVED
      return { kind: 'removed' };
    case 5: // ROOM_DELETED
      return { kind: 'room_deleted' };
    case 10: // ROOM_CLOSED
      return { kind: 'room_closed' };
    case 6: // STATE_MISMATCH
      return { kind: 'server', text: 'the state of the connection does not match the server’s' };
    case 7: // JOIN_FAILURE
      return { kind: 'refused', text: 'the join failed' };
    case 9: // SIGNAL_CLOSE
      return { kind: 'connection_lost', text: 'the signaling connection was closed' };
    case 14: // CONNECTION_TIMEOUT
      return { kind: 'connection_lost', text: 'the connection timed out' };
    case 15: // MEDIA_FAILURE
      return { kind: 'connection_lost', text: 'the peer connection failed' };
    case undefined:
    case 0:
      return { kind: 'connection_lost', text: 'the SDK gave no reason' };
    default:
      return { kind: 'server', text: `the server ended the connection (reason ${reason})` };
  }
}

/** The kinds of LiveKit's `ParticipantKind`, which both SDKs share, by their numbers. */
export function participantKind(kind: number | undefined): ReportedParticipant['kind'] {
  return kind === undefined || kind === 0 ? 'standard' : kind === 4 ? 'agent' : 'other';
}
