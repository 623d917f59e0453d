/** The calls of this participant that have no outcome yet. */
import type { CoreCallError, OwnProgress, Result } from './core.js';
import type { Json } from './json.js';
import type { RawFields, SessionRunner } from './session-runner.js';

/** What becomes of a call. */
export interface OpenCall {
  /** Whether `progress` does anything. */
  readonly wantsProgress: boolean;
  settled(result: { readonly value: Json } | { readonly error: CoreCallError }): void;
  progress(progress: OwnProgress): void;
  /** The session ended otherwise than by its own outputs. */
  lost(message: string): void;
}

export class OpenCalls {
  readonly #runner: SessionRunner;
  readonly #calls = new Map<number, OpenCall>();
  #last = 0;

  constructor(runner: SessionRunner) {
    this.#runner = runner;
  }

  /** Makes a call, and returns its name. `raw` has the fields that are JSON texts. @throws Error if they are malformed. */
  begin(fields: object, raw: RawFields, call: OpenCall): number {
    const id = ++this.#last;
    if (!this.#runner.isOpen) {
      call.settled({ error: CLOSED });
      return id;
    }
    this.#runner.handle({ type: 'call', id, ...fields }, raw);
    this.#calls.set(id, call); // before the outputs, which may settle it
    this.#runner.drain();
    return id;
  }

  settled({ id, value, error }: Result): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    call?.settled(error === undefined ? { value: value ?? null } : { error });
  }

  progress(progress: OwnProgress): void {
    this.#calls.get(progress.id)?.progress(progress);
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
  mayHaveRun: false,
};
