/** Runs a session of the core: passes inputs with their time, carries out the outputs in order, and keeps the timer. */
import type { Alarm, Alarms } from './alarms.js';
import type { CoreClass, CoreSession, Output, Reply } from './core.js';
import { isInputError, textOf } from './core-errors.js';
import { joinJson, type Json } from './json.js';

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
  /** The bytes that wait to be sent, if the core cannot know them. */
  backlog(): number | undefined;
  /** All outputs of an input are carried out. */
  drained(): void;
  /** An input that nobody waits for was malformed. */
  malformed(message: string): void;
  /** The core has panicked, and the session is gone. */
  panicked(error: Error): void;
}

export class SessionRunner {
  readonly #alarms: Alarms;
  readonly #owner: RunnerOwner;
  #session: CoreSession | undefined;
  /** Performance time of the session's zero point. */
  #zero = 0;
  #isDraining = false;
  /** When the session is due. */
  #alarm: Alarm | undefined;

  constructor(alarms: Alarms, owner: RunnerOwner) {
    this.#alarms = alarms;
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

  /** Converts a time of the core to performance time. */
  performanceTime(time: number): number {
    return this.#zero + time;
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
    const session = this.#session;
    if (session === undefined) return undefined;
    const text = this.#guard(() => session.handle(joinJson({ ...fields, atMs: this.#now() }, raw), bytes));
    return text === undefined ? undefined : (JSON.parse(text) as Reply);
  }

  /** Asks the session. */
  query(fields: Query): Reply | undefined {
    const session = this.#session;
    if (session === undefined) return undefined;
    const text = this.#guard(() => session.handle(JSON.stringify(fields)));
    return text === undefined ? undefined : (JSON.parse(text) as Reply);
  }

  /** The bytes of the output that is being carried out. */
  takeBytes(): Uint8Array | undefined {
    const session = this.#session;
    return session === undefined ? undefined : this.#guard(() => session.takeBytes());
  }

  /** Carries out all outputs, and sets the timer. */
  drain(): void {
    if (this.#isDraining) return;
    this.#isDraining = true;
    try {
      this.#carryOut();
    } finally {
      this.#isDraining = false;
    }
    this.#setAlarm();
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
    if (this.#alarm !== undefined && this.#alarm.at <= performance.now()) {
      this.#clearAlarm();
      this.passOnly({ type: 'timeout' });
    }
    for (;;) {
      const text = this.#next() ?? this.#nextAfterBacklog();
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

  /** Reports the bytes that wait to be sent, and returns the output that follows. */
  #nextAfterBacklog(): string | undefined {
    const size = this.#owner.backlog();
    if (size === undefined) return undefined;
    this.passOnly({ type: 'backlog', size });
    return this.#next();
  }

  #next(): string | undefined {
    const session = this.#session;
    return session === undefined ? undefined : this.#guard(() => session.nextOutput());
  }

  #setAlarm(): void {
    const session = this.#session;
    const due = session === undefined ? undefined : this.#guard(() => session.nextDeadline());
    const at = due === undefined ? undefined : this.performanceTime(due);
    if (at === this.#alarm?.at) return;
    this.#clearAlarm();
    if (at === undefined) return;
    this.#alarm = this.#alarms.set(at, () => {
      this.#alarm = undefined;
      this.pass({ type: 'timeout' });
    });
  }

  #clearAlarm(): void {
    this.#alarms.cancel(this.#alarm);
    this.#alarm = undefined;
  }

  #now(): number {
    return performance.now() - this.#zero;
  }

  /**
   * Runs a function of the core. If it throws anything but an error about the input, the core has panicked. Then the session is
   * not freed: its memory is not to be touched.
   */
  #guard<T>(run: () => T): T | undefined {
    try {
      return run();
    } catch (error) {
      if (isInputError(error)) throw error;
      this.#forget();
      this.#owner.panicked(new Error(textOf(error), { cause: error }));
      return undefined;
    }
  }

  #forget(): void {
    this.#session = undefined;
    this.#clearAlarm();
  }
}
