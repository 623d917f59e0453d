/**
 * The core, as `bindings/README.md` describes it: one state machine that takes inputs and returns outputs, as JSON texts
 * with bytes beside them.
 */
import type { Json, JsonObject } from './json.js';

/** The session of the core. */
export interface CoreSession {
  handle(input: string, bytes?: Uint8Array): string | undefined;
  nextOutput(): string | undefined;
  takeBytes(): Uint8Array | undefined;
  nextDeadline(): number | undefined;
  free(): void;
}

/** The class of the sessions. */
export interface CoreClass {
  create(input: string): CoreSession;
}

/** Loads the core. Called at the first `Client` or `Assistant`, never at import. */
export type LoadCore = () => Promise<CoreClass> | CoreClass;

export interface Peer {
  readonly identity: string;
  readonly sid?: string;
}

export type ParticipantKind = 'standard' | 'agent' | 'other';

export interface CoreParticipant {
  readonly identity: string;
  readonly sid: string;
  readonly kind: ParticipantKind;
  readonly attributes: Readonly<Record<string, string>>;
  readonly can_update_metadata: boolean;
  readonly can_publish_data: boolean;
  readonly admitted?: boolean;
  readonly may_stop?: boolean;
}

export type Consent = 'never' | 'once_per_session' | 'always';
export type Disclose = 'full' | 'name' | 'nothing';
export type BargeIn = 'cancel' | 'finish' | 'report';

/** A tool in the form of the core. */
export interface CoreTool {
  readonly name: string;
  readonly description: string;
  readonly schema?: JsonObject;
  readonly title?: string;
  readonly short_title?: string;
  readonly source?: string;
  readonly output_schema?: Json;
  readonly meta?: Json;
  readonly destructive?: boolean;
  readonly idempotent?: boolean;
  readonly read_only?: boolean;
  readonly open_world?: boolean;
  readonly consent?: Consent;
  readonly timeout?: number;
  readonly patience?: number;
  readonly cancel_grace?: number;
  readonly disclose?: Disclose;
  readonly prefer_client?: boolean;
  readonly barge_in?: BargeIn;
}

export type CallErrorKind =
  | 'tool'
  | 'unknown_tool'
  | 'ambiguous'
  | 'not_bound'
  | 'not_delivered'
  | 'not_allowed'
  | 'timeout'
  | 'lost'
  | 'cancelled'
  | 'detached'
  | 'turn_over'
  | 'too_many_equal'
  | 'too_large'
  | 'too_many_open'
  | 'busy'
  | 'limit'
  | 'arguments'
  | 'closed';

export interface CoreCallError {
  readonly kind: CallErrorKind;
  readonly code: string;
  readonly message: string;
  readonly may_have_run: boolean;
  readonly owner?: string;
  readonly owners?: readonly string[];
  readonly limit?: number;
  readonly size?: number;
  readonly max?: number;
  readonly partial?: Json;
}

export type CloseKind =
  | 'closed'
  | 'duplicate_identity'
  | 'removed'
  | 'room_deleted'
  | 'room_closed'
  | 'server_shutdown'
  | 'connection_lost'
  | 'server'
  | 'token_expired'
  | 'refused';

/** Why a session has ended. */
export interface CloseReason {
  readonly kind: CloseKind;
  /** The cause of `connection_lost`, `server` and `refused`. */
  readonly text?: string;
  /** The reason, for people. */
  readonly message?: string;
}

export type StopReason = 'caller' | 'barge_in' | 'deadline' | 'caller_gone' | 'leaving' | 'lost';

export type ProgressStatus = 'pending' | 'in_progress' | 'completed' | 'failed';

export interface StreamHeader {
  readonly id: string;
  readonly topic: string;
  readonly length: number;
  readonly attributes: Readonly<Record<string, string>>;
}

export interface Transmit {
  readonly type: 'transmit';
  readonly packet: number;
  readonly to: readonly string[];
  readonly broadcast: boolean;
  readonly topic: string;
  readonly lane: 'reliable' | 'lossy';
  readonly overtakes: boolean;
  readonly stream?: StreamHeader;
}

export interface Execute {
  readonly type: 'execute';
  readonly key: number;
  readonly call: string;
  readonly caller: string;
  readonly tool: string;
  readonly arguments: JsonObject;
  readonly deadline: number;
  readonly limit: number;
  readonly meta?: JsonObject;
}

export interface Ask {
  readonly type: 'ask';
  readonly key: number;
  readonly call: string;
  readonly caller: string;
  readonly tool: CoreTool;
  readonly arguments: JsonObject;
  /** What a person is shown. Missing if the arguments are too large. */
  readonly text?: string;
  readonly until: number;
}

export interface Select {
  readonly type: 'select';
  readonly key: number;
  readonly tool?: string;
  readonly candidates: readonly { readonly identity: string; readonly participant?: CoreParticipant; readonly tool?: CoreTool }[];
}

export interface Abort {
  readonly type: 'abort';
  readonly key: number;
  readonly reason: StopReason;
}

export interface Settled {
  readonly type: 'settled';
  readonly key: number;
  readonly value?: Json;
  readonly error?: CoreCallError;
}

export interface CoreEvent {
  readonly type: 'event';
  readonly event: string;
  readonly [field: string]: Json;
}

export type Output = Transmit | Execute | Ask | Select | Abort | Settled | CoreEvent;

export interface Offer {
  readonly owner: string;
  readonly reach?: Json;
  readonly tool: CoreTool;
}

export interface LateResult {
  readonly call: string;
  readonly tool: string;
  readonly owner?: string;
  readonly value?: Json;
  readonly error?: CoreCallError;
  readonly took: number;
  readonly event?: Json;
}

export type Reply =
  | { readonly type: 'offered'; readonly left_out: readonly { readonly tool?: string; readonly why: string }[] }
  | { readonly type: 'called'; readonly key: number; readonly call: string }
  | { readonly type: 'refused'; readonly error: CoreCallError }
  | { readonly type: 'turn'; readonly turn: number }
  | { readonly type: 'done' }
  | { readonly type: 'failed'; readonly message: string }
  | { readonly type: 'tools'; readonly tools: readonly Offer[] }
  | { readonly type: 'participants'; readonly participants: readonly CoreParticipant[] }
  | { readonly type: 'stats'; readonly stats: Readonly<Record<string, number>> }
  | {
      readonly type: 'state';
      readonly role: string;
      readonly room: string;
      readonly bound?: string;
      readonly open_calls: number;
      readonly open_jobs: number;
      readonly drained: boolean;
      readonly registrations: number;
    }
  | {
      readonly type: 'readiness';
      readonly readiness: 'ready' | 'not_yet' | 'not_bound' | 'never';
      readonly tools?: readonly CoreTool[];
      readonly message?: string;
    }
  | { readonly type: 'why_not_offered'; readonly error: CoreCallError }
  | { readonly type: 'late_results'; readonly results: readonly LateResult[] }
  | { readonly type: 'is_wanted'; readonly wanted: boolean };
