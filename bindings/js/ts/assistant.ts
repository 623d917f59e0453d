import type { AnyRoom } from './adapters.js';
import type { CoreCallError, LoadCore, ProgressStatus } from './core.js';
import type { CallError } from './vocabulary.js';
import { callError, closedError } from './errors.js';
import { runSafely } from './events.js';
import { isObject, toJsonText, type Json, type JsonObject } from './json.js';
import { describeOffers, describeTool, expectDone, Participant, type OfferedTool, type ParticipantOptions, type ToolDescription } from './participant.js';
import { ASSISTANT_OPTIONS, CALL_OPTIONS, checkChoice, checkNames, checkOptions, checkSignal, checkTime } from './options.js';
import type { Rule } from './room-view.js';
import { fields } from './tool.js';

/** How long `ready` waits, in milliseconds. */
const READY = 10_000;

/** How long a call without a time limit waits for the room to be connected, in milliseconds: as long as one without a patience. */
const CONNECT = 30_000;

/** How long before the end of its time `ready` pings a client that has not registered, in milliseconds. */
const PROBE = 1_000;

export interface AssistantOptions extends ParticipantOptions {
  /**
   * Clients that are admitted by their identities. Default: participants whose token has the attribute
   * `toolbridge.role: client`, or the only other one.
   */
  readonly clients?: readonly string[] | undefined;
  /** Admits the participants for which it returns true, in addition to those with the role `client`. */
  readonly admit?: Rule | undefined;
  /** Admits no participant only because it is alone. */
  readonly admitOnlyRoles?: boolean | undefined;
  /** Lets clients stop calls for which it returns true. Default: none. */
  readonly allowStop?: Rule | undefined;
  /** The client that runs a tool which several offer. */
  readonly pins?: readonly { readonly tool: string; readonly owner: string }[] | undefined;
  /** Which of several clients that offer a tool runs it: a function returns its identity. Default: `nobody`. */
  readonly choose?: 'nobody' | 'first' | 'last' | 'lastHeard' | Choose | undefined;
}

/** Chooses among several participants. `tool` is missing if the question is not about a tool. */
export type Choose = (candidates: readonly string[], tool: string | undefined) => string | undefined;

export interface CallOptions {
  /** Whether a model makes the call: the tool and the keys of its arguments have the names in `modelTools()`. Default: false. */
  readonly model?: boolean | undefined;
  /** The identity of the client that runs the tool, whichever others offer it. */
  readonly to?: string | undefined;
  /** The time limit in milliseconds. Default: the tool's patience, otherwise 30,000. */
  readonly timeout?: number | undefined;
  /** How long to wait for a client that offers the tool, in milliseconds. Default: 5,000. */
  readonly ownerWait?: number | undefined;
  /** Cancels the call, also at the client. */
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  /** Sent along with the request. */
  readonly meta?: JsonObject | undefined;
}

/** A tool in the form that all model APIs accept. */
export interface ModelTool {
  readonly name: string;
  /** Also says what the schema cannot. */
  readonly description: string;
  /** The JSON Schema of the arguments. */
  readonly parameters: JsonObject;
  /** The tool's own name. */
  readonly tool: string;
  /** The participants that offer it. With several, a call names one in `to`, or the assistant chooses. */
  readonly owners: readonly string[];
}

export interface ModelTools {
  /** Sorted by their own names. Of several owners that describe a tool differently, each has one. */
  readonly tools: readonly ModelTool[];
  readonly leftOut: readonly { readonly tool?: string; readonly why: string }[];
}

export interface Progress {
  readonly status: ProgressStatus;
  readonly message?: string;
  readonly content?: Json;
}

export interface ReadyOptions {
  /** In milliseconds. Default: 10,000. */
  readonly timeout?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** A client did not become ready. */
export class NotReady extends Error {
  readonly client: string;

  constructor(client: string, message: string) {
    super(message);
    this.name = 'NotReady';
    this.client = client;
  }
}

/** The result of a call that a barge-in had left running. */
export interface Late {
  readonly call: string;
  readonly tool: string;
  readonly owner?: string;
  readonly value?: Json;
  readonly error?: CallError;
  /** How long it took, in milliseconds. */
  readonly tookMs: number;
}

/** A participant that calls the tools of the clients in its room. */
export class AssistantBase extends Participant {
  /** How many turns there were. */
  #turns = 0;

  /** @internal */
  constructor(room: AnyRoom, options: AssistantOptions, load: LoadCore) {
    checkNames('Assistant', options, ASSISTANT_OPTIONS);
    const { clients, admit, admitOnlyRoles, allowStop, pins, choose, ...rest } = options;
    checkOptions({ clients, pins, admitOnlyRoles });
    if (choose !== undefined && typeof choose !== 'function') checkChoice('`choose`', choose, ['nobody', 'first', 'last', 'lastHeard']);
    const chooser = typeof choose === 'function' ? choose : undefined;
    super(
      room,
      'assistant',
      {
        ...rest,
        admit,
        mayStop: allowStop,
        ...(chooser && { choose: (candidates, tool) => chooser(candidates.map(({ identity }) => identity), tool) }),
        config: fields({
          admit: clients,
          admitOnlyRoles: admitOnlyRoles ?? (admit === undefined ? undefined : true),
          pins,
          choose: chooser ? 'ask' : choose === 'lastHeard' ? 'last_heard' : (choose as string | undefined),
        }),
      },
      load,
    );
  }

