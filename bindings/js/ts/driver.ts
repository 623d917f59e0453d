/** Drives a session of the core: passes it what happens in a room, and carries out its outputs. */
import {
  isInputError,
  type Abort,
  type Ask,
  type CloseReason,
  type CoreCallError,
  type CoreClass,
  type CoreEvent,
  type CoreParticipant,
  type CoreSession,
  type CoreTool,
  type Execute,
  type LoadCore,
  type Output,
  type Reply,
  type Select,
  type Transmit,
} from './core.js';
import { Emitter, eventName, type Events } from './events.js';
import { Executor, LONGEST_DELAY, Stopped, type Failure, type Reports } from './executor.js';
import { joinJson, type Json, type JsonObject } from './json.js';
import type { NamedTool } from './tool.js';
import { peer, type ReceivedPacket, type ReceivedStream, type RoomPort } from './room-port.js';
import { SendQueue, type SendFailure } from './send-queue.js';

/** The largest frame that is read, in bytes. A stream that is longer is not read to its end. */
const MAX_FRAME = 16 * 1024 * 1024;

/** What arrives before the session exists waits; at most this many packets and bytes. Their senders repeat what is dropped. */
const EARLY_PACKETS = 1_024;
const EARLY_BYTES = 4 * 1024 * 1024;

/** The most streams that are read at the same time. */
const STREAMS = 64;

/** The time limit of sending the last packets, in milliseconds. */
const FLUSH = 1_000;

/** What a person is asked. */
export interface ConsentRequest {
  /** A question for a dialog, with the tool and the arguments. They come from others: show it as text, not as HTML. */
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

/** A rule about participants. One that throws counts as `false`. */
export type Rule = (participant: CoreParticipant) => boolean;

export interface DriverOptions {
  readonly role: 'client' | 'assistant';
  /** The core's `config`, except what the room says. */
  readonly config: Readonly<Record<string, unknown>>;
  readonly caps?: Readonly<Record<string, number>> | undefined;
  readonly consent?: AskPerson | undefined;
  readonly admit?: Rule | undefined;
  readonly mayStop?: Rule | undefined;
  readonly choose?: ((candidates: Select['candidates'], tool: string | undefined) => string | undefined) | undefined;
  readonly load: LoadCore;
}

/** A question to the session. */
export interface Query {
  readonly type: string;
  readonly [field: string]: Json;
}

/** What becomes of a call. */
export interface OpenCall {
  settled(result: { readonly value: Json } | { readonly error: CoreCallError }): void;
  progress(event: Events['progress']): void;
  /** The session ended otherwise than by its own outputs. */
  lost(message: string): void;
}

export class Driver {
  readonly #port: RoomPort;
  readonly #options: DriverOptions;
  readonly #emitter: Emitter;
  readonly #executor: Executor;
  readonly #queue: SendQueue;
  #tools: readonly CoreTool[] = [];
  /** The tools as text. */
  #offered = '[]';
  #core: CoreClass | undefined;
  #session: CoreSession | undefined;
  /** Performance time of the session's zero point. */
  #zero = 0;
  /** The local sid of the session. */
  #sid = '';
  /** What the core knows of the participants, by identity: their sids, and their descriptions as texts. */
  readonly #told = new Map<string, { readonly sid: string; readonly text: string }>();
  readonly #changed = new Set<string>();
  #isFlushScheduled = false;
  #isReconnecting = false;
  #isAnnounced = false;
  readonly #early: ReceivedPacket[] = [];
  #earlyBytes = 0;
  #streams = 0;
  #isDraining = false;
  /** What the core was told of the queue: the bytes that wait, and how many reliable packets were queued before. */
  #backlog = 0;
  #pushed = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** When the timer is due, since zero. */
  #due: number | undefined;
  readonly #calls = new Map<number, OpenCall>();
  readonly #questions = new Map<number, AbortController>();
  readonly #watchers = new Set<() => void>();
  readonly #starting = new Set<{ resolve(): void; reject(error: Error): void }>();
  readonly #stopListening: () => void;
  readonly #stopWatchingPage: () => void;
  #isStopped = false;
  #failure: Error | undefined;
  #closed: CloseReason = { kind: 'closed' };

