/** What all entries export, besides `Client` and `Assistant`. */
export type { AnyRoom } from './adapters.js';
export { NotReady, Turn, type AssistantOptions, type CallOptions, type Choose, type Late, type ModelTool, type ModelTools, type Progress, type ReadyOptions } from './assistant.js';
export type { ClientOptions } from './client.js';
export type { CallErrorKind, CloseReason, CoreParticipant as RoomParticipant, ProgressStatus, ReportedParticipant, StopReason } from './core.js';
export {
  Ambiguous,
  Busy,
  CallError,
  CallTimeout,
  Cancelled,
  Closed,
  Detached,
  InvalidArguments,
  InvalidLimit,
  Lost,
  NotAllowed,
  NotBound,
  NotDelivered,
  ToolFailed,
  TooLarge,
  TooManyEqual,
  TooManyOpen,
  TurnOver,
  UnknownTool,
} from './vocabulary.js';
export { ToolError } from './errors.js';
export type { EventName, Events } from './events.js';
export { Stopped } from './executor.js';
export type { Json, JsonObject } from './json.js';
export type { OfferedTool, ParticipantOptions, ToolDescription } from './participant.js';
export type { AskPerson, ConsentRequest } from './questions.js';
export type { PortEvents, ReceivedPacket, ReceivedStream, RoomPort, RoomState } from './room-port.js';
export type { Rule } from './room-view.js';
export type { StandardSchema } from './schema.js';
export { tool, type ProgressReport, type Tool, type ToolContext, type ToolOptions, type Tools } from './tool.js';
