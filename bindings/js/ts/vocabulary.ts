/** The vocabulary of the core. Written by bindings/vocabulary; do not edit. */
import type { Json, JsonObject } from './json.js';

/** LiveKit's kind of a participant. */
export type ParticipantKind = 'standard' | 'agent' | 'other';

/** Whether packets can be exchanged with the room. */
export type ConnectionState = 'connected' | 'reconnecting';

/** The LiveKit data channel that carries a packet. */
export type Lane = 'reliable' | 'lossy';

/** The role that a token proves. */
export type TokenRole = 'client' | 'assistant' | 'observer';

/** The role of the local participant. */
export type Role = 'assistant' | 'client';

/** Whether a person is asked before a tool runs. */
export type Consent = 'never' | 'once_per_session' | 'always';

/** How much of a call that the assistant runs is shown to the room. */
export type Disclose = 'full' | 'name' | 'nothing';

/** What happens to a running call when its turn is interrupted. */
export type BargeIn = 'cancel' | 'finish' | 'report';

/** The state of a running tool. */
export type ProgressStatus = 'pending' | 'in_progress' | 'completed' | 'failed';

/** The side that runs a tool. */
export type Execution = 'client' | 'server' | 'either';

/** Why a job is stopped. */
export type StopReason = 'caller' | 'barge_in' | 'deadline' | 'caller_gone' | 'leaving' | 'lost';

/** Whether a participant can be called. */
export type Readiness = 'ready' | 'silent' | 'not_yet' | 'not_bound' | 'never';

/** Why no assistant accepts a client's tools. */
export type UnacceptedReason = 'refused' | 'no_assistant' | 'not_assistant';

/** The kind of reason why a call has no value. */
export type CallErrorKind = 'tool' | 'unknown_tool' | 'ambiguous' | 'not_bound' | 'not_delivered' | 'not_allowed' | 'timeout' | 'lost' | 'cancelled' | 'detached' | 'turn_over' | 'too_many_equal' | 'too_large' | 'too_many_open' | 'busy' | 'limit' | 'arguments' | 'bad_command' | 'closed' | 'other';

/** The kind of reason why a connection ended. */
export type CloseKind = 'closed' | 'duplicate_identity' | 'removed' | 'room_deleted' | 'room_closed' | 'server_shutdown' | 'connection_lost' | 'server' | 'token_expired' | 'refused';

/** One participant during one join. */
export interface Peer {
  /** The identity. */
  readonly identity: string;
  /** The sid; empty if it is not known. */
  readonly sid?: string;
}

/** A participant as the server describes it. */
export interface CoreParticipant {
  /** The identity. */
  readonly identity: string;
  /** The sid. */
  readonly sid: string;
  /** The kind. */
  readonly kind: ParticipantKind;
  /** The attributes. */
  readonly attributes: Readonly<Record<string, string>>;
  /** The role that its token proves. Not read. */
  readonly role?: TokenRole;
  /** Whether its token lets it change its attributes, so that they prove nothing. Unknown counts as true. */
  readonly canUpdateMetadata: boolean;
  /** Whether its token lets it publish data. */
  readonly canPublishData: boolean;
  /** Assistant: whether the app's own rule admits it as a client. */
  readonly admitted: boolean;
  /** Assistant: whether the app's own rule lets it stop calls. */
  readonly mayStop: boolean;
  /** The client protocol of its SDK. */
  readonly clientProtocol: number;
  /** Whether its SDK reads compressed streams. */
  readonly inflates: boolean;
}

