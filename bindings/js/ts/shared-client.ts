/** One client of a room for all components that offer tools in it. */
import type { AnyRoom } from './adapters.js';
import type { ClientBase, ClientOptions } from './client.js';
import { nameTools, type Tools } from './tool.js';

/** The options of a client, except its tools. */
export type HookOptions = Omit<ClientOptions, 'tools'>;

/** The class of a client. */
export type ClientClass = new (room: AnyRoom, options: ClientOptions) => ClientBase;

/** What a component sees of the client. Another object only if something has changed. */
export interface ToolsState<Client extends ClientBase = ClientBase> {
  /** Missing until the effects have run, while there is no room, and if the options cannot be used. */
  readonly client: Client | undefined;
  /** The identity of the assistant that may call the tools. */
  readonly assistant: string | undefined;
  /** Why the tools of this component cannot be offered, if they cannot. */
  readonly error: Error | undefined;
}

export const NONE: ToolsState = { client: undefined, assistant: undefined, error: undefined };

/** What one component offers. */
export interface Share {
  tools: Tools | readonly Tools[];
  options: HookOptions;
  /** The names of its tools, unless they cannot be offered. */
  names?: ReadonlySet<string>;
  /** Why its tools cannot be offered. */
  error?: Error | undefined;
  changed(): void;
}

/** The clients of all rooms, by their classes: each entry of the package has one. */
const clients = new WeakMap<ClientClass, WeakMap<AnyRoom, SharedClient>>();

/**
 * The client of a room, as long as one component uses it. The components' tools are offered together, in the order in which their
 * effects have run; the options are those of the first one. A component whose tools cannot be offered takes nothing from the
 * others.
 */
export class SharedClient {
  readonly #Client: ClientClass;
  readonly #room: AnyRoom;
  readonly #shares = new Set<Share>();
  #client: ClientBase | undefined;
  /** Whether the client can ask a person: `consent` of a later rendering counts, too. */
  #canAsk = false;
  /** The client cannot be created, or cannot go on. */
  #failure: Error | undefined;
  #end: () => void = () => {};

  private constructor(Client: ClientClass, room: AnyRoom) {
    this.#Client = Client;
    this.#room = room;
  }

  static of(Client: ClientClass, room: AnyRoom): SharedClient {
    const rooms = clients.get(Client) ?? new WeakMap<AnyRoom, SharedClient>();
    clients.set(Client, rooms);
    const shared = rooms.get(room) ?? new SharedClient(Client, room);
    rooms.set(room, shared);
    return shared;
  }

  /** Offers what a component shares, until the returned function is called. */
  add(share: Share): () => void {
    this.#shares.add(share);
    this.update();
    return () => {
      this.#shares.delete(share);
      this.update();
    };
  }

  state(share: Share): ToolsState {
    const error = share.error ?? this.#failure ?? this.#leftOut(share);
    return { client: this.#client, assistant: this.#client?.assistant, error };
  }

  /** Offers what the components share now. Nothing changes if that is the same. */
  update(): void {
    const [first] = this.#shares;
    if (first === undefined) return this.#close();
    const canAsk = [...this.#shares].some(({ options }) => options.consent !== undefined);
    if (this.#client !== undefined && canAsk !== this.#canAsk) this.#close();
    if (this.#client === undefined) this.#open(first, canAsk);
    this.#offer();
    this.#tell();
  }

  #open({ options: { consent: _, ...options } }: Share, canAsk: boolean): void {
    const consent: ClientOptions['consent'] = (ask) => {
      const asks = [...this.#shares].find((share) => share.options.consent !== undefined);
      return asks?.options.consent?.(ask) ?? false;
    };
    let client: ClientBase;
    try {
      client = new this.#Client(this.#room, { ...options, ...(canAsk && { consent }) });
    } catch (error) {
      this.#failure = asError(error);
      return;
    }
    [this.#client, this.#canAsk, this.#failure] = [client, canAsk, undefined];
    const tell = () => this.#tell();
    const stop = [
      client.on('connected', tell),
      client.on('bound', tell),
      client.on('closed', tell),
      client.on('error', ({ error }) => {
        this.#failure = error;
        this.#tell();
      }),
    ];
    this.#end = () => {
      for (const end of stop) end();
    };
  }

  #offer(): void {
    if (this.#client === undefined) return;
    const together: Tools[] = [];
    const names = new Set<string>();
    for (const share of this.#shares) {
      try {
        const named = [...nameTools(share.tools).keys()];
        const twice = named.find((name) => names.has(name));
        if (twice !== undefined) throw new TypeError(`the tool "${twice}" is offered by another component, too`);
        for (const name of named) names.add(name);
        share.names = new Set(named);
        together.push(...(Array.isArray(share.tools) ? (share.tools as readonly Tools[]) : [share.tools as Tools]));
        share.error = undefined;
      } catch (error) {
        share.error = asError(error);
      }
    }
    this.#client.offer(together);
  }

  /** Why the session does not offer tools of a component. The console says so, too. */
  #leftOut({ names }: Share): Error | undefined {
    const own = this.#client?.leftOut.filter(({ tool }) => tool === undefined || names?.has(tool)) ?? [];
    return own.length === 0 ? undefined : new Error(own.map(({ why }) => why).join('; '));
  }

  #close(): void {
    this.#end();
    void this.#client?.close();
    this.#client = this.#failure = undefined;
  }

  #tell(): void {
    for (const share of [...this.#shares]) share.changed();
  }
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
