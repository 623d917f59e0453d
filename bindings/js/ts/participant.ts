import { portOf, type AnyRoom } from './adapters.js';
import type { CoreParticipant, CoreTool, LoadCore, Offer as CoreOffer, Reply, Select } from './core.js';
import { Driver } from './driver.js';
import { Emitter, type EventName, type Events } from './events.js';
import { checkOptions, type CapName, type TimeName } from './options.js';
import type { AskPerson } from './questions.js';
import { checkRandomness } from './randomness.js';
import { claim, release } from './room-claim.js';
import type { Rule } from './room-view.js';
import { fields, nameTools, type Tools } from './tool.js';

/** What clients and assistants have in common. Times are in milliseconds. */
export interface ParticipantOptions {
  /** The tools that this participant offers. */
  readonly tools?: Tools | readonly Tools[] | undefined;
  /** Asks a person before a tool runs that needs consent. Without it, such tools are not offered. */
  readonly consent?: AskPerson | undefined;
  /** The name and version that others see. */
  readonly version?: string | undefined;
  /** Small frames are sent over the lossy channel first. Default: true. */
  readonly fastLane?: boolean | undefined;
  /** Times of the protocol. */
  readonly times?: { readonly [Name in TimeName]?: number | undefined } | undefined;
  /** Limits of the protocol. */
  readonly caps?: { readonly [Name in CapName]?: number | undefined } | undefined;
}

/** @internal */
export interface RoleOptions extends ParticipantOptions {
  readonly config: Readonly<Record<string, unknown>>;
  readonly admit?: Rule | undefined;
  readonly mayStop?: Rule | undefined;
  readonly choose?: ((candidates: Select['candidates'], tool: string | undefined) => string | undefined) | undefined;
}

/** A tool that can be called now. */
export interface OfferedTool {
  /** The identity of the participant that offers it. */
  readonly owner: string;
  readonly tool: ToolDescription;
}

/** A tool as its owner describes it. The texts come from others. */
export interface ToolDescription {
  readonly name: string;
  readonly description: string;
  /** The JSON Schema of the arguments. */
  readonly parameters: NonNullable<CoreTool['inputSchema']>;
  readonly title?: string;
  readonly destructive?: boolean;
  readonly idempotent?: boolean;
  readonly readOnly?: boolean;
}

/** A participant of a room: what clients and assistants have in common. */
export abstract class Participant {
  /** @internal */
  protected readonly driver: Driver;
  readonly #emitter = new Emitter();
  #closing: Promise<void> | undefined;

  /** @internal */
  protected constructor(room: AnyRoom, role: 'client' | 'assistant', options: RoleOptions, load: LoadCore) {
    const { tools, consent, version, fastLane, times, caps, config, admit, mayStop, choose } = options;
    checkOptions({ consent, version, fastLane, times, caps, admit, allowStop: mayStop });
    const named = nameTools(tools ?? {});
    const port = portOf(room);
    const own = role === 'client' ? 'a Client' : 'an Assistant';
    checkRandomness();
    claim(port.room, own);
    try {
      this.driver = new Driver(port, this.#emitter, {
        role,
        load,
        config: { ...config, ...fields({ version, fastLane, times, caps }) },
        consent,
        admit,
        mayStop,
        choose,
      });
    } catch (error) {
      release(port.room);
      throw error;
    }
    this.driver.offer(named);
  }

  /** Calls a function at each such event. Returns what ends that. */
  on<Name extends EventName>(name: Name, listener: (event: Events[Name]) => void): () => void {
    return this.#emitter.on(name, listener);
  }

  /** Whether the room is connected and the core is loaded. */
  get isOpen(): boolean {
    return this.driver.isOpen;
  }

  /** Replaces the offered tools. @throws TypeError that names a tool that cannot be offered; nothing changes then. */
  offer(tools: Tools | readonly Tools[]): void {
    this.driver.offer(nameTools(tools));
  }

  /** The participants in the room that toolbridge knows. */
  participants(): readonly CoreParticipant[] {
    const reply = this.driver.query({ type: 'participants' });
    return reply?.type === 'participants' ? reply.participants : [];
  }

  /**
   * Counters, such as dropped and repeated frames. Those that are 0 are missing. Besides the core's they have `dropped_streams`: byte
   * streams that were not read, because too many arrived before the participant could read any.
   */
  stats(): Readonly<Record<string, number>> {
    const reply = this.driver.query({ type: 'stats' });
    const dropped = this.driver.droppedStreams;
    return { ...(reply?.type === 'stats' && reply.stats), ...(dropped > 0 && { dropped_streams: dropped }) };
  }

  /**
   * Says goodbye, stops the tools that run, and leaves the room to others; the room stays connected. Resolves when the last
   * packets are sent, or after a second.
   */
  close(): Promise<void> {
    this.#closing ??= this.driver.stop();
    return this.#closing;
  }
}

/** @internal */
export function describeTool({ name, description, inputSchema, title, destructive, idempotent, readOnly }: CoreTool): ToolDescription {
  return { name, description, parameters: inputSchema ?? { type: 'object' }, ...fields({ title, destructive, idempotent, readOnly }) };
}

/** @internal */
export function describeOffers(offers: readonly CoreOffer[]): OfferedTool[] {
  return offers.map(({ owner, tool }) => ({ owner, tool: describeTool(tool) }));
}

/** @internal @throws Error with the core's text if an input had no effect. */
export function expectDone(reply: Reply | undefined, what: string): void {
  if (reply === undefined) throw new Error(`${what}: this participant is not in the room`);
  if (reply.type === 'failed') throw new Error(`${what}: ${reply.message}`);
}
