/** The calls of this participant that have no outcome yet. */
import type { CoreCallError, Settled } from './core.js';
import type { Events } from './events.js';
import type { Json } from './json.js';
import type { RawFields, SessionRunner } from './session-runner.js';

/** What becomes of a call. */
export interface OpenCall {
  /** Whether `progress` does anything. */
  readonly wantsProgress: boolean;
  settled(result: { readonly value: Json } | { readonly error: CoreCallError }): void;
  progress(event: Events['progress']): void;
  /** The session ended otherwise than by its own outputs. */
  lost(message: string): void;
}

export class OpenCalls {
  readonly #runner: SessionRunner;
  readonly #calls = new Map<number, OpenCall>();

  constructor(runner: SessionRunner) {
    this.#runner = runner;
  }

  /** Makes a call. `raw` has the fields that are JSON texts. */
  begin(fields: object, raw: RawFields, call: OpenCall): { readonly key: number; readonly call: string } | CoreCallError {
    if (!this.#runner.isOpen) return CLOSED;
    const reply = this.#runner.handle({ type: 'call', ...fields }, raw);
    if (reply?.type === 'called') this.#calls.set(reply.key, call); // before the outputs, which may settle it
    this.#runner.drain();
    if (reply?.type === 'called') return reply;
    return reply?.type === 'refused' ? reply.error : CLOSED;
  }

  settled({ key, value, error }: Settled): void {
    const call = this.#calls.get(key);
    this.#calls.delete(key);
    call?.settled(error === undefined ? { value: value ?? null } : { error });
  }

  progress(event: Events['progress']): void {
    if (event.key !== undefined) this.#calls.get(event.key)?.progress(event);
  }

  /** Ends all calls, because the session has ended. */
  loseAll(message: string): void {
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const call of calls) call.lost(message);
  }
}

const CLOSED: CoreCallError = {
  kind: 'closed',
  code: 'closed',
  message: 'this participant is not in the room',
  may_have_run: false,
};
