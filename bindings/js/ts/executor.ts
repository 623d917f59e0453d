/** Runs the calls of tools: a limited number at once, each within its time limit, each with exactly one outcome. */
import type { Alarm, Alarms } from './alarms.js';
import type { Ask, Execute, StopReason } from './core.js';
import { ToolError } from './errors.js';
import { toJsonText, type JsonObject } from './json.js';
import { Invalid } from './schema.js';
import { DEFAULT_CANCEL_GRACE, type NamedTool, type ProgressReport, type ToolContext } from './tool.js';

/** The most calls that run at once, and the most that wait for one of them to end, if the caps do not say. */
const RUNNING = 64;
const WAITING = 256;

/**
 * How long a tool may block the script before that is reported, in milliseconds. After 5,000 the others take this participant
 * for lost.
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

/** What becomes of jobs. Values are JSON texts. */
export interface Reports {
  started(key: number): void;
  progress(key: number, report: ProgressReport, content: string | undefined): void;
  settle(key: number, outcome: { readonly value: string } | { readonly error: Failure }): void;
}

interface Job {
  readonly execute: Execute;
  readonly tool: NamedTool;
  /** Performance time in milliseconds. */
  readonly deadline: number;
  readonly controller: AbortController;
  /** Ends its wait for a place, its time, or its time to clean up. */
  alarm: Alarm | undefined;
  /** Whether its outcome was reported. */
  isSettled: boolean;
  /** Whether it takes one of the places. */
  isRunning: boolean;
  /** Whether its function has begun. */
  isStarted: boolean;
}

export class Executor {
  readonly #alarms: Alarms;
  readonly #reports: Reports;
  readonly #threw: (tool: string, error: unknown) => void;
  readonly #warn: (message: string) => void;
  readonly #jobs = new Map<number, Job>();
  readonly #waiting: Job[] = [];
  readonly #mostRunning: number;
  readonly #mostWaiting: number;
  #running = 0;
  tools: ReadonlyMap<string, NamedTool> = new Map();

  /** `threw` gets each exception whose text the caller does not see, and the name of its tool. */
  constructor(
    alarms: Alarms,
    reports: Reports,
    caps: Readonly<Record<string, number | undefined>> = {},
    threw: (tool: string, error: unknown) => void,
    warn: (message: string) => void,
  ) {
    this.#alarms = alarms;
    this.#reports = reports;
    this.#warn = warn;
    this.#threw = threw;
    this.#mostRunning = caps['runningJobs'] ?? RUNNING;
    this.#mostWaiting = caps['waitingJobs'] ?? WAITING;
  }

  /** Checks arguments before a person is asked. Returns why they are refused. */
  async check(ask: Ask): Promise<Failure | undefined> {
    const tool = this.tools.get(ask.tool.name);
    if (tool === undefined) return unknownTool(ask.tool.name);
    try {
      await tool.check?.(ask.arguments);
      return undefined;
    } catch (error) {
      if (!(error instanceof Invalid)) this.#threw(ask.tool.name, error);
      return invalid(error);
    }
  }

