/** Drives one participant of toolbridge in a room: its sessions of the core, one after the other, and what they need. */
import type { CloseReason, CoreClass, CoreEvent, ReportedParticipant, CoreTool, LeftOut, LoadCore, Output, OwnProgress, Reply, Select } from './core.js';
import { textOf } from './core-errors.js';
import { eventName, NAMES_OF_THE_CORE, type Emitter } from './events.js';
import { Executor } from './executor.js';
import { Inbox } from './inbox.js';
import { OpenCalls, type OpenCall } from './open-calls.js';
import { Questions, type AskPerson } from './questions.js';
import { seed } from './randomness.js';
import { lastPackets, release } from './room-claim.js';
import type { RoomPort } from './room-port.js';
import { RoomView, type Rules } from './room-view.js';
import { Sender } from './sender.js';
import { SessionRunner, type Query, type RawFields } from './session-runner.js';
import type { NamedTool } from './tool.js';

/** After which times loading the core is tried again, in milliseconds: a page's network may fail once. */
const LOAD_AGAIN = [1_000, 4_000];

/** The time limit of sending the last packets, in milliseconds. */
const FLUSH = 1_000;

export interface DriverOptions extends Rules {
  readonly role: 'client' | 'assistant';
  /** The core's `config`, except what the room says. */
  readonly config: Readonly<Record<string, unknown>>;
  readonly consent?: AskPerson | undefined;
  readonly choose?: ((candidates: Select['candidates'], tool: string | undefined) => string | undefined) | undefined;
  readonly load: LoadCore;
}

export class Driver {
  readonly #port: RoomPort;
  readonly #options: DriverOptions;
  readonly #emitter: Emitter;
  readonly #runner: SessionRunner;
  readonly #view: RoomView;
  readonly #inbox: Inbox;
  readonly #sender: Sender;
  readonly #calls: OpenCalls;
  readonly #executor: Executor;
  readonly #questions: Questions;
  #core: CoreClass | undefined;
  #tools: readonly CoreTool[] = [];
  /** The tools as text. */
  #offered = '[]';
  #leftOut: readonly LeftOut[] = [];
  readonly #watchers = new Set<() => void>();
  readonly #starting = new Set<{ resolve(): void; reject(error: Error): void }>();
  readonly #stopListening: () => void;
  readonly #stopWatchingPage: () => void;
  /** Whether there was a call whose caller wants to know its progress. */
  #wantsProgress = false;
  #isStopped = false;
  #failure: Error | undefined;
  #closed: CloseReason = { kind: 'closed' };

