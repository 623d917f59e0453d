/** Runs the functions of tools, each when the core gives it a place, until it ends or the core stops it. */
import type { Ask, Execute, StopReason } from './core.js';
import { ToolError } from './errors.js';
import { joinJson, toJsonText, type JsonObject } from './json.js';
import { Invalid } from './schema.js';
import type { SessionRunner } from './session-runner.js';
import { RESERVED, type NamedTool, type ProgressReport, type ToolContext } from './tool.js';

/** While tools run, how often it is checked that nothing blocks the script, in milliseconds. */
const WATCH = 1_000;

/**
 * How long the script may be blocked before that is reported, in milliseconds. After 5,000 the others take this participant for
 * lost.
 */
const BLOCKED = 4_000;

/** The message for the caller if a tool threw something that is not a {@link ToolError}. */
const LOCAL_MESSAGE = 'the tool failed';

/** The reason of a stopped tool's signal. */
export class Stopped extends Error {
  readonly reason: StopReason;

  constructor(reason: StopReason) {
    super(TEXTS[reason] ?? 'the call was stopped');
    this.name = 'AbortError';
    this.reason = reason;
  }
}

/** Aborts a signal. React Native's signals have no reason of their own. */
export function stop(controller: AbortController, reason: StopReason): void {
  const { signal } = controller;
  const stopped = new Stopped(reason);
  if (!('reason' in signal)) Object.defineProperty(signal, 'reason', { value: stopped });
  controller.abort(stopped);
}

const TEXTS: Readonly<Partial<Record<StopReason, string>>> = {
  caller: 'the caller no longer needs the call',
  barge_in: 'the user interrupted',
  deadline: 'the time limit has passed',
  caller_gone: 'the caller is gone',
  leaving: 'the participant that runs the call is leaving',
  lost: 'the caller lost the participant that runs the call',
};

/** The failure of a job, in the form of the core. */
export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly cause?: string;
  /** JSON text. */
  readonly partial?: string;
}

/** How a job has ended. The value is JSON text. */
type Outcome = { readonly value: string } | { readonly error: Failure };

export class Executor {
  readonly #runner: SessionRunner;
  readonly #threw: (tool: string, error: unknown) => void;
  readonly #warn: (message: string) => void;
  /** The jobs of this session whose functions have not ended. */
  readonly #jobs = new Map<number, AbortController>();
  tools: ReadonlyMap<string, NamedTool> = new Map();
  #isWatching = false;

  /** `threw` gets each exception whose text the caller does not see, and the name of its tool. */
  constructor(runner: SessionRunner, threw: (tool: string, error: unknown) => void, warn: (message: string) => void) {
    this.#runner = runner;
    this.#threw = threw;
    this.#warn = warn;
  }

  /** Checks arguments before a person is asked. Returns why they are refused. */
  async check(ask: Ask): Promise<Failure | undefined> {
    const tool = this.tools.get(ask.tool.name);
    if (tool === undefined) return unknownTool(ask.tool.name);
    try {
      await tool.check?.(ask.arguments);
      return undefined;
    } catch (error) {
      return this.#refusal(ask.tool.name, error);
    }
  }

