import { useEffect, useRef, useState } from 'react';
import type { AnyRoom } from './adapters.js';
import { NONE, SharedClient, type ClientClass, type HookOptions, type Share, type ToolsState } from './shared-client.js';
import type { Tools } from './tool.js';

/** The hook, with the class of one entry. */
export function useToolsOf(
  Client: ClientClass,
  room: AnyRoom | undefined,
  tools: Tools | readonly Tools[],
  options: HookOptions,
): ToolsState {
  const share = useRef<Share>({ tools, options, changed: () => {} }).current;
  const [state, setState] = useState<ToolsState>(NONE);

  useEffect(() => {
    if (room === undefined) return undefined;
    const shared = SharedClient.of(Client, room);
    share.changed = () => setState((was) => ifChanged(was, shared.state(share)));
    const remove = shared.add(share);
    return () => {
      share.changed = () => {};
      remove();
      setState(NONE);
    };
  }, [Client, room, share]);

  // At each rendering whose tools or options are other objects. If nothing of it matters, nothing is rendered again.
  useEffect(() => {
    [share.tools, share.options] = [tools, options];
    if (room !== undefined) SharedClient.of(Client, room).update();
  }, [Client, room, share, tools, options]);

  return state;
}

/** Errors are others at each rendering, though they say the same. */
function ifChanged(was: ToolsState, is: ToolsState): ToolsState {
  const isSame = was.client === is.client && was.assistant === is.assistant && was.error?.message === is.error?.message;
  return isSame ? was : is;
}