  /**
   * Calls a tool, and resolves with its result: an object. Any other value that a tool returns arrives as `{ value }`.
   *
   * The promise rejects with a {@link CallError}, of which each kind has a subclass, or with a `TypeError` if the arguments
   * are not an object that JSON can hold. If the signal is aborted, the error is {@link Cancelled}.
   */
  call(tool: string, args: object = {}, options: CallOptions = {}): Promise<JsonObject> {
    return this.#call(tool, args, options, undefined);
  }

  /** Begins a turn: one reply of the model, whose calls end together when the user interrupts. */
  turn(): Turn {
    const turn = ++this.#turns; // the core begins it with its first call
    return new Turn(
      (tool, args = {}, options = {}) => this.#call(tool, args, options, turn),
      (type) => void this.driver.input({ type, turn }),
    );
  }

  /** The tools that can be called now: those of clients, and this assistant's own. */
  tools(): OfferedTool[] {
    const reply = this.driver.query({ type: 'tools' });
    return reply?.type === 'tools' ? describeOffers(reply.tools) : [];
  }

  /**
   * The tools that can be called now, for a request to a model: in the form that all model APIs accept. A model's call is
   * `call(name, args, { model: true })`. Tools that no model can call are in `leftOut`, with the reason.
   */
  modelTools(): ModelTools {
    const reply = this.driver.query({ type: 'model_tools' });
    if (reply?.type !== 'model_tools') return { tools: [], leftOut: [] };
    const tools = reply.tools.map(({ inputSchema, ...tool }) => ({ ...tool, parameters: inputSchema }));
    return { tools, leftOut: reply.leftOut };
  }

  /** Why a tool that is not among `tools()` cannot be called now: the error that a call of it would end with. */
  whyNotOffered(tool: string): CallError {
    const reply = this.driver.query({ type: 'why_not_offered', tool });
    if (reply?.type !== 'why_not_offered') return closedError('this participant is not in the room', false);
    return callError(reply.error);
  }

  /** The results of calls that a barge-in had left running, since the last call of this method. */
  lateResults(): Late[] {
    const reply = this.driver.query({ type: 'late_results' });
    if (reply?.type !== 'late_results') return [];
    return reply.results.map(({ call, tool, owner, value, error, tookMs }) => ({
      call,
      tool,
      tookMs,
      ...fields({ owner, value, error: error === undefined ? undefined : callError(error) }),
    }));
  }

  /**
   * Waits until this client can be called, and resolves with its tools. A call waits as well, but within its own limit.
   *
   * The list is empty for a client without toolbridge's handshake: one that says so is ready at once, and one that has
   * answered nothing when the time is over.
   *
   * The promise rejects with {@link NotReady} when the time is over; earlier for a participant that never offers tools.
   */
  async ready(client: string, { timeout = READY, signal }: ReadyOptions = {}): Promise<ToolDescription[]> {
    checkTime('`timeout`', timeout, true);
    checkSignal(signal);
    const until = performance.now() + timeout;
    if (signal?.aborted) throw reasonOf(signal);
    const how = await this.#started(timeout, signal);
    if (how === 'aborted') throw reasonOf(signal);
    if (how === 'late') throw new NotReady(client, `the room is not connected; waited ${timeout} ms`);
    const { driver } = this;
    driver.input({ type: 'expect', identity: client });
    let end: () => void = () => {};
    try {
      return await new Promise<ToolDescription[]>((resolve, reject) => {
        let why = 'it has not been heard';
        let isChecking = false;
        const check = (isOver = false) => {
          if (isChecking) return;
          isChecking = true;
          const reply = driver.query({ type: 'readiness', identity: client });
          isChecking = false;
          if (reply?.type !== 'readiness') return reject(closedError('this participant has left the room', false));
          const { readiness, tools, message } = reply;
          why = message ?? why;
          if (readiness === 'ready' || (isOver && readiness === 'silent')) resolve((tools ?? []).map(describeTool));
          if (readiness === 'never') reject(new NotReady(client, why));
        };
        const unwatch = driver.watch(() => check());
        const left = Math.max(until - performance.now(), 0);
        const probe = setTimeout(() => driver.input({ type: 'probe', identity: client }), Math.max(left - PROBE, 0));
        const timer = setTimeout(() => {
          check(true);
          reject(new NotReady(client, `${why}; waited ${timeout} ms`));
        }, left);
        const aborted = () => reject(reasonOf(signal));
        signal?.addEventListener('abort', aborted);
        end = () => {
          unwatch();
          clearTimeout(probe);
          clearTimeout(timer);
          signal?.removeEventListener('abort', aborted);
        };
        check();
      });
    } finally {
      end();
      driver.input({ type: 'stop_expecting', identity: client });
    }
  }