/** A tool's definition. */
export interface CoreTool {
  /** The name. */
  readonly name: string;
  /** The description, for a model or a person. */
  readonly description: string;
  /** The JSON Schema of its arguments. Without one, any object. */
  readonly inputSchema?: JsonObject;
  /** The name for people. */
  readonly title?: string;
  /** The title that the hints of its system have. */
  readonly shortTitle?: string;
  /** The system or server that it comes from. */
  readonly source?: string;
  /** The JSON Schema of its result. */
  readonly outputSchema?: Json;
  /** What its system says of it beyond all this. */
  readonly meta?: JsonObject;
  /** Whether its effect cannot be undone. */
  readonly destructive?: boolean;
  /** Whether a second run has no further effect. */
  readonly idempotent?: boolean;
  /** Whether it changes nothing. */
  readonly readOnly?: boolean;
  /** Whether it reaches systems that its author does not know. */
  readonly openWorld?: boolean;
  /** Whether a person is asked before it runs. Without it: always if it is destructive, else never. */
  readonly consent?: Consent;
  /** The longest time of one run, in milliseconds. Without it, the caller's limit. */
  readonly timeoutMs?: number;
  /** The time limit of a call whose caller sets none, in milliseconds. */
  readonly patienceMs?: number;
  /** How long a cancelled run may clean up, in milliseconds: for the shell, which gives 1,000 without it. */
  readonly cancelGraceMs?: number;
  /** Of an assistant's own tool: how much of a call is shown to the room. */
  readonly disclose?: Disclose;
  /** Of an assistant's own tool: whether clients that offer a tool of this name may run the call instead. */
  readonly preferClient?: boolean;
  /** What happens to a running call when its turn is interrupted. */
  readonly bargeIn?: BargeIn;
}

/** Why a call has no value. */
export interface CoreCallError {
  /** The kind. */
  readonly kind: CallErrorKind;
  /** The code that events and recordings show. Of a failed tool, its own. */
  readonly code: string;
  /** The text for people: without what is for the model alone. */
  readonly message: string;
  /** The text for a model, if it is another one: the tool's own words, or what happened and what to do, without names of participants. */
  readonly forModel?: string;
  /** Whether the tool may have run. If not, a retry is safe. */
  readonly mayHaveRun: boolean;
  /** The participant that was asked, of `lost` and `busy`. */
  readonly owner?: string;
  /** The participants that are meant, of `ambiguous` and `not_bound`. */
  readonly owners?: readonly string[];
  /** The time limit, in milliseconds, of `timeout` and `not_delivered`; of `limit`, the longest that is allowed. */
  readonly limitMs?: number;
  /** The size of the request, in bytes, of `too_large`. */
  readonly size?: number;
  /** The largest size, in bytes, of `too_large`. */
  readonly max?: number;
  /** The partial result of a failed tool, or the data of its error. */
  readonly partial?: Json;
  /** The number of the error that a method of LiveKit's RPC raised, of `tool`. */
  readonly rpcCode?: number;
}

/** Why a connection ended. */
export interface CloseReason {
  /** The kind of reason. */
  readonly kind: CloseKind;
  /** The cause, of `connection_lost`, `server` and `refused`. */
  readonly text?: string;
  /** What happened and what to do, for people. Not read. */
  readonly message?: string;
}

/** How a packet is sent that is too large for one. */
export interface StreamInfo {
  /** The stream's id. */
  readonly id: string;
  /** The topic. */
  readonly topic: string;
  /** The size, in bytes. */
  readonly length: number;
  /** The attributes of its header. */
  readonly attributes: Readonly<Record<string, string>>;
}

/** A candidate for a selection. */
export interface Candidate {
  /** The identity. */
  readonly identity: string;
  /** The participant, if it was announced. */
  readonly participant?: CoreParticipant;
  /** The tool as it registered it. */
  readonly tool?: CoreTool;
}

/** A tool that cannot be offered. */
export interface LeftOut {
  /** The tool, if the reason is about one. */
  readonly tool?: string;
  /** The reason. */
  readonly why: string;
}

