// Compiled, not run: CommonJS modules have types of their own.

import { Client, tool, type ToolContext } from 'toolbridge';
import { useTools } from 'toolbridge/react';

export const lamp = tool({ description: 'x', execute: (_args, cx: ToolContext) => cx.caller });
export type Hook = typeof useTools;
export type Made = InstanceType<typeof Client>;
