/** Passes to the core what becomes of the jobs. */
import { textOf, tooLarge } from './core-errors.js';
import type { Failure, Reports } from './executor.js';
import { joinJson } from './json.js';
import type { ProgressReport } from './tool.js';
import type { SessionRunner } from './session-runner.js';

export class JobReports implements Reports {
  readonly #runner: SessionRunner;

  constructor(runner: SessionRunner) {
    this.#runner = runner;
  }

  started(key: number): void {
    this.#runner.pass({ type: 'progress', key });
  }

  progress(key: number, { status, message }: ProgressReport, content: string | undefined): void {
    this.#runner.pass({ type: 'progress', key, status, message }, content === undefined ? {} : { content });
  }

  settle(key: number, outcome: Parameters<Reports['settle']>[1]): void {
    if ('value' in outcome) {
      this.#value(key, outcome.value);
      return this.#runner.drain();
    }
    const { partial, ...error } = outcome.error;
    this.#runner.pass({ type: 'settle', key }, { error: joinJson(error, partial === undefined ? {} : { partial }) });
  }

  #value(key: number, value: string): void {
    try {
      this.#runner.handle({ type: 'settle', key }, { value });
    } catch (error) {
      const large = tooLarge(error);
      const failure: Failure =
        large === undefined
          ? { code: 'execution_error', message: 'the tool failed', cause: textOf(error) }
          : { code: 'result_too_large', message: `the result has ${large.size} bytes; the limit is ${large.max} bytes` };
      this.#runner.passOnly({ type: 'settle', key, error: failure });
    }
  }
}