/** A tool in the form that all model APIs accept. */
export interface ModelTool {
  /** The name for a model. A call by it has `model`. */
  readonly name: string;
  /** The description. It also says what the schema cannot. */
  readonly description: string;
  /** The JSON Schema of the arguments. */
  readonly inputSchema: JsonObject;
  /** The tool's own name. */
  readonly tool: string;
  /** The participants that offer it. With several, a call names one in `to`, or the assistant chooses. */
  readonly owners: readonly string[];
}

/** A tool that can be called. */
export interface Offer {
  /** The participant that offers it. */
  readonly owner: string;
  /** The side that runs it. */
  readonly execution: Execution;
  /** How the owner is called now, if it can be. */
  readonly reach?: string;
  /** The tool. */
  readonly tool: CoreTool;
}

/** The outcome of a call that a barge-in left running. */
export interface LateResult {
  /** The caller's name of it, if it is remembered. */
  readonly id?: number;
  /** The call's id. */
  readonly call: string;
  /** The tool. */
  readonly tool: string;
  /** The participant that ran it. */
  readonly owner?: string;
  /** The result. */
  readonly value?: Json;
  /** The failure. */
  readonly error?: CoreCallError;
  /** The time between the call and its end, in milliseconds. */
  readonly tookMs: number;
  /** The parameters of a reported event. */
  readonly event?: Json;
}

/** An instruction of the core. */
export type Output =
  /** Send this packet. */
  | {
    readonly type: 'transmit';
    /** The packet's key. */
    readonly packet: number;
    /** The identities that get it. Empty only in a broadcast. */
    readonly to: readonly string[];
    /** Whether it is for the whole room. */
    readonly broadcast: boolean;
    /** The topic. */
    readonly topic: string;
    /** The lane. */
    readonly lane: Lane;
    /** Whether it may be sent before larger ones that wait. */
    readonly overtakes: boolean;
    /** The byte stream as which it is sent, if it is too large for one packet. */
    readonly stream?: StreamInfo;
  }
  /** Run this tool. */
  | {
    readonly type: 'execute';
    /** The job. */
    readonly key: number;
    /** The call's id. */
    readonly call: string;
    /** The caller. */
    readonly caller: string;
    /** The tool. */
    readonly tool: string;
    /** The arguments: an object. */
    readonly arguments: JsonObject;
    /** When the job times out. */
    readonly endsAtMs: number;
    /** The whole time limit, in milliseconds. */
    readonly limitMs: number;
    /** The metadata of the request. */
    readonly meta: JsonObject;
  }
  /** Ask a person, and answer by `consent`. The arguments are checked first: `settle` with `invalid_parameters` answers, too. */
  | {
    readonly type: 'ask';
    /** The question. */
    readonly key: number;
    /** The call's id. */
    readonly call: string;
    /** The caller. */
    readonly caller: string;
    /** The tool. */
    readonly tool: CoreTool;
    /** The arguments: an object. */
    readonly arguments: JsonObject;
    /** What a person is shown: who calls, the tool and all arguments, with control and invisible characters as escapes. None if the arguments have more than 16 KiB so: nobody reads more, so the question must be refused. */
    readonly text?: string;
    /** When a missing answer becomes a refusal. */
    readonly untilMs: number;
  }
  /** Select a participant, and answer by `select`. */
  | {
    readonly type: 'select';
    /** The selection. */
    readonly key: number;
    /** The tool. None if a client selects its assistant. */
    readonly tool?: string;
    /** The candidates. */
    readonly candidates: readonly Candidate[];
  }
  /** Stop this job, or withdraw its question. Its outcome is ignored. */
  | {
    readonly type: 'abort';
    /** The job. */
    readonly key: number;
    /** The reason. */
    readonly reason: StopReason;
  }
  /** A call of this participant has made progress. */
  | {
    readonly type: 'progress';
    /** The call. */
    readonly id: number;
    /** Its id in the room. */
    readonly call: string;
    /** The state of the tool. */
    readonly status: ProgressStatus;
    /** A text. */
    readonly message?: string;
    /** Structured content. */
    readonly content?: Json;
  }
  /** A call has ended: with a value or an error. */
  | {
    readonly type: 'result';
    /** The call. */
    readonly id: number;
    /** The value. */
    readonly value?: Json;
    /** What the model reads of the value, at most 32 KiB, unless that is the value itself. */
    readonly forModel?: string;
    /** Whether a model has to run, if there is a text for it. */
    readonly needsModel?: boolean;
    /** A text to speak exactly. */
    readonly spoken?: string;
    /** The error. */
    readonly error?: CoreCallError;
  }
  /** Something happened. */
  | {
    readonly type: 'event';
    readonly event: string;
    readonly [field: string]: Json;
  };

