import type { CloseReason, CoreEvents, LeftOut } from './core.js';
import { unknown } from './options.js';
import { CORE_EVENTS } from './vocabulary.js';

/** What happens in a room, by the names for `on`. */
export interface Events extends CoreEvents {
  /** A session has begun: the room is connected, and the core is loaded. */
  connected: { readonly identity: string; readonly room: string };
  /** The tools that the core refuses, and why. The others are offered. */
  leftOut: { readonly tools: readonly LeftOut[] };
  /** The session has ended. It begins again if the room is connected again. */
  closed: { readonly reason: CloseReason };
  /** Something is wrong that does not end the session. */
  warning: { readonly message: string };
  /** The core has failed. This participant is closed; the rest of the program is not affected. */
  error: { readonly error: Error };
}

export type EventName = keyof Events;

/** All events. */
const ALL: readonly EventName[] = [...CORE_EVENTS, 'connected', 'leftOut', 'closed', 'warning', 'error'];

/** The names of the core's events that are passed on. */
const NAMES: ReadonlyMap<string, EventName> = new Map(
  CORE_EVENTS.map((name) => [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), name]),
);

/** The core's own names of its events. */
export const NAMES_OF_THE_CORE: readonly string[] = [...NAMES.keys()];

/** Returns the name of one of the core's events. */
export function eventName(event: string): EventName | undefined {
  return NAMES.get(event);
}

type Listener<Name extends EventName> = (event: Events[Name]) => void;

/** What is printed to the console if nobody listens: what keeps tools from working at all. */
const LOUD: ReadonlySet<EventName> = new Set(['unaccepted', 'notAdmitted', 'notAllowed', 'ambiguousAssistant', 'leftOut', 'warning', 'error']);

/** Calls the listeners of events. One that throws affects nobody else. */
export class Emitter {
  readonly #listeners = new Map<EventName, Set<(event: never) => void>>();
  readonly #printed = new Set<string>();
  /** Called when other events of the core are wanted. */
  wantedChanged: () => void = () => {};

  /** Returns whether somebody listens to one of the core's events, or it is printed otherwise. */
  wants(event: string): boolean {
    const name = NAMES.get(event);
    return name !== undefined && (LOUD.has(name) || (this.#listeners.get(name)?.size ?? 0) > 0);
  }

  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    if (!(ALL as readonly string[]).includes(name)) throw new TypeError(unknown('event', String(name), ALL));
    if (typeof listener !== 'function') throw new TypeError(`the listener of "${name}" must be a function`);
    // Its own function, so that a listener that is added twice is called and removed twice.
    const own: Listener<Name> = (event) => listener(event);
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners);
    listeners.add(own);
    const isOfTheCore = (CORE_EVENTS as readonly string[]).includes(name);
    if (isOfTheCore && listeners.size === 1) this.wantedChanged();
    return () => {
      if (listeners.delete(own) && isOfTheCore && listeners.size === 0) this.wantedChanged();
    };
  }

  emit<Name extends EventName>(name: Name, event: Events[Name]): void {
    const listeners = this.#listeners.get(name);
    if (listeners === undefined || listeners.size === 0) {
      if (LOUD.has(name)) this.#print(name, event);
      return;
    }
    for (const listener of [...listeners]) runSafely(listener as Listener<Name>, event, `a listener of "${name}"`);
  }

  /** Prints what a tool threw, unless somebody listens to `toolFailed`: its caller does not see it. */
  toolThrew(tool: string, error: unknown): void {
    if ((this.#listeners.get('toolFailed')?.size ?? 0) > 0) return;
    console.error(`toolbridge: the tool "${tool}" threw; the caller gets execution_error`, error);
  }

  /** Prints an event, once. */
  #print(name: EventName, event: Events[EventName]): void {
    const text = inWords(name, event);
    if (this.#printed.has(text) || this.#printed.size >= MAX_PRINTED) return;
    this.#printed.add(text);
    console.warn(`toolbridge: ${text}`);
  }
}

/** Calls a function of the author that may be `async`: what it throws is printed, and affects nobody else. */
export function runSafely<Argument>(run: (argument: Argument) => unknown, argument: Argument, what: string): void {
  const threw = (error: unknown) => console.error(`toolbridge: ${what} threw`, error);
  try {
    const returned = run(argument);
    if (returned instanceof Promise) returned.catch(threw);
  } catch (error) {
    threw(error);
  }
}

/** The most different texts that are printed. */
const MAX_PRINTED = 64;

function inWords(name: EventName, event: Events[EventName]): string {
  const { message, error } = event as Readonly<Record<string, unknown>>;
  if (typeof message === 'string') return message;
  if (error instanceof Error) return error.message;
  if (name === 'leftOut') {
    const { tools } = event as Events['leftOut'];
    return `not offered: ${tools.map(({ tool, why }) => `${tool ?? 'tools'}: ${why}`).join('; ')}`;
  }
  if (name === 'ambiguousAssistant') {
    const { candidates } = event as Events['ambiguousAssistant'];
    return `several participants may be the assistant: ${candidates.join(', ')}; name one with the option \`assistant\``;
  }
  return name;
}