  /** Starts a job, or queues it until others end. `deadline` is its end by `performance.now()`. */
  execute(execute: Execute, deadline: number): void {
    const tool = this.tools.get(execute.tool);
    if (tool === undefined) return this.#reports.settle(execute.key, { error: unknownTool(execute.tool) });
    if (this.#running >= this.#mostRunning && this.#waiting.length >= this.#mostWaiting) {
      const message = `${this.#running} calls are running and ${this.#waiting.length} are waiting; nothing ran`;
      return this.#reports.settle(execute.key, { error: { code: 'busy', message } });
    }
    const controller = new AbortController();
    const job: Job = { execute, tool, deadline, controller, alarm: undefined, isSettled: false, isRunning: false, isStarted: false };
    this.#jobs.set(execute.key, job);
    if (this.#running < this.#mostRunning) this.#begin(job);
    else {
      this.#waiting.push(job);
      this.#setAlarm(job, startsBy(job), () => {
        this.#leaveQueue(job);
        this.#settle(job, { error: notStarted(job) });
      });
    }
  }

  /** Stops a job. One that has ended is unaffected. */
  abort(key: number, reason: StopReason): void {
    const job = this.#jobs.get(key);
    if (job === undefined) return;
    if (!job.isRunning) {
      this.#leaveQueue(job);
      this.#settle(job, { error: CANCELLED });
      return;
    }
    // Nothing has run while the arguments are checked, so nothing has to clean up.
    if (!job.isStarted) this.#settle(job, { error: CANCELLED });
    this.#stop(job, reason, () => this.#settle(job, { error: CANCELLED }));
  }

  /** Ends all jobs that have not started, because the participant leaves: their callers can know that nothing ran. */
  refuseUnstarted(): void {
    for (const job of [...this.#jobs.values()]) {
      if (job.isStarted) continue;
      if (!job.isRunning) this.#leaveQueue(job);
      this.#settle(job, { error: LEAVING });
    }
  }

  /** Stops all jobs, because the session has ended. Nothing is reported any more. */
  abortAll(reason: StopReason): void {
    for (const job of [...this.#jobs.values()]) {
      job.isSettled = true;
      if (job.isRunning) this.#stop(job, reason, () => {});
      else this.#leaveQueue(job);
      this.#jobs.delete(job.execute.key);
    }
  }

  #begin(job: Job): void {
    job.isRunning = true;
    this.#running += 1;
    this.#alarms.cancel(job.alarm);
    void this.#run(job).finally(() => this.#end(job));
  }

  /** Frees the place of a job, once, and gives it to the next one. */
  #end(job: Job): void {
    if (!job.isRunning) return;
    job.isRunning = false;
    this.#alarms.cancel(job.alarm);
    this.#settle(job, { error: { code: 'execution_error', message: LOCAL_MESSAGE } }); // otherwise its caller would wait
    if (this.#jobs.get(job.execute.key) === job) this.#jobs.delete(job.execute.key);
    this.#running -= 1;
    const next = this.#waiting.shift();
    if (next !== undefined) this.#begin(next);
  }

  async #run(job: Job): Promise<void> {
    const { execute, tool, controller } = job;
    const { key } = execute;
    const endsAt = (at: number, error: Failure) =>
      this.#setAlarm(job, at, () => {
        // The caller's limit ends at the same time: the result is sent first, then the tool cleans up.
        this.#settle(job, { error });
        this.#stop(job, 'deadline', () => {});
      });
    let args: unknown = execute.arguments;
    if (tool.check !== undefined) {
      endsAt(startsBy(job), notStarted(job));
      try {
        args = await tool.check(args);
      } catch (error) {
        if (!(error instanceof Invalid)) this.#threw(execute.tool, error);
        return this.#settle(job, { error: invalid(error) });
      }
    }
    if (job.isSettled || controller.signal.aborted) return this.#settle(job, { error: CANCELLED });
    job.isStarted = true;
    // The tool's own limit is of one run.
    const own = tool.core.timeoutMs;
    const ownEnd = own === undefined ? Infinity : performance.now() + own;
    const [limit, end] = own !== undefined && ownEnd < job.deadline ? [own, ownEnd] : [execute.limitMs, job.deadline];
    endsAt(end, { code: 'timeout', message: `the tool took longer than its limit of ${limit} ms` });
    this.#reports.started(key);
    const context: ToolContext = {
      signal: controller.signal,
      caller: execute.caller,
      call: execute.call,
      deadline: new Date(Date.now() + (end - performance.now())),
      meta: execute.meta ?? {},
      progress: (report) => {
        const given = typeof report === 'string' ? { message: report } : report;
        const content = given.content === undefined ? undefined : toJsonText(given.content, 'content');
        if (!job.isSettled) this.#reports.progress(key, given, content);
      },
    };
    try {
      const began = performance.now();
      const running = tool.execute(args as JsonObject, context);
      const blocked = performance.now() - began;
      if (blocked >= BLOCKED) {
        const seconds = Math.round(blocked / 1_000);
        this.#warn(
          `the tool "${execute.tool}" blocked the script for ${seconds} s: after 5 s the others take this participant for lost. ` +
            'Let it wait with `await`, or compute in a worker',
        );
      }
      const value = await running;
      this.#settle(job, { value: toJsonText(value === undefined ? null : value, 'the result') });
    } catch (error) {
      // After a stop, an error is only how the tool ended.
      if (!job.isSettled && !controller.signal.aborted && !(error instanceof ToolError)) this.#threw(execute.tool, error);
      this.#settle(job, { error: failure(error) });
    }
  }

  /**
   * Stops a running job; its place is free, and `then` is called, when it has ended or its time to clean up is over. The first stop
   * counts.
   */
  #stop(job: Job, reason: StopReason, then: () => void): void {
    if (job.controller.signal.aborted) return;
    const grace = job.tool.core.cancelGraceMs ?? DEFAULT_CANCEL_GRACE;
    this.#setAlarm(job, performance.now() + grace, () => {
      then();
      this.#end(job);
    });
    job.controller.abort(new Stopped(reason));
  }

  #settle(job: Job, outcome: { readonly value: string } | { readonly error: Failure }): void {
    if (job.isSettled) return;
    job.isSettled = true;
    if (!job.isRunning) this.#jobs.delete(job.execute.key);
    this.#reports.settle(job.execute.key, outcome);
  }

  #leaveQueue(job: Job): void {
    this.#alarms.cancel(job.alarm);
    const at = this.#waiting.indexOf(job);
    if (at >= 0) this.#waiting.splice(at, 1);
  }

  #setAlarm(job: Job, at: number, then: () => void): void {
    this.#alarms.cancel(job.alarm);
    job.alarm = this.#alarms.set(at, then);
  }
}

/** How long before the end of its time a call gives up waiting, in milliseconds: its caller must still learn that nothing ran. */
const WAIT_MARGIN = 500;

/** Until when a call must have started. Of a short limit, a quarter is left. */
function startsBy({ deadline, execute }: Job): number {
  return deadline - Math.min(WAIT_MARGIN, execute.limitMs / 4);
}

/** Not `timeout`, which leaves open whether the tool ran. */
function notStarted({ execute }: Job): Failure {
  return { code: 'busy', message: `the call had no place to run within its limit of ${execute.limitMs} ms; nothing ran` };
}

const LEAVING: Failure = { code: 'busy', message: 'the participant is leaving; nothing ran' };
const CANCELLED: Failure = { code: 'cancelled', message: 'the call was cancelled' };

function unknownTool(name: string): Failure {
  return { code: 'unknown_tool', message: `there is no tool named "${name}"` };
}

function invalid(error: unknown): Failure {
  if (error instanceof Invalid) return { code: 'invalid_parameters', message: error.message };
  return { code: 'execution_error', message: LOCAL_MESSAGE, cause: describe(error) };
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