/** What an input or a query returns. */
export type Reply =
  /** The tools are offered, except these. Without `partial` nothing has changed if there is one. */
  | {
    readonly type: 'offered';
    /** The tools that are not offered. */
    readonly leftOut: readonly LeftOut[];
  }
  /** It is done. */
  | {
    readonly type: 'done';
  }
  /** It could not be done. */
  | {
    readonly type: 'failed';
    /** The reason. */
    readonly message: string;
  }
  /** The tools that can be called. */
  | {
    readonly type: 'tools';
    /** The tools. */
    readonly tools: readonly Offer[];
  }
  /** The tools that can be called, as models get them. */
  | {
    readonly type: 'model_tools';
    /** The tools, sorted by their own names. Of several owners that describe a tool differently, each has one. */
    readonly tools: readonly ModelTool[];
    /** The tools that no model can call. */
    readonly leftOut: readonly LeftOut[];
  }
  /** The announced participants. */
  | {
    readonly type: 'participants';
    /** The participants. */
    readonly participants: readonly CoreParticipant[];
  }
  /** The counters that are not 0. */
  | {
    readonly type: 'stats';
    /** The counters. */
    readonly stats: Readonly<Record<string, number>>;
  }
  /** The state of the session. */
  | {
    readonly type: 'state';
    /** The local participant's role. */
    readonly role: Role;
    /** The room's name. */
    readonly room: string;
    /** The bound assistant. */
    readonly bound?: string;
    /** Calls that are not settled. */
    readonly openCalls: number;
    /** Running jobs. */
    readonly openJobs: number;
    /** Whether nothing is open. */
    readonly drained: boolean;
    /** Grows when the readiness of a participant may have changed. */
    readonly registrations: number;
  }
  /** The last settled calls and the open ones. */
  | {
    readonly type: 'records';
    /** The records. */
    readonly records: readonly JsonObject[];
  }
  /** The record of one call. */
  | {
    readonly type: 'record';
    /** The record, if there is one. */
    readonly record?: JsonObject;
  }
  /** Whether a participant is ready for calls. */
  | {
    readonly type: 'readiness';
    /** Whether it is. */
    readonly readiness: Readiness;
    /** The tools of one that is ready. */
    readonly tools?: readonly CoreTool[];
    /** Why it is not. */
    readonly message?: string;
  }
  /** Why a tool is not offered. */
  | {
    readonly type: 'why_not_offered';
    /** The error that a call would get. */
    readonly error: CoreCallError;
  }
  /** The late results. */
  | {
    readonly type: 'late_results';
    /** The results. */
    readonly results: readonly LateResult[];
  }
  /** Answers a part of a byte stream. */
  | {
    readonly type: 'stream';
    /** Whether the rest is to be read. */
    readonly wanted: boolean;
  }
  /** Whether a packet must still be sent. */
  | {
    readonly type: 'is_wanted';
    /** Whether it must. */
    readonly wanted: boolean;
  };

