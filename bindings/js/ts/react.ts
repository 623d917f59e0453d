/** A hook for React. */
import type { AnyRoom } from './adapters.js';
import { Client } from './index.js';
import type { Tools } from './tool.js';
import { useToolsOf, type HookOptions, type ToolsState } from './use-tools.js';

export type { HookOptions, ToolsState };

/**
 * Offers tools as long as the component is mounted. The tools may be other objects at each rendering: the latest handlers
 * are run, and the assistant learns of it only if names, descriptions or schemas change.
 *
 * `options` are read when the room changes; `consent` is always the latest.
 */
export function useTools(room: AnyRoom | undefined, tools: Tools, options: HookOptions = {}): ToolsState {
  return useToolsOf(Client, room, tools, options);
}
