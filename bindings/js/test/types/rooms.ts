// Compiled, not run: both SDKs' rooms are accepted, and the types of arguments come from the schemas.

import { Room as NodeRoom } from '@livekit/rtc-node';
import { toStandardJsonSchema } from '@valibot/to-json-schema';
import { type } from 'arktype';
import { Room } from 'livekit-client';
import { Assistant, CallError, CallTimeout, Client, tool, ToolError, type JsonObject, type Tool, type Tools } from 'toolbridge';
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
// @ts-expect-error there is no such option
tool({ description: 'x', execute: () => 1, descripton: 'typo' });
// @ts-expect-error only `tool` makes a tool
const text: Tool = 'text';
// @ts-expect-error only `tool` makes a tool
const forgotten: Tools = { lamp: { description: 'x', execute: () => 1 } };
// @ts-expect-error only `tool` makes a tool
const functions: Tools = { lamp: () => 1, five: 5 };

/** Options that are wrong at run time are wrong for the compiler. */
export function wrong(room: Room): unknown[] {
  return [
    text,
    forgotten,
    functions,
    // @ts-expect-error there is no such time
    new Client(room, { times: { gracePeriod: 5 } }),
    // @ts-expect-error there is no such limit
    new Client(room, { caps: { running_jobs: 5 } }),
    // @ts-expect-error the answer is true or false
    new Client(room, { consent: () => 'yes' }),
    // @ts-expect-error an identity is chosen at once
    new Assistant(room, { choose: async ([first]) => first }),
    // @ts-expect-error a list
    new Assistant(room, { clients: 'phone' }),
  ];
}

/** Options may be `undefined` with the compiler's `exactOptionalPropertyTypes`, too. */
export function passedOn(bot: Assistant, signal: AbortSignal | undefined, timeout: number | undefined): Promise<JsonObject> {
  new Client(new Room(), { consent: undefined, times: { graceMs: timeout }, caps: { runningJobs: timeout } });
  new ToolError('x', { code: undefined });
  tool({ description: 'x', title: undefined, timeout, execute: () => 1 });
  return bot.call('x', {}, { signal, timeout, to: undefined, onProgress: undefined, meta: undefined });
}

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
  assistant.on('peerError', ({ code }) => same<typeof code, number>(true));
  try {
    return await assistant.call('lamp', { on: true }, { to: 'phone', timeout: 5_000, signal: AbortSignal.timeout(1), onProgress: ({ message }) => console.log(message) });
  } catch (error) {
    if (error instanceof CallTimeout) console.log(error.limitMs);
    if (error instanceof CallError) console.log(error.code, error.mayHaveRun);
    throw error;
  }
}

export function Lamp({ room }: { room: Room }): string {
  const { assistant, client, error } = useTools(room, [{ lamp }, { ark }]);
  same<typeof client, Client | undefined>(true);
  return assistant ?? error?.message ?? String(client?.isOpen);
}