/** The events of the core that are passed on, by the names for `on`. Times are in milliseconds. */
export interface CoreEvents {
  /** A participant joined. */
  joined: {
    /** The participant. */
    readonly participant: CoreParticipant;
  };
  /** A participant left. */
  left: {
    /** The participant. */
    readonly peer: Peer;
  };
  /** The tools of a participant have changed. */
  toolsChanged: {
    /** The participant. */
    readonly owner: string;
    /** The names of all tools that it offers now. */
    readonly tools: readonly string[];
  };
  /** Client: the bound assistant has changed. */
  bound: {
    /** The assistant, if one is bound. */
    readonly assistant?: string;
  };
  /** Client: several participants may be the assistant. */
  ambiguousAssistant: {
    /** The participants. */
    readonly candidates: readonly string[];
  };
  /** Client: the assistant answered the registration. */
  registered: {
    /** The assistant. */
    readonly by: string;
    /** How many tools it accepted. */
    readonly tools: number;
    /** What it refused, and why. */
    readonly refused?: string;
  };
  /** Client: no assistant accepts the registration. */
  unaccepted: {
    /** The kind of reason. */
    readonly why: UnacceptedReason;
    /** The participant, if the reason is about one. */
    readonly by?: string;
    /** The reason and what to do. */
    readonly message: string;
  };
  /** Assistant: a participant is not admitted. */
  notAdmitted: {
    /** The participant. */
    readonly client: string;
    /** The reason and what to do. */
    readonly message: string;
  };
  /** The token does not allow the local participant to publish data. */
  notAllowed: {
    /** What to do. */
    readonly message: string;
  };
  /** The connection was lost or restored. */
  connection: {
    /** The state. */
    readonly state: ConnectionState;
  };
  /** A call was requested. */
  requested: {
    /** The caller's name of it, if this participant made it. */
    readonly id?: number;
    /** The call's id. */
    readonly call: string;
    /** The tool. */
    readonly tool: string;
    /** The side that runs it. */
    readonly execution: Execution;
    /** The participant that must answer. */
    readonly owner: string;
    /** The caller. */
    readonly by: string;
  };
  /** The owner has the request. */
  delivered: {
    /** The caller's name of it, if this participant made it. */
    readonly id?: number;
    /** The call's id. */
    readonly call: string;
    /** The owner. */
    readonly owner: string;
  };
  /** A call of another participant has made progress. */
  progress: {
    /** The call's id. */
    readonly call: string;
    /** The state of the tool. */
    readonly status: ProgressStatus;
    /** A text. */
    readonly message?: string;
    /** Structured content. */
    readonly content?: Json;
  };
  /** A call has ended. */
  settled: {
    /** The call's id. */
    readonly call: string;
    /** The tool. */
    readonly tool: string;
    /** The side that ran it. */
    readonly execution: Execution;
    /** The participant that had to answer. */
    readonly owner?: string;
    /** `ok` or an error code. */
    readonly outcome: string;
    /** The time between request and outcome, in milliseconds. */
    readonly tookMs: number;
  };
  /** A local tool failed, and the cause stays in this process. */
  toolFailed: {
    /** The call's id. */
    readonly call: string;
    /** The tool. */
    readonly tool: string;
    /** The cause. */
    readonly cause: string;
  };
  /** A peer reported an error. */
  peerError: {
    /** The peer. */
    readonly by: string;
    /** The code. */
    readonly code: number;
    /** The message. */
    readonly message: string;
    /** Whether the peer can continue. */
    readonly recoverable: boolean;
  };
  /** A participant violated the protocol. */
  violation: {
    /** The participant, if the server named one. */
    readonly by?: string;
    /** The counter. */
    readonly what: string;
    /** How often. */
    readonly times: number;
    /** What was wrong with the first one, or what to do, if its packets cannot be read. */
    readonly message?: string;
  };
  /** Client: the assistant shows the state of a view. */
  view: {
    /** The assistant. */
    readonly by: string;
    /** The view. */
    readonly view: string;
    /** The content; null ends the view. */
    readonly content: Json;
    /** A text that says the same. */
    readonly text?: string;
  };
  /** A call that a barge-in left running has ended. */
  lateResult: {
    /** The caller's name of it. */
    readonly id?: number;
    /** The call's id. */
    readonly call: string;
    /** The tool. */
    readonly tool: string;
    /** The participant that ran it. */
    readonly owner?: string;
    /** `ok` or an error code. */
    readonly outcome: string;
    /** The value, in the line protocol. A session returns it by the query `late_results`, as what follows. */
    readonly value?: Json;
    /** The error. */
    readonly error?: CoreCallError;
    /** The time between the call and its end, in milliseconds. */
    readonly tookMs?: number;
    /** The parameters of a reported event. */
    readonly parameters?: Json;
  };
  /** A consent for the session no longer holds. */
  consentVoid: {
    /** The tool. */
    readonly tool: string;
    /** The caller that had the consent. */
    readonly caller: string;
  };
}

