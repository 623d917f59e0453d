/** A hook for React. */
import { useEffect, useRef, useState } from 'react';
import { Client, type AnyRoom, type ClientOptions, type Tools } from 'toolbridge';

/** What {@link useTools} returns. */
export interface ToolsState {
  /** Missing until the effects have run, and while there is no room. */
  readonly client: Client | undefined;
  /** The identity of the assistant that may call the tools. */
  readonly assistant: string | undefined;
  /** Why the tools cannot be offered, if they cannot. */
  readonly error: Error | undefined;
}

/**
 * Offers tools as long as the component is mounted. The tools may be other objects at each rendering: the latest handlers
 * are run, and the assistant learns of it only if names, descriptions or schemas change.
 *
 * `options` are read when the room changes; `consent` is always the latest.
 */
export function useTools(room: AnyRoom | undefined, tools: Tools, options: Omit<ClientOptions, 'tools'> = {}): ToolsState {
  const latest = useRef({ tools, options });
  latest.current = { tools, options };
  const [state, setState] = useState<ToolsState>(NONE);

  useEffect(() => {
    if (room === undefined) return undefined;
    const { consent, ...rest } = latest.current.options;
    let client: Client;
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
  }, [room]);

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