  /** Runs a job. */
  async execute(job: Execute): Promise<void> {
    const controller = new AbortController();
    const { signal } = controller;
    this.#jobs.set(job.key, controller);
    if (!this.#isWatching) this.#watch();
    const outcome = await this.#run(job, signal);
    if (!this.#has(job, signal)) return;
    this.#jobs.delete(job.key);
    this.settle(job.key, outcome);
  }

  /** Stops a job. One that has ended is unaffected, and of several stops the first one counts. */
  abort(key: number, reason: StopReason): void {
    const controller = this.#jobs.get(key);
    if (controller !== undefined) stop(controller, reason);
  }

  /** Stops all jobs, because the session has ended. */
  abortAll(reason: StopReason): void {
    for (const key of this.#jobs.keys()) this.abort(key, reason);
    this.#jobs.clear();
  }

  /** Reports the end of a job, or of the question for it. */
  settle(key: number, outcome: Outcome): void {
    if ('value' in outcome) return void this.#runner.pass({ type: 'settle', key }, { value: outcome.value });
    const { partial, ...error } = outcome.error;
    this.#runner.pass({ type: 'settle', key }, { error: joinJson(error, partial === undefined ? {} : { partial }) });
  }

  /**
   * Reports that something blocks the script while tools run: the others cannot tell that from a lost page. Timers of a hidden
   * page are late whatever runs.
   */
  #watch(): void {
    this.#isWatching = true;
    const [due, wasHidden] = [performance.now() + WATCH, isHidden()];
    const timer: unknown = setTimeout(() => {
      const late = performance.now() - due;
      if (late >= BLOCKED && !wasHidden && !isHidden()) {
        this.#warn(
          `the script was blocked for ${Math.round(late / 1_000)} s while a tool ran: after 5 s the others take this ` +
            'participant for lost. Let the tool wait with `await`, or compute in a worker',
        );
      }
      this.#isWatching = false;
      if (this.#jobs.size > 0) this.#watch();
    }, WATCH);
    (timer as { unref?(): void }).unref?.(); // Node ends although it waits
  }

  /** Whether a job is of this session. Another session has other jobs of its key. */
  #has({ key }: Execute, signal: AbortSignal): boolean {
    return this.#jobs.get(key)?.signal === signal;
  }

  async #run(job: Execute, signal: AbortSignal): Promise<Outcome> {
    const tool = this.tools.get(job.tool);
    if (tool === undefined) return { error: unknownTool(job.tool) };
    let args: unknown = job.arguments;
    if (tool.check !== undefined) {
      try {
        args = await tool.check(args);
      } catch (error) {
        return { error: this.#refusal(job.tool, error) };
      }
    }
    if (!this.#has(job, signal) || !this.#runner.start(job.key)) return { error: CANCELLED };
    const context: ToolContext = {
      signal,
      caller: job.caller,
      call: job.call,
      deadline: new Date(Date.now() + Math.min(this.#runner.until(job.endsAtMs), tool.core.timeoutMs ?? Infinity)),
      meta: Object.fromEntries(Object.entries(job.meta ?? {}).filter(([key]) => !key.startsWith(RESERVED))),
      progress: (report) => this.#progress(job, signal, report),
    };
    try {
      const value = await tool.execute(args as JsonObject, context);
      return { value: toJsonText(value === undefined ? null : value, 'the result') };
    } catch (error) {
      // After a stop, an error is only how the tool ended.
      if (!signal.aborted && !(error instanceof ToolError)) this.#threw(job.tool, error);
      return { error: failure(error) };
    }
  }

  #progress(job: Execute, signal: AbortSignal, report: string | ProgressReport): void {
    const { status, message, content }: ProgressReport = typeof report === 'string' ? { message: report } : report;
    const raw = content === undefined ? {} : { content: toJsonText(content, 'content') };
    if (this.#has(job, signal)) this.#runner.pass({ type: 'progress', key: job.key, status, message }, raw);
  }

  /** Why arguments are refused. */
  #refusal(tool: string, error: unknown): Failure {
    if (error instanceof Invalid) return { code: 'invalid_parameters', message: error.message };
    this.#threw(tool, error);
    return { code: 'execution_error', message: LOCAL_MESSAGE, cause: describe(error) };
  }
}

function isHidden(): boolean {
  return (globalThis as { document?: { hidden?: boolean } }).document?.hidden === true;
}

const CANCELLED: Failure = { code: 'cancelled', message: 'the call was cancelled' };

function unknownTool(name: string): Failure {
  return { code: 'unknown_tool', message: `there is no tool named "${name}"` };
}

/** The text of an error that the author wrote for the caller is sent; that of any other error stays here. */
function failure(error: unknown): Failure {
  if (!(error instanceof ToolError)) return { code: 'execution_error', message: LOCAL_MESSAGE, cause: describe(error) };
  let partial: string | undefined;
  try {
    if (error.partial !== undefined) partial = toJsonText(error.partial, 'partial');
  } catch (problem) {
    return { code: 'execution_error', message: LOCAL_MESSAGE, cause: describe(problem) };
  }
  return {
    code: error.code,
    message: error.message,
    ...(partial !== undefined && { partial }),
    ...(error.cause !== undefined && { cause: describe(error.cause) }),
  };
}

/** The longest cause that is reported, in characters. */
const MAX_CAUSE = 1_000;

function describe(error: unknown): string {
  try {
    const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
    return text.slice(0, MAX_CAUSE);
  } catch {
    return 'an exception that has no text'; // an object without a prototype, or with a getter that throws
  }
}
