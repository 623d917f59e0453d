'use client';
/** A hook for React. */
import type { AnyRoom } from './adapters.js';
import { Client } from './index.js';
import type { Tools } from './tool.js';
import type { HookOptions, ToolsState } from './shared-client.js';
import { useToolsOf } from './use-tools.js';

export type { HookOptions, ToolsState };

/**
 * Offers tools as long as the component is mounted: an object of tools, or a list of such objects. They may be other objects at each
 * rendering: the latest handlers are run, and the assistant learns of it only if names, descriptions or schemas change.
 *
 * Any number of components may offer tools in one room: they share one client. Its `options` are those of the component that
 * was mounted first, as they are then; `consent` is always the latest.
 */
export function useTools(room: AnyRoom | undefined, tools: Tools | readonly Tools[], options: HookOptions = {}): ToolsState<Client> {
  return useToolsOf(Client, room, tools, options);
}