/** Their names. */
export const CORE_EVENTS = [
  'joined', 'left', 'toolsChanged', 'bound', 'ambiguousAssistant', 'registered', 'unaccepted', 'notAdmitted', 'notAllowed',
  'connection', 'requested', 'delivered', 'progress', 'settled', 'toolFailed', 'peerError', 'violation', 'view', 'lateResult',
  'consentVoid',
] as const;

/** The times of a participant, in milliseconds. */
export const TIME_NAMES = [
  'callMs', 'longestCallMs', 'ownerWaitMs', 'graceMs', 'heartbeatMs', 'memoryMs', 'holdMs', 'silenceMs', 'rpcSilenceMs',
  'announcementMs', 'streamIdleMs', 'streamMs', 'claimMs', 'denialMs',
] as const;

/** The limits of a participant: numbers of things, or of bytes. */
export const CAP_NAMES = [
  'equalCalls', 'openPerPeer', 'openCalls', 'openBytes', 'lateResults', 'lateBytes', 'callLog', 'maxPacket', 'maxIncoming',
  'maxFrame', 'maxFrameOfOthers', 'streamsPerPeer', 'streamBytes', 'heldFrames', 'heldBytes', 'heldFramesOfAll',
  'retransmitFrames', 'retransmitBytes', 'idBytes', 'callsPerSecond', 'rpcBytesPerSecond', 'progressPerSecond', 'tableEntries',
  'tableBytes', 'rememberedPeers', 'runningJobs', 'waitingJobs', 'progressBytes', 'messageBytes', 'openQuestions', 'openPrompts',
  'count', 'descriptionBytes', 'schemaBytes', 'registrationBytes',
] as const;

/** Why a call has no value. Each kind has a subclass. */
export class CallError extends Error {
  /** The kind. */
  readonly kind: CallErrorKind;
  /** The code that events and recordings show. Of a failed tool, its own. */
  readonly code: string;
  /** The text for a model, if it is another one: the tool's own words, or what happened and what to do, without names of participants. */
  readonly forModel?: string;
  /** Whether the tool may have run. If not, a retry is safe. */
  readonly mayHaveRun: boolean;

  constructor(error: CoreCallError) {
    super(error.message);
    this.name = new.target.name;
    this.kind = error.kind;
    this.code = error.code;
    if (error.forModel !== undefined) this.forModel = error.forModel;
    this.mayHaveRun = error.mayHaveRun;
  }
}

/** The tool failed, or its owner refused to run it, and reported why. */
export class ToolFailed extends CallError {
  /** The partial result of a failed tool, or the data of its error. */
  readonly partial?: Json;
  /** The number of the error that a method of LiveKit's RPC raised, of `tool`. */
  readonly rpcCode?: number;

  constructor(error: CoreCallError) {
    super(error);
    if (error.partial !== undefined) this.partial = error.partial;
    if (error.rpcCode !== undefined) this.rpcCode = error.rpcCode;
  }
}

/** No participant offers the tool. */
export class UnknownTool extends CallError {}

