// Compiled, not run: both SDKs' rooms are accepted, and the types of arguments come from the schemas.

import { Room as NodeRoom } from '@livekit/rtc-node';
import { toStandardJsonSchema } from '@valibot/to-json-schema';
import { type } from 'arktype';
import { Room } from 'livekit-client';
import { Assistant, CallError, CallTimeout, Client, tool, type JsonObject, type Tool } from 'toolbridge';
import { Client as PlainClient } from 'toolbridge/js';
import { useTools } from 'toolbridge/react';
import { Client as WasmClient } from 'toolbridge/wasm';
import * as v from 'valibot';
import { z } from 'zod';

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Equal<A, B>): void => {};

const lamp: Tool = tool({
  description: 'Switches the lamp',
  parameters: z.object({ on: z.boolean(), level: z.number().default(3) }),
  execute: (args, cx) => {
    same<typeof args, { on: boolean; level: number }>(true);
    same<typeof cx.signal, AbortSignal>(true);
    cx.progress('half');
    cx.progress({ status: 'in_progress', content: { n: 1 } });
    return { is: args.on };
  },
});
const ark = tool({
  description: 'x',
  parameters: type({ on: 'boolean' }),
  execute: async (args) => {
    same<typeof args, { on: boolean }>(true);
  },
});
const valibot = tool({
  description: 'x',
  parameters: toStandardJsonSchema(v.object({ on: v.boolean() })),
  execute: (args) => {
    same<typeof args, { on: boolean }>(true);
  },
});
const plain = tool({
  description: 'x',
  parameters: { type: 'object' },
  execute: (args) => {
    same<typeof args, JsonObject>(true);
  },
});
const none = tool({
  description: 'x',
  execute: (args) => {
    same<typeof args, JsonObject>(true);
  },
});

// @ts-expect-error a tool needs a description
tool({ execute: () => 1 });

export function browser(): Client {
  const room = new Room();
  new PlainClient(room);
  new WasmClient(room);
  return new Client(room, { tools: { lamp, ark, valibot, plain, none }, consent: ({ text }) => confirm(text) });
}

export async function node(): Promise<JsonObject> {
  const assistant = new Assistant(new NodeRoom(), { choose: ([first]) => first });
  new Assistant(new Room());
  new Client(new NodeRoom(), { tools: [{ lamp }, { ark }] });
  assistant.on('bound', ({ assistant }) => same<typeof assistant, string | undefined>(true));
  try {
    return await assistant.call('lamp', { on: true }, { to: 'phone', timeout: 5_000, signal: AbortSignal.timeout(1), onProgress: ({ message }) => console.log(message) });
  } catch (error) {
    if (error instanceof CallTimeout) console.log(error.limit);
    if (error instanceof CallError) console.log(error.code, error.mayHaveRun);
    throw error;
  }
}

export function Lamp({ room }: { room: Room }): string {
  const { assistant, client, error } = useTools(room, { lamp });
  return assistant ?? error?.message ?? String(client?.isOpen);
}
