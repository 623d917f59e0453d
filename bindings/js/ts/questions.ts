/** Asks the person whether tools may run. */
import type { Ask, StopReason } from './core.js';
import { textOf } from './core-errors.js';
import { stop, type Failure } from './executor.js';
import type { JsonObject } from './json.js';

/** What a person is asked. */
export interface ConsentRequest {
  /**
   * A question for a dialog, with the tool and all arguments. They come from others: show it as text, not as HTML, and let it
   * scroll. Control and invisible characters are escapes. Calls with arguments above 16 KiB are refused without a question.
   */
  readonly text: string;
  readonly tool: { readonly name: string; readonly title?: string; readonly description: string };
  readonly arguments: JsonObject;
  readonly caller: string;
  readonly call: string;
  /** A missing answer counts as a refusal then. */
  readonly deadline: Date;
  /** Aborted when the question is withdrawn: dismiss the dialog then. */
  readonly signal: AbortSignal;
}

export type AskPerson = (ask: ConsentRequest) => boolean | PromiseLike<boolean>;

export interface QuestionsOwner {
  /** Checks the arguments before a person is asked. Returns why they are refused. */
  check(ask: Ask): Promise<Failure | undefined>;
  refused(key: number, failure: Failure): void;
  answered(key: number, allowed: boolean): void;
  /** How long it is until a time of the core, in milliseconds. */
  until(time: number): number;
  warn(message: string): void;
}

export class Questions {
  readonly #person: AskPerson | undefined;
  readonly #owner: QuestionsOwner;
  readonly #open = new Map<number, AbortController>();

  constructor(person: AskPerson | undefined, owner: QuestionsOwner) {
    this.#person = person;
    this.#owner = owner;
  }

  async ask(ask: Ask): Promise<void> {
    const controller = new AbortController();
    const { signal } = controller;
    this.#open.set(ask.key, controller);
    const refusal = await this.#owner.check(ask);
    const allowed = refusal === undefined && !signal.aborted && (await this.#answer(ask, signal));
    if (signal.aborted) return; // withdrawn
    this.#open.delete(ask.key);
    if (refusal !== undefined) this.#owner.refused(ask.key, refusal);
    else this.#owner.answered(ask.key, allowed);
  }

  withdraw(key: number, reason: StopReason): void {
    const question = this.#open.get(key);
    this.#open.delete(key);
    if (question !== undefined) stop(question, reason);
  }

  /** Withdraws all questions, because the session has ended. */
  withdrawAll(reason: StopReason): void {
    for (const question of this.#open.values()) stop(question, reason);
    this.#open.clear();
  }

  async #answer(ask: Ask, signal: AbortSignal): Promise<boolean> {
    if (this.#person === undefined) return false;
    const { tool, call, caller, text } = ask;
    if (text === undefined) {
      this.#owner.warn(`a call of "${tool.name}" by ${caller} is refused: its arguments are larger than the 16 KiB that a person is shown`);
      return false;
    }
    try {
      const allowed = await this.#person({
        text,
        tool: { name: tool.name, description: tool.description, ...(tool.title !== undefined && { title: tool.title }) },
        arguments: ask.arguments,
        caller,
        call,
        deadline: new Date(Date.now() + this.#owner.until(ask.untilMs)),
        signal,
      });
      return allowed === true;
    } catch (error) {
      this.#owner.warn(`the consent handler threw ${textOf(error)}; it counts as a refusal`);
      return false;
    }
  }
}
