import { useEffect, useRef, useState } from 'react';
import type { AnyRoom } from './adapters.js';
import type { ClientBase, ClientOptions } from './client.js';
import type { Tools } from './tool.js';

/** The options of a client, except its tools. */
export type HookOptions = Omit<ClientOptions, 'tools'>;

/** What `useTools` returns. */
export interface ToolsState {
  /** Missing until the effects have run, and while there is no room. */
  readonly client: ClientBase | undefined;
  /** The identity of the assistant that may call the tools. */
  readonly assistant: string | undefined;
  /** Why the tools cannot be offered, if they cannot. */
  readonly error: Error | undefined;
}

/** The hook, with the class of one entry. */
export function useToolsOf(
  Client: new (room: AnyRoom, options: ClientOptions) => ClientBase,
  room: AnyRoom | undefined,
  tools: Tools,
  options: HookOptions,
): ToolsState {
  const latest = useRef({ tools, options });
  latest.current = { tools, options };
  const [state, setState] = useState<ToolsState>(NONE);

  useEffect(() => {
    if (room === undefined) return undefined;
    const { consent, ...rest } = latest.current.options;
    let client: ClientBase;
    try {
      client = new Client(room, {
        ...rest,
        tools: latest.current.tools,
        ...(consent && { consent: (ask) => latest.current.options.consent?.(ask) ?? false }),
      });
    } catch (error) {
      setState({ ...NONE, error: error instanceof Error ? error : new Error(String(error)) });
      return undefined;
    }
    const stop = [
      client.on('bound', ({ assistant }) => setState((was) => ({ ...was, assistant }))),
      client.on('closed', () => setState((was) => ({ ...was, assistant: undefined }))),
      client.on('error', ({ error }) => setState((was) => ({ ...was, error }))),
    ];
    setState({ client, assistant: client.assistant, error: undefined });
    return () => {
      for (const end of stop) end();
      void client.close();
      setState(NONE);
    };
  }, [Client, room]);

  const { client } = state;
  useEffect(() => {
    if (client === undefined) return;
    try {
      client.offer(tools);
      setState((was) => (was.error === undefined ? was : { ...was, error: undefined }));
    } catch (error) {
      setState((was) => ({ ...was, error: error instanceof Error ? error : new Error(String(error)) }));
    }
  }, [client, tools]);

  return state;
}

const NONE: ToolsState = { client: undefined, assistant: undefined, error: undefined };