/** Several clients offer the tool, and the call names none of them. */
export class Ambiguous extends CallError {
  /** The participants that are meant, of `ambiguous` and `not_bound`. */
  readonly owners?: readonly string[];

  constructor(error: CoreCallError) {
    super(error);
    if (error.owners !== undefined) this.owners = error.owners;
  }
}

/** The clients are bound to another assistant, or to none because there are several. */
export class NotBound extends CallError {
  /** The participants that are meant, of `ambiguous` and `not_bound`. */
  readonly owners?: readonly string[];

  constructor(error: CoreCallError) {
    super(error);
    if (error.owners !== undefined) this.owners = error.owners;
  }
}

/** The request never left this process. */
export class NotDelivered extends CallError {}

/** The local token does not allow sending data. */
export class NotAllowed extends CallError {}

/** No result arrived within the limit. */
export class CallTimeout extends CallError {
  /** The time limit, in milliseconds, of `timeout` and `not_delivered`; of `limit`, the longest that is allowed. */
  readonly limitMs?: number;

  constructor(error: CoreCallError) {
    super(error);
    if (error.limitMs !== undefined) this.limitMs = error.limitMs;
  }
}

/** The owner left and did not return in time. */
export class Lost extends CallError {
  /** The participant that was asked, of `lost` and `busy`. */
  readonly owner?: string;

  constructor(error: CoreCallError) {
    super(error);
    if (error.owner !== undefined) this.owner = error.owner;
  }
}

/** The call was cancelled. */
export class Cancelled extends CallError {}

/** The turn was interrupted and the call continues: its result is a late one. */
export class Detached extends CallError {}

/** The turn of this call is over. */
export class TurnOver extends CallError {}

/** The turn has made the same call too often. */
export class TooManyEqual extends CallError {}

/** The request is larger than the limit. */
export class TooLarge extends CallError {
  /** The size of the request, in bytes, of `too_large`. */
  readonly size?: number;
  /** The largest size, in bytes, of `too_large`. */
  readonly max?: number;

  constructor(error: CoreCallError) {
    super(error);
    if (error.size !== undefined) this.size = error.size;
    if (error.max !== undefined) this.max = error.max;
  }
}

/** Too many calls to one client are open. */
export class TooManyOpen extends CallError {}

/** The owner is overloaded. */
export class Busy extends CallError {
  /** The participant that was asked, of `lost` and `busy`. */
  readonly owner?: string;

  constructor(error: CoreCallError) {
    super(error);
    if (error.owner !== undefined) this.owner = error.owner;
  }
}

/** A limit of the call, such as its timeout, is not allowed. */
export class InvalidLimit extends CallError {
  /** The time limit, in milliseconds, of `timeout` and `not_delivered`; of `limit`, the longest that is allowed. */
  readonly limitMs?: number;

  constructor(error: CoreCallError) {
    super(error);
    if (error.limitMs !== undefined) this.limitMs = error.limitMs;
  }
}

/** The arguments cannot be sent. */
export class InvalidArguments extends CallError {}

/** This participant is not in the room, or has left it. */
export class Closed extends CallError {}

/** The classes by kind. A core that is newer than this shell may have further kinds. */
export const CALL_ERRORS: Readonly<Record<string, new (error: CoreCallError) => CallError>> = {
  tool: ToolFailed,
  unknown_tool: UnknownTool,
  ambiguous: Ambiguous,
  not_bound: NotBound,
  not_delivered: NotDelivered,
  not_allowed: NotAllowed,
  timeout: CallTimeout,
  lost: Lost,
  cancelled: Cancelled,
  detached: Detached,
  turn_over: TurnOver,
  too_many_equal: TooManyEqual,
  too_large: TooLarge,
  too_many_open: TooManyOpen,
  busy: Busy,
  limit: InvalidLimit,
  arguments: InvalidArguments,
  closed: Closed,
};
