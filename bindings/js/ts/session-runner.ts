/** Runs a session of the core: passes inputs with their time, carries out the outputs in order, and keeps the timer. */
import type { CoreClass, CoreSession, Output, Reply } from './core.js';
import { isInputError, textOf } from './core-errors.js';
import { joinJson, type Json } from './json.js';

/** The longest delay that timers take, in milliseconds: 2^31 − 1. */
const LONGEST_DELAY = 2_147_483_647;

/** A question to the session. */
export interface Query {
  readonly type: string;
  readonly [field: string]: Json;
}

/** Fields of an input whose values are JSON texts already. */
export type RawFields = Readonly<Record<string, string>>;

export interface RunnerOwner {
  /** Carries out an output. It may pass inputs. */
  output(output: Output): void;
  /** All outputs of an input are carried out. */
  drained(): void;
  /** An input that nobody waits for was malformed. */
  malformed(message: string): void;
  /** The core has panicked, and the session is gone. */
  panicked(error: Error): void;
}

export class SessionRunner {
  readonly #owner: RunnerOwner;
  #session: CoreSession | undefined;
  /** Performance time of the session's zero point. */
  #zero = 0;
  #isDraining = false;
  /** When the session is due, in performance time. */
  #due = Infinity;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /**
   * When the timer fires. That may be too early, since most deadlines are of calls that end long before: then it is set again. To set
   * and clear it at each input takes longer than many an input.
   */
  #fires = Infinity;

  constructor(owner: RunnerOwner) {
    this.#owner = owner;
  }

  /** Whether there is a session. */
  get isOpen(): boolean {
    return this.#session !== undefined;
  }

  /** Begins a session now. @throws Error if the fields are malformed. */
  begin(core: CoreClass, fields: object): void {
    this.#zero = performance.now();
    this.#session = core.create(JSON.stringify({ type: 'create', atMs: 0, ...fields }));
  }

  /** How long it is until a time of the core, in milliseconds. */
  until(time: number): number {
    return time - this.#now();
  }

  /** Passes an input of the room or of a tool, and carries out what follows. One that is malformed is reported. */
  pass(fields: object, raw: RawFields = {}, bytes?: Uint8Array): Reply | undefined {
    if (this.#session === undefined) return undefined;
    const reply = this.passOnly(fields, raw, bytes);
    this.drain();
    return reply;
  }

  /** Passes an input that nobody waits for, amid outputs. One that is malformed has no effect, and is reported. */
  passOnly(fields: object, raw: RawFields = {}, bytes?: Uint8Array): Reply | undefined {
    try {
      return this.handle(fields, raw, bytes);
    } catch (error) {
      this.#owner.malformed(textOf(error));
      return undefined;
    }
  }

  /** Passes an input, and leaves its outputs to the next `drain`. @throws Error if it is malformed. */
  handle(fields: object, raw: RawFields, bytes?: Uint8Array): Reply | undefined {
    return this.#read((session) => session.handle(joinJson({ ...fields, atMs: this.#now() }, raw), bytes));
  }

  /** Asks the session. */
  query(fields: Query): Reply | undefined {
    return this.#read((session) => session.handle(JSON.stringify(fields)));
  }

  /** Reports that a packet was published, and carries out what follows. */
  sent(packet: number): void {
    this.#ask((session) => session.sent(this.#now(), packet));
    this.drain();
  }

  /** Reports that the function of a job begins. Returns false if the job has ended, and the function must not run. */
  start(job: number): boolean {
    const mayStart = this.#ask((session) => session.start(this.#now(), job));
    this.drain();
    return mayStart === true;
  }

  /** The bytes of the output that is being carried out. */
  takeBytes(): Uint8Array | undefined {
    return this.#ask((session) => session.takeBytes());
  }

  /** Carries out all outputs, and sets the timer. */
  drain(): void {
    if (this.#isDraining || this.#session === undefined) return;
    this.#isDraining = true;
    try {
      this.#carryOut();
    } finally {
      this.#isDraining = false;
    }
    this.#due = this.#zero + (this.#ask((session) => session.nextDeadline()) ?? Infinity);
    this.#setTimer();
    this.#owner.drained();
  }

  /** Ends the session by its last input. Returns whether there was one, and it did not panic. */
  close(fields: object): boolean {
    const session = this.#session;
    if (session === undefined) return false;
    this.pass(fields);
    this.#carryOut(); // also if this is called amid other outputs
    if (this.#session !== session) return false; // it panicked
    this.#forget();
    session.free();
    return true;
  }

  #carryOut(): void {
    // A flood of packets does not delay timers.
    if (this.#due <= performance.now()) {
      this.#due = Infinity;
      this.passOnly({ type: 'timeout' });
    }
    for (;;) {
      const text = this.#ask((session) => session.nextOutput());
      if (text === undefined) return;
      const output = JSON.parse(text) as Output;
      try {
        this.#owner.output(output);
      } catch (error) {
        // The outputs that follow belong to others.
        this.#owner.malformed(`the core's output "${output.type}" could not be carried out: ${textOf(error)}`);
      }
    }
  }

  #setTimer(): void {
    if (this.#due >= this.#fires) return;
    clearTimeout(this.#timer);
    this.#fires = this.#due;
    // Timers fire up to a millisecond early; one that is late, as in a hidden page, does no harm.
    const delay = Math.min(Math.max(Math.ceil(this.#due - performance.now()), 0), LONGEST_DELAY);
    this.#timer = setTimeout(() => {
      this.#fires = Infinity;
      if (this.#due <= performance.now()) this.drain();
      else this.#setTimer();
    }, delay);
  }

  #now(): number {
    return performance.now() - this.#zero;
  }

  #read(run: (session: CoreSession) => string | undefined): Reply | undefined {
    const text = this.#ask(run);
    return text === undefined ? undefined : (JSON.parse(text) as Reply);
  }

  /**
   * Calls a function of the core, if there is a session. If it throws anything but an error about the input, the core has panicked.
   * Then the session is not freed: its memory is not to be touched.
   */
  #ask<T>(run: (session: CoreSession) => T): T | undefined {
    const session = this.#session;
    if (session === undefined) return undefined;
    try {
      return run(session);
    } catch (error) {
      if (isInputError(error)) throw error;
      this.#forget();
      this.#owner.panicked(new Error(textOf(error), { cause: error }));
      return undefined;
    }
  }

  /** Until it fires, the timer would keep a program from ending. */
  #forget(): void {
    this.#session = undefined;
    clearTimeout(this.#timer);
    this.#due = this.#fires = Infinity;
  }
}
