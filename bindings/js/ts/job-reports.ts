/** Passes to the core what becomes of the jobs. */
import type { Reports } from './executor.js';
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
    if ('value' in outcome) return void this.#runner.pass({ type: 'settle', key }, { value: outcome.value });
    const { partial, ...error } = outcome.error;
    this.#runner.pass({ type: 'settle', key }, { error: joinJson(error, partial === undefined ? {} : { partial }) });
  }
}