  constructor(port: RoomPort, emitter: Emitter, options: DriverOptions) {
    this.#port = port;
    this.#emitter = emitter;
    this.#options = options;
    const reports: Reports = {
      started: (key) => this.#pass({ type: 'progress', key }),
      progress: (key, { status, message }, content) =>
        this.#pass({ type: 'progress', key, status, message }, content === undefined ? {} : { content }),
      settle: (key, outcome) => this.#settle(key, outcome),
    };
    this.#executor = new Executor(reports, options.caps);
    this.#queue = new SendQueue(port, {
      isWanted: (packet) => {
        const reply = this.#query({ type: 'is_wanted', packet });
        return reply?.type === 'is_wanted' && reply.wanted;
      },
      failed: (packet, failure) => this.#sendFailed(packet, failure),
      moved: () => this.#drain(),
    });
    this.#stopListening = port.listen({
      connected: () => this.#start(),
      reconnecting: () => this.#reconnecting(),
      reconnected: () => this.#reconnected(),
      disconnected: (reason) => this.#disconnected(reason),
      changed: (identity) => this.#touch(identity),
      packet: (packet) => this.#packet(packet),
      stream: (stream) => void this.#stream(stream),
      unreadable: (from, why) => this.#pass({ type: 'unreadable', why, ...(from !== undefined && { from: peer(port, from) }) }),
    });
    this.#stopWatchingPage = port.onPageLeave?.(() => this.#leavePage()) ?? (() => {});
    void this.#load();
  }

  /** Whether there is a session. */
  get isOpen(): boolean {
    return this.#session !== undefined;
  }

  /** Replaces the tools. */
  offer(tools: ReadonlyMap<string, NamedTool>): void {
    this.#executor.tools = tools;
    this.#tools = [...tools.values()].map(({ core }) => core);
    const text = JSON.stringify(this.#tools);
    if (text === this.#offered) return; // only the functions are others
    this.#offered = text;
    if (this.#session !== undefined) this.#offer();
  }

  /** Resolves when there is a session. Rejects if the room is not connected, nor about to be. */
  async started(): Promise<void> {
    if (this.#session !== undefined) return;
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#isStopped) throw new Error('this participant was closed');
    if (this.#port.state === 'disconnected') throw new Error('the room is not connected');
    await new Promise<void>((resolve, reject) => this.#starting.add({ resolve, reject }));
  }

  /** Makes a call. `raw` has the fields that are JSON texts. */
  call(fields: object, raw: Readonly<Record<string, string>>, call: OpenCall): { readonly key: number; readonly call: string } | CoreCallError {
    if (this.#session === undefined) return CLOSED;
    const reply = this.#handle({ type: 'call', ...fields }, raw);
    if (reply?.type === 'called') {
      this.#calls.set(reply.key, call); // before the outputs, which may settle it
      this.#drain();
      return reply;
    }
    this.#drain();
    return reply?.type === 'refused' ? reply.error : CLOSED;
  }

  /** Passes an input of the author. Throws if it is malformed. */
  input(fields: object, raw: Readonly<Record<string, string>> = {}): Reply | undefined {
    if (this.#session === undefined) return undefined;
    const reply = this.#handle(fields, raw);
    this.#drain();
    return reply;
  }

  /** Asks the session. */
  query(fields: Query): Reply | undefined {
    return this.#query(fields);
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
    this.#queue.dropStreams();
    this.#close({ kind: 'closed' }, () => this.#pass({ type: 'close' }));
    this.#detach('this participant was closed');
    let timer: ReturnType<typeof setTimeout> | undefined;
    const limit = new Promise<void>((resolve) => (timer = setTimeout(resolve, FLUSH)));
    await Promise.race([this.#queue.flushed(), limit]);
    clearTimeout(timer);
  }

  async #load(): Promise<void> {
    try {
      this.#core = await this.#options.load();
    } catch (error) {
      return this.#fail(new Error(`the core cannot be loaded: ${textOf(error)}`, { cause: error }));
    }
    this.#start();
  }

  /** Begins a session, if the room is connected and the core is loaded. */
  #start(): void {
    const port = this.#port;
    if (this.#core === undefined || this.#session !== undefined || this.#isStopped) return;
    if (port.state !== 'connected') return;
    const local = port.local();
    const config = {
      lossy: true,
      streams: true,
      room: port.name,
      overhead: port.overhead,
      consent_available: this.#options.consent !== undefined,
      ...this.#options.config,
    };
    this.#zero = performance.now();
    this.#sid = local.sid;
    this.#isAnnounced = this.#isReconnecting = false;
    this.#backlog = 0;
    this.#pushed = this.#queue.pushed;
    this.#told.clear();
    this.#changed.clear();
    try {
      this.#session = this.#core.create(
        JSON.stringify({ type: 'create', at: 0, role: this.#options.role, local, seed: seed(), config }),
      );
    } catch (error) {
      return this.#fail(new Error(`the session cannot be created: ${textOf(error)}`, { cause: error }));
    }
    this.#told.set(local.identity, { sid: local.sid, text: JSON.stringify(local) });
    this.#offer();
    for (const who of port.participants()) this.#tell(who.identity);
    this.#tell(local.identity);
    this.#emitter.emit('connected', { identity: local.identity, room: port.name });
    const early = this.#early.splice(0);
    this.#earlyBytes = 0;
    for (const packet of early) this.#packet(packet);
    for (const { resolve } of this.#starting) resolve();
    this.#starting.clear();
  }

  #offer(): void {
    if (this.#tools.length === 0 && this.#options.role === 'assistant') return;
    const reply = this.#pass({ type: 'offer', tools: this.#tools, partial: true });
    if (reply?.type === 'offered' && reply.left_out.length > 0) this.#emitter.emit('leftOut', { tools: reply.left_out });
  }

  /** Notes that a participant has changed. It is read after the SDK has finished: it emits events amid its changes. */
  #touch(identity: string): void {
    this.#changed.add(identity);
    if (this.#isFlushScheduled) return;
    this.#isFlushScheduled = true;
    queueMicrotask(() => {
      this.#isFlushScheduled = false;
      this.#flushChanged();
    });
  }

  #flushChanged(): void {
    // While the room reconnects, the SDK forgets the participants and learns them again.
    if (this.#session === undefined || this.#isReconnecting || this.#port.state !== 'connected') return;
    if (this.#port.local().sid !== this.#sid) return this.#rejoined();
    const changed = [...this.#changed];
    this.#changed.clear();
    for (const identity of changed) this.#tell(identity);
  }

  /** Tells the core of a participant what it does not know yet. */
  #tell(identity: string): void {
    const local = this.#port.local();
    const isLocal = identity === local.identity;
    const now = isLocal ? local : this.#port.participant(identity);
    const was = this.#told.get(identity);
    if (was !== undefined && (now === undefined || now.sid !== was.sid) && !isLocal) {
      this.#told.delete(identity);
      this.#pass({ type: 'participant_left', peer: { identity, sid: was.sid } });
    }
    if (now === undefined) return;
    // For the local participant this input says that it is announced, too.
    if (isLocal && !this.#isAnnounced && !this.#port.isAnnounced()) return;
    const text = JSON.stringify(now);
    const known = this.#told.get(identity);
    if (known?.text === text && (!isLocal || this.#isAnnounced)) return;
    if (isLocal) this.#isAnnounced = true;
    this.#told.set(identity, { sid: now.sid, text });
    this.#pass({ type: 'participant_joined', participant: isLocal ? now : this.#judge(now) });
  }

  /** Evaluates the author's rules. */
  #judge(who: CoreParticipant): CoreParticipant {
    const accepts = (rule: Rule | undefined): boolean => {
      try {
        return rule?.(who) === true;
      } catch (error) {
        this.#emitter.emit('warning', { message: `the rule for ${who.identity} threw ${textOf(error)}; it counts as false` });
        return false;
      }
    };
    const { admit, mayStop } = this.#options;
    return { ...who, ...(admit && { admitted: accepts(admit) }), ...(mayStop && { may_stop: accepts(mayStop) }) };
  }

  #reconnecting(): void {
    if (this.#session === undefined || this.#isReconnecting) return;
    this.#isReconnecting = true;
    this.#pass({ type: 'connection', state: 'reconnecting' });
  }

  #reconnected(): void {
    if (this.#session === undefined) return this.#start();
    if (this.#port.local().sid !== this.#sid) return this.#rejoined();
    if (this.#isReconnecting) {
      this.#isReconnecting = false;
      this.#pass({ type: 'connection', state: 'connected' });
    }
    for (const identity of this.#told.keys()) this.#changed.add(identity);
    for (const { identity } of this.#port.participants()) this.#changed.add(identity);
    this.#flushChanged();
    this.#passEarly();
  }

  /** The local participant has another sid: no packet of the old join may be sent in the new one. */
  #rejoined(): void {
    const local = this.#port.local();
    for (const packet of this.#queue.interrupt()) this.#pass({ type: 'send_failed', packet, why: 'interrupted' });
    this.#isReconnecting = false;
    this.#sid = local.sid;
    this.#changed.clear();
    this.#told.clear();
    this.#isAnnounced = false;
    const present = this.#port.participants();
    this.#told.set(local.identity, { sid: local.sid, text: JSON.stringify(local) });
    for (const who of present) this.#told.set(who.identity, { sid: who.sid, text: JSON.stringify(who) });
    this.#pass({ type: 'rejoined', local, present: present.map((who) => this.#judge(who)) });
    this.#tell(local.identity);
    this.#passEarly();
  }

  #disconnected(reason: CloseReason): void {
    this.#queue.interrupt();
    this.#early.length = this.#earlyBytes = 0;
    this.#close(reason, () => this.#pass({ type: 'closed', reason }));
    this.#reject('the room is not connected');
  }

  #packet(packet: ReceivedPacket): void {
    if (this.#session === undefined || (this.#isReconnecting && this.#port.local().sid !== this.#sid)) {
      // It belongs to a session, or to a join, that has not begun.
      if (this.#isStopped || this.#early.length >= EARLY_PACKETS || this.#earlyBytes + packet.bytes.length > EARLY_BYTES) return;
      this.#early.push(packet);
      this.#earlyBytes += packet.bytes.length;
      return;
    }
    this.#flushChanged();
    // Not all changes are events of the SDK: that of the permission to change attributes alone is none.
    if (packet.from !== undefined && !this.#isReconnecting) this.#tell(packet.from);
    const { from, lane, topic, bytes } = packet;
    this.#pass({ type: 'packet', lane, topic, ...(from !== undefined && { from: peer(this.#port, from) }) }, {}, bytes);
  }

  #passEarly(): void {
    this.#earlyBytes = 0;
    for (const packet of this.#early.splice(0)) this.#packet(packet);
  }

  /** Reads a whole stream. One that is cut off, or longer than it said or than any frame, is dropped. */
  async #stream({ from, id, topic, length, attributes, chunks }: ReceivedStream): Promise<void> {
    const max = Math.min(length ?? MAX_FRAME, MAX_FRAME);
    // A stream that says that it is too long is refused by the core, by its header.
    const isTooLong = length !== undefined && length > MAX_FRAME;
    if (this.#streams >= STREAMS) {
      this.#emitter.emit('warning', { message: `more than ${STREAMS} byte streams arrive at once; one of ${from} is not read` });
      return;
    }
    this.#streams += 1;
    const parts: Uint8Array[] = [];
    let size = 0;
    try {
      if (!isTooLong) {
        for await (const chunk of chunks) {
          size += chunk.length;
          parts.push(chunk);
          if (size > max) break; // the core sees that it is too long
        }
      }
    } catch {
      return; // its sender repeats it
    } finally {
      this.#streams -= 1;
    }
    const session = this.#session;
    if (session === undefined) return;
    this.#flushChanged();
    const header = { from: peer(this.#port, from), id, topic, length, attributes };
    if (isTooLong) return void this.#pass({ type: 'stream_header', ...header });
    this.#pass({ type: 'stream', ...header }, {}, concat(parts, size));
  }

  /** Passes an input of the room or of a tool, and carries out what follows. */
  #pass(fields: object, raw: Readonly<Record<string, string>> = {}, bytes?: Uint8Array): Reply | undefined {
    if (this.#session === undefined) return undefined;
    const reply = this.#try(fields, raw, bytes);
    this.#drain();
    return reply;
  }

  /** Passes an input that nobody waits for: one that is malformed has no effect, and is reported. */
  #try(fields: object, raw: Readonly<Record<string, string>> = {}, bytes?: Uint8Array): Reply | undefined {
    try {
      return this.#handle(fields, raw, bytes);
    } catch (error) {
      this.#emitter.emit('warning', { message: textOf(error) });
      return undefined;
    }
  }

  #handle(fields: object, raw: Readonly<Record<string, string>>, bytes?: Uint8Array): Reply | undefined {
    const session = this.#session;
    if (session === undefined) return undefined;
    const text = this.#guard(() => session.handle(joinJson({ ...fields, at: this.#now() }, raw), bytes));
    return text === undefined ? undefined : (JSON.parse(text) as Reply);
  }

  #query(fields: Query): Reply | undefined {
    const session = this.#session;
    if (session === undefined) return undefined;
    const text = this.#guard(() => session.handle(JSON.stringify(fields)));
    return text === undefined ? undefined : (JSON.parse(text) as Reply);
  }

  /** Runs a function of the core. If it throws anything but an error about the input, the core is unusable. */
  #guard<T>(run: () => T): T | undefined {
    try {
      return run();
    } catch (error) {
      if (isInputError(error)) throw error;
      this.#fail(new Error(textOf(error), { cause: error }));
      return undefined;
    }
  }

  #now(): number {
    return performance.now() - this.#zero;
  }

  /** Carries out all outputs, and sets the timer. */
  #drain(): void {
    if (this.#isDraining) return;
    this.#isDraining = true;
    try {
      this.#carryOut();
    } finally {
      this.#isDraining = false;
    }
    this.#setTimer();
    for (const changed of [...this.#watchers]) changed();
  }

  #carryOut(): void {
    // A flood of packets does not delay timers.
    if (this.#due !== undefined && this.#due <= this.#now()) {
      this.#due = undefined;
      this.#try({ type: 'timeout' });
    }
    for (;;) {
      const text = this.#next() ?? this.#nextAfterBacklog();
      if (text === undefined) return;
      this.#carryOutOne(JSON.parse(text) as Output);
    }
  }

  /** Reports the bytes that wait to be sent, if the core cannot know them, and returns the output that follows. */
  #nextAfterBacklog(): string | undefined {
    const { backlog, pushed } = this.#queue;
    if (backlog === this.#backlog && pushed === this.#pushed) return undefined;
    this.#backlog = backlog;
    this.#pushed = pushed;
    this.#try({ type: 'backlog', size: backlog });
    return this.#next();
  }

  #next(): string | undefined {
    const session = this.#session;
    return session === undefined ? undefined : this.#guard(() => session.nextOutput());
  }

  #carryOutOne(output: Output): void {
    switch (output.type) {
      case 'transmit':
        return this.#transmit(output);
      case 'execute':
        return this.#execute(output);
      case 'ask':
        return void this.#ask(output);
      case 'select':
        return this.#select(output);
      case 'abort':
        return this.#abort(output);
      case 'settled': {
        const call = this.#calls.get(output.key);
        this.#calls.delete(output.key);
        call?.settled(output.error === undefined ? { value: output.value ?? null } : { error: output.error });
        return;
      }
      case 'event':
        return this.#event(output);
    }
  }

  #transmit(packet: Transmit): void {
    const session = this.#session;
    const bytes = session === undefined ? undefined : this.#guard(() => session.takeBytes());
    if (bytes === undefined) return;
    if (!this.#queue.push(packet, bytes)) this.#try({ type: 'send_failed', packet: packet.packet, why: 'queue_full' });
  }

  #sendFailed(packet: number, failure: SendFailure): void {
    this.#pass({ type: 'send_failed', packet, ...failure });
  }

  #execute(job: Execute): void {
    this.#executor.execute(job, this.#zero + job.deadline);
  }

  async #ask(ask: Ask): Promise<void> {
    const controller = new AbortController();
    const { key, tool, call, caller } = ask;
    this.#questions.set(key, controller);
    const session = this.#session;
    const refusal = await this.#executor.check(ask);
    let allowed = false;
    if (refusal === undefined && this.#options.consent !== undefined && !controller.signal.aborted) {
      try {
        allowed =
          (await this.#options.consent({
            text: question(ask),
            tool: { name: tool.name, description: tool.description, ...(tool.title !== undefined && { title: tool.title }) },
            arguments: ask.arguments,
            caller,
            call,
            deadline: new Date(Date.now() + (ask.until - this.#now())),
            signal: controller.signal,
          })) === true;
      } catch (error) {
        this.#emitter.emit('warning', { message: `the consent handler threw ${textOf(error)}; it counts as a refusal` });
      }
    }
    if (controller.signal.aborted || this.#session !== session) return; // withdrawn
    this.#questions.delete(key);
    if (refusal !== undefined) this.#settle(key, { error: refusal });
    else this.#pass({ type: 'consent', key, allowed });
  }

  #select({ key, tool, candidates }: Select): void {
    let identity: string | undefined;
    try {
      identity = this.#options.choose?.(candidates, tool);
    } catch (error) {
      this.#emitter.emit('warning', { message: `the function that chooses threw ${textOf(error)}; nobody is chosen` });
    }
    this.#try({ type: 'select', key, ...(identity !== undefined && { identity }) });
  }

  #abort({ key, reason }: Abort): void {
    const question = this.#questions.get(key);
    this.#questions.delete(key);
    question?.abort(new Stopped(reason));
    this.#executor.abort(key, reason);
  }

  #settle(key: number, outcome: { readonly value: string } | { readonly error: Failure }): void {
    if ('value' in outcome) return void this.#pass({ type: 'settle', key }, { value: outcome.value });
    const { partial, ...error } = outcome.error;
    this.#pass({ type: 'settle', key }, { error: joinJson(error, partial === undefined ? {} : { partial }) });
  }

  #event({ type: _, event, ...rest }: CoreEvent): void {
    if (event === 'closed') {
      this.#closed = rest['reason'] as unknown as CloseReason; // reported when everything is closed
      return;
    }
    if (event === 'progress') {
      const progress = rest as unknown as Events['progress'];
      if (progress.key !== undefined) this.#calls.get(progress.key)?.progress(progress);
    }
    const name = eventName(event);
    if (name !== undefined) this.#emitter.emit(name, rest as never);
  }

  #setTimer(): void {
    const session = this.#session;
    const due = session === undefined ? undefined : this.#guard(() => session.nextDeadline());
    if (due !== undefined && due === this.#due) return;
    clearTimeout(this.#timer);
    this.#due = due;
    if (due === undefined) return;
    // Timers fire up to a millisecond early; one that is late, as in a hidden page, does no harm.
    const delay = Math.min(Math.max(Math.ceil(due - this.#now()), 0), LONGEST_DELAY);
    this.#timer = setTimeout(() => {
      this.#due = undefined;
      this.#pass({ type: 'timeout' });
    }, delay);
  }

  /** Says goodbye at once: the page is about to be unloaded. */
  #leavePage(): void {
    this.#queue.dropStreams();
    this.#close({ kind: 'closed' }, () => this.#pass({ type: 'close' }));
  }

  /** Ends the session by its last input. */
  #close(reason: CloseReason, last: () => void): void {
    const session = this.#session;
    if (session === undefined) return;
    this.#closed = reason;
    last();
    this.#carryOut(); // also if this is called amid other outputs
    if (this.#session !== session) return; // it panicked
    this.#session = undefined;
    session.free();
    this.#end(this.#closed);
  }

  /** Ends what belongs to a session. */
  #end(reason: CloseReason): void {
    clearTimeout(this.#timer);
    this.#due = undefined;
    this.#executor.abortAll('leaving');
    for (const question of this.#questions.values()) question.abort(new Stopped('leaving'));
    this.#questions.clear();
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const call of calls) call.lost(reason.text ?? 'this participant has left the room');
    this.#told.clear();
    this.#emitter.emit('closed', { reason });
    for (const changed of [...this.#watchers]) changed();
  }

  /** The core is unusable: it panicked, or could not be loaded. */
  #fail(error: Error): void {
    if (this.#failure !== undefined) return;
    this.#failure = error;
    const hadSession = this.#session !== undefined;
    this.#session = undefined; // not freed: after a panic its memory is not to be touched
    this.#isStopped = true;
    this.#queue.interrupt();
    this.#emitter.emit('error', { error });
    if (hadSession) this.#end({ kind: 'closed', text: error.message });
    this.#detach(error.message);
  }

  #detach(why: string): void {
    this.#stopListening();
    this.#stopWatchingPage();
    release(this.#port.room);
    this.#early.length = this.#earlyBytes = 0;
    this.#reject(why);
  }

  #reject(why: string): void {
    for (const { reject } of this.#starting) reject(this.#failure ?? new Error(why));
    this.#starting.clear();
  }
}

const CLOSED: CoreCallError = {
  kind: 'closed',
  code: 'closed',
  message: 'this participant is not in the room',
  may_have_run: false,
};

/** @throws Error with the polyfill's name, if there is no source of randomness. */
export function checkRandomness(): void {
  if (typeof globalThis.crypto?.getRandomValues === 'function') return;
  throw new Error('crypto.getRandomValues is missing; in React Native, import "react-native-get-random-values" first');
}

/** Marks the rooms that are in use; by a registered symbol, since this module may be loaded twice (ESM and CommonJS). */
const USED = Symbol.for('toolbridge.used');

/** Claims a room for one participant of toolbridge. @throws Error if another one has it. */
export function claim(room: object, role: string): void {
  const used: unknown = Reflect.get(room, USED);
  if (typeof used === 'string') {
    throw new Error(`this room already has ${used}; close it before you create ${role}`);
  }
  Object.defineProperty(room, USED, { value: role, configurable: true, enumerable: false, writable: true });
}

/** Frees a room for another participant of toolbridge. */
export function release(room: object): void {
  Reflect.deleteProperty(room, USED);
}

/** The longest arguments that a question shows, in characters. */
const MAX_SHOWN = 1_000;

function question({ tool, caller, arguments: args }: Ask): string {
  const shown = JSON.stringify(args, null, 1);
  const cut = shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}…` : shown;
  return `${caller} wants to run "${tool.title ?? tool.name}": ${tool.description}\n${cut}`;
}

/** 32 random bytes in hexadecimal digits. */
function seed(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(32));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function concat(parts: readonly Uint8Array[], size: number): Uint8Array {
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