  /** Shows a view, the latest state of something, to the clients. */
  showView(view: string, content: unknown, text?: string): void {
    const reply = this.driver.input({ type: 'show_view', view, ...fields({ text }) }, { content: toJsonText(content, 'content') });
    expectDone(reply, `the view "${view}" cannot be shown`);
  }

  /** Waits for the session, at most this long. Says whether there is one, or what came first. */
  async #started(timeout: number, signal: AbortSignal | undefined): Promise<'started' | 'late' | 'aborted'> {
    let end: () => void = () => {};
    const given = new Promise<'late' | 'aborted'>((resolve) => {
      const timer = setTimeout(() => resolve('late'), timeout);
      const aborted = () => resolve('aborted');
      signal?.addEventListener('abort', aborted);
      end = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', aborted);
      };
    });
    try {
      return await Promise.race([this.driver.started().then(() => 'started' as const), given]);
    } catch (error) {
      throw closedError(error instanceof Error ? error.message : String(error), false);
    } finally {
      end();
    }
  }

  async #call(tool: string, args: object, options: CallOptions, turn: number | undefined): Promise<JsonObject> {
    const { model, to, timeout, ownerWait, signal, onProgress, meta } = options;
    if (!isObject(args)) throw new TypeError('the arguments must be an object');
    checkNames(`the call of "${tool}"`, options, CALL_OPTIONS);
    if (timeout !== undefined) checkTime('`timeout`', timeout);
    if (ownerWait !== undefined) checkTime('`ownerWait`', ownerWait, true);
    checkSignal(signal);
    if (onProgress !== undefined && typeof onProgress !== 'function') throw new TypeError('`onProgress` must be a function');
    const raw = {
      arguments: toJsonText(args, 'arguments'),
      ...(meta !== undefined && { meta: toJsonText(meta, 'meta') }),
    };
    let left = timeout;
    if (!signal?.aborted && !this.driver.isOpen) {
      const began = performance.now();
      const how = await this.#started(timeout ?? CONNECT, signal);
      if (timeout !== undefined) left = timeout - Math.round(performance.now() - began);
      if (how === 'late' || (left !== undefined && left <= 0)) throw callError(notConnected(timeout ?? CONNECT));
    }
    if (signal?.aborted) throw callError(NEVER_BEGUN);
    const { driver } = this;
    return new Promise<JsonObject>((resolve, reject) => {
      let isSettled = false;
      const settle = (then: () => void) => {
        isSettled = true;
        signal?.removeEventListener('abort', aborted);
        then();
      };
      const aborted = () => driver.input({ type: 'cancel', id }); // it settles the call
      const id = driver.call({ tool, ...fields({ model, to, timeoutMs: left, ownerWaitMs: ownerWait, turn }) }, raw, {
        settled: (result) => {
          if (isSettled) return;
          settle(() => ('error' in result ? reject(callError(result.error)) : resolve(result.value as JsonObject)));
        },
        wantsProgress: onProgress !== undefined,
        lost: (message) => {
          if (!isSettled) settle(() => reject(closedError(message, true)));
        },
        progress: ({ status, message, content }) => {
          if (onProgress !== undefined) runSafely(onProgress, { status, ...fields({ message, content }) }, `onProgress of "${tool}"`);
        },
      });
      if (!isSettled) signal?.addEventListener('abort', aborted);
    });
  }
}

/** One reply of the model. */
export class Turn {
  readonly #call: (tool: string, args: object, options: CallOptions) => Promise<JsonObject>;
  readonly #end: (how: 'barge_in' | 'turn_end') => void;

  /** @internal */
  constructor(call: Turn['call'], end: (how: 'barge_in' | 'turn_end') => void) {
    this.#call = call;
    this.#end = end;
  }

  /** Calls a tool as part of the turn: see {@link AssistantBase.call}. */
  call(tool: string, args: object = {}, options: CallOptions = {}): Promise<JsonObject> {
    return this.#call(tool, args, options);
  }

  /** Ends the turn because the user interrupted: each open call settles at once, as its tool specifies. */
  bargeIn(): void {
    this.#end('barge_in');
  }

  /** Ends the turn: it accepts no further calls. Open calls go on. */
  end(): void {
    this.#end('turn_end');
  }
}

/** The call's signal was aborted before it began. */
const NEVER_BEGUN = { kind: 'cancelled', code: 'cancelled', message: 'the call was cancelled before it began; nothing ran', mayHaveRun: false } as const;

/** The room was not connected within the time limit of a call. */
function notConnected(limit: number): CoreCallError {
  const message = `the room was not connected within ${limit} ms; nothing ran`;
  return { kind: 'timeout', code: 'timeout', message, mayHaveRun: false, limitMs: limit };
}

/** React Native's signals have neither a reason nor `throwIfAborted`. */
function reasonOf(signal: AbortSignal | undefined): unknown {
  const reason: unknown = signal?.reason;
  if (reason !== undefined) return reason;
  const error = new Error('the wait was aborted');
  error.name = 'AbortError';
  return error;
}