  constructor(port: RoomPort, emitter: Emitter, options: DriverOptions) {
    this.#port = port;
    this.#emitter = emitter;
    this.#options = options;
    const warn = (message: string) => emitter.emit('warning', { message });
    const runner = new SessionRunner({
      output: (output) => this.#carryOut(output),
      drained: () => this.#notifyWatchers(),
      malformed: warn,
      panicked: (error) => this.#fail(error, true),
    });
    this.#runner = runner;
    this.#sender = new Sender(port, runner);
    this.#view = new RoomView(port, options, {
      isOpen: () => runner.isOpen,
      pass: (fields) => runner.pass(fields),
      interrupt: () => this.#sender.interrupt(),
      restored: () => this.#inbox.passEarly(),
      warn,
    });
    this.#inbox = new Inbox(port, runner, this.#view);
    this.#calls = new OpenCalls(runner);
    this.#executor = new Executor(runner, (tool, error) => emitter.toolThrew(tool, error), warn);
    this.#questions = new Questions(options.consent, {
      check: (ask) => this.#executor.check(ask),
      refused: (key, error) => this.#executor.settle(key, { error }),
      answered: (key, allowed) => runner.pass({ type: 'consent', key, allowed }),
      until: (time) => runner.until(time),
      warn,
    });
    this.#stopListening = port.listen({
      connected: () => this.#start(),
      reconnecting: () => this.#view.reconnecting(),
      reconnected: () => (runner.isOpen ? this.#view.reconnected() : this.#start()),
      disconnected: (reason) => this.#disconnected(reason),
      changed: (identity) => this.#view.touch(identity),
      packet: (packet) => this.#inbox.packet(packet),
      stream: (stream) => void this.#inbox.stream(stream),
      unreadable: (from, why) => this.#inbox.unreadable(from, why),
    });
    this.#stopWatchingPage = port.onPageLeave?.(() => this.#leavePage(), () => this.#start()) ?? (() => {});
    emitter.wantedChanged = () => this.#listen();
    void this.#load();
  }

  /** Whether there is a session. */
  get isOpen(): boolean {
    return this.#runner.isOpen;
  }

  /** The tools that the session does not offer. */
  get leftOut(): readonly LeftOut[] {
    return this.#leftOut;
  }

  /** How many byte streams were not read, because too many came before there was a session. */
  get droppedStreams(): number {
    return this.#inbox.droppedStreams;
  }

  /** Replaces the tools. */
  offer(tools: ReadonlyMap<string, NamedTool>): void {
    this.#executor.tools = tools;
    this.#tools = [...tools.values()].map(({ core }) => core);
    const text = JSON.stringify(this.#tools);
    if (text === this.#offered) return; // only the functions are others
    this.#offered = text;
    if (this.isOpen) this.#offer();
  }

  /** Resolves when there is a session. Rejects if the room is not connected, nor about to be. */
  async started(): Promise<void> {
    if (this.isOpen) return;
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#isStopped) throw new Error('this participant was closed');
    if (this.#port.state === 'disconnected') throw new Error('the room is not connected');
    await new Promise<void>((resolve, reject) => this.#starting.add({ resolve, reject }));
  }

  /** Makes a call, and returns its name. `raw` has the fields that are JSON texts. */
  call(fields: object, raw: RawFields, call: OpenCall): number {
    if (call.wantsProgress && !this.#wantsProgress) {
      this.#wantsProgress = true;
      this.#listen();
    }
    return this.#calls.begin(fields, raw, call);
  }

  /** Passes an input of the author. Throws if it is malformed. */
  input(fields: object, raw: RawFields = {}): Reply | undefined {
    if (!this.isOpen) return undefined;
    const reply = this.#runner.handle(fields, raw);
    this.#runner.drain();
    return reply;
  }

  /** Asks the session. */
  query(fields: Query): Reply | undefined {
    return this.#runner.query(fields);
  }

  /** Calls a function after each change of the session, until the returned function is called. */
  watch(changed: () => void): () => void {
    this.#watchers.add(changed);
    return () => this.#watchers.delete(changed);
  }

  /** Says goodbye and leaves the room to others. Resolves when the last packets are sent, or after a second. */
  async stop(): Promise<void> {
    if (this.#isStopped) return;
    this.#isStopped = true;
    this.#leavePage();
    const flushed = this.#flushed();
    this.#detach('this participant was closed', flushed);
    await flushed;
  }

  /** Resolves when the last packets are sent, or after a second. */
  async #flushed(): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const limit = new Promise<void>((resolve) => (timer = setTimeout(resolve, FLUSH)));
    await Promise.race([this.#sender.flushed(), limit]);
    clearTimeout(timer);
  }

  async #load(): Promise<void> {
    for (const wait of [...LOAD_AGAIN, undefined]) {
      try {
        const core = await this.#options.load();
        await lastPackets(this.#port.room);
        this.#core = core;
        return this.#start();
      } catch (error) {
        if (this.#isStopped) return;
        const why = `the core cannot be loaded: ${textOf(error)}`;
        if (wait === undefined) return this.#fail(new Error(why, { cause: error }), false);
        this.#emitter.emit('warning', { message: `${why}; it is tried again in ${wait / 1_000} s` });
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
      if (this.#isStopped) return;
    }
  }

  /** Begins a session, if the room is connected and the core is loaded. */
  #start(): void {
    const port = this.#port;
    if (this.#core === undefined || this.isOpen || this.#isStopped) return;
    if (port.state !== 'connected') return;
    const { role, consent, config } = this.#options;
    const local = port.local();
    const room = { lossy: true, streams: true, room: port.name, overhead: port.overhead, consentAvailable: consent !== undefined };
    this.#sender.begin();
    this.#view.begin(local);
    try {
      this.#runner.begin(this.#core, { role, local, seed: seed(), config: { ...room, ...config } });
    } catch (error) {
      return this.#fail(new Error(`the session cannot be created: ${textOf(error)}`, { cause: error }), false);
    }
    this.#listen();
    this.#offer();
    this.#view.reportAll();
    this.#emitter.emit('connected', { identity: local.identity, room: port.name });
    if (port.isHidden === true) {
      const message =
        `the token of ${local.identity} hides it: others do not see the participant, so it can neither offer tools nor call ` +
        'any; have the token server leave out `hidden`';
      this.#emitter.emit('warning', { message });
    } else if (role === 'assistant' && !mayBeAssistant(local)) {
      const message =
        `the token of ${local.identity} does not make it an assistant: clients serve it only if they name it (option ` +
        '`assistant`). Otherwise use a token with the attribute toolbridge.role=assistant, or of a LiveKit agent without a role';
      this.#emitter.emit('warning', { message });
    }
    this.#inbox.passEarly();
    for (const { resolve } of this.#starting) resolve();
    this.#starting.clear();
  }

  /** Names the core's events that are needed: each of the others would be written and read for nothing, at each call. */
  #listen(): void {
    const events = NAMES_OF_THE_CORE.filter((event) => this.#emitter.wants(event) || (event === 'progress' && this.#wantsProgress));
    this.#runner.passOnly({ type: 'listen', events: [...events, 'closed'] });
  }

  #offer(): void {
    if (this.#tools.length === 0 && this.#options.role === 'assistant') return;
    const reply = this.#runner.pass({ type: 'offer', tools: this.#tools, partial: true });
    this.#leftOut = reply?.type === 'offered' ? reply.leftOut : [];
    if (this.#leftOut.length > 0) this.#emitter.emit('leftOut', { tools: this.#leftOut });
  }

  #carryOut(output: Output): void {
    switch (output.type) {
      case 'transmit':
        return this.#sender.send(output, this.#runner.takeBytes() ?? new Uint8Array());
      case 'execute':
        return void this.#executor.execute(output);
      case 'ask':
        return void this.#questions.ask(output);
      case 'select':
        return this.#select(output);
      case 'abort':
        this.#questions.withdraw(output.key, output.reason);
        return this.#executor.abort(output.key, output.reason);
      case 'progress':
        return this.#progress(output);
      case 'result':
        return this.#calls.settled(output);
      case 'event':
        return this.#event(output);
    }
  }

  #select({ key, tool, candidates }: Select): void {
    const warn = (what: string) => this.#emitter.emit('warning', { message: `the function that chooses ${what}; nobody is chosen` });
    let identity: string | undefined;
    try {
      const chosen: unknown = this.#options.choose?.(candidates, tool);
      const isCandidate = candidates.some((candidate) => candidate.identity === chosen);
      if (isCandidate) identity = chosen as string;
      else if (chosen !== undefined && chosen !== null) {
        const found = chosen instanceof Promise ? 'a promise, and must not be async' : JSON.stringify(chosen);
        warn(`returned ${found}, which is the identity of no candidate`);
      }
    } catch (error) {
      warn(`threw ${textOf(error)}`);
    }
    this.#runner.passOnly({ type: 'select', key, ...(identity !== undefined && { identity }) });
  }

  #event({ type: _, event, ...rest }: CoreEvent): void {
    if (event === 'closed') {
      this.#closed = rest['reason'] as unknown as CloseReason; // reported when everything is closed
      return;
    }
    const name = eventName(event);
    if (name !== undefined) this.#emitter.emit(name, rest as never);
  }

  #progress(progress: OwnProgress): void {
    this.#calls.progress(progress);
    const { type: _, id, ...event } = progress;
    this.#emitter.emit('progress', event);
  }

  #disconnected(reason: CloseReason): void {
    this.#sender.interrupt();
    this.#inbox.dropEarly();
    this.#close(reason, { type: 'closed', reason });
    this.#reject('the room is not connected');
  }

  /** Says goodbye at once, as when the page is about to be unloaded or frozen. */
  #leavePage(): void {
    this.#close({ kind: 'closed' }, { type: 'close' });
  }

  /** Ends the session by its last input. */
  #close(reason: CloseReason, last: object): void {
    if (!this.isOpen) return;
    this.#closed = reason;
    if (this.#runner.close(last)) this.#end(this.#closed);
  }

  /** Ends what belongs to a session. */
  #end(reason: CloseReason): void {
    this.#executor.abortAll('leaving');
    this.#questions.withdrawAll('leaving');
    this.#inbox.end();
    this.#calls.loseAll(reason.message ?? reason.text ?? 'this participant has left the room');
    this.#view.end();
    this.#emitter.emit('closed', { reason });
    this.#notifyWatchers();
  }

  /** The core is unusable: it panicked, or could not be loaded. */
  #fail(error: Error, hadSession: boolean): void {
    if (this.#failure !== undefined) return;
    this.#failure = error;
    this.#isStopped = true;
    this.#sender.interrupt();
    this.#emitter.emit('error', { error });
    if (hadSession) this.#end({ kind: 'closed', text: error.message });
    this.#detach(error.message);
  }

  #detach(why: string, leaving?: Promise<void>): void {
    this.#stopListening();
    this.#stopWatchingPage();
    release(this.#port.room, leaving);
    this.#inbox.close();
    this.#reject(why);
  }

  #reject(why: string): void {
    for (const { reject } of this.#starting) reject(this.#failure ?? new Error(why));
    this.#starting.clear();
  }

  #notifyWatchers(): void {
    for (const changed of [...this.#watchers]) changed();
  }
}

/** Returns whether clients may take it for an assistant. A role wins over the kind. */
function mayBeAssistant(who: ReportedParticipant): boolean {
  const role = who.attributes['toolbridge.role'];
  if (who.kind === 'agent') return role === undefined || role === 'assistant';
  return role === 'assistant' && !who.canUpdateMetadata;
}
