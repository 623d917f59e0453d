/**
 * The core, as `bindings/README.md` describes it: one state machine that takes inputs and returns outputs, as JSON texts
 * with bytes beside them.
 */
import type { CoreParticipant, Output } from './vocabulary.js';

export type * from './vocabulary.js';

/** The session of the core. */
export interface CoreSession {
  handle(input: string, bytes?: Uint8Array): string | undefined;
  sent(at: number, packet: number): void;
  start(at: number, job: number): boolean;
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

type OutputOf<Type extends Output['type']> = Extract<Output, { type: Type }>;

export type Transmit = OutputOf<'transmit'>;
export type Execute = OutputOf<'execute'>;
export type Ask = OutputOf<'ask'>;
export type Select = OutputOf<'select'>;
export type Result = OutputOf<'result'>;
export type OwnProgress = OutputOf<'progress'>;
export type CoreEvent = OutputOf<'event'>;

/** What an SDK says of a participant. */
export type ReportedParticipant = Pick<CoreParticipant, 'identity' | 'sid' | 'kind' | 'attributes' | 'canUpdateMetadata' | 'canPublishData'>;
