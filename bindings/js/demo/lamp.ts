// An app with three tools: the page of `scripts/bindings demo`.

import { Room } from 'livekit-client';
import { Client, tool, ToolError } from 'toolbridge';
import { z } from 'zod';

import { ask, join, page } from './page.js';

const tools = {
  set_lamp: tool({
    description: 'Switches the lamp on the screen',
    parameters: z.object({ on: z.boolean() }),
    execute: ({ on }) => page.lamp(on),
  }),
  get_battery: tool({
    description: 'Returns the level of the battery, from 0 to 1',
    readOnly: true,
    execute: async () => {
      const battery = await page.battery();
      if (battery === undefined) throw new ToolError('this browser does not tell its battery', { code: 'unavailable' });
      return { level: battery.level, charging: battery.charging };
    },
  }),
  notify: tool({
    description: 'Shows a notification to the user',
    parameters: z.object({ text: z.string().max(200) }),
    consent: 'always',
    execute: ({ text }) => page.notify(text),
  }),
};

const room = new Room();
const client = new Client(room, { tools, consent: ask });
client.on('bound', ({ assistant }) => page.assistant(assistant));
client.on('settled', ({ tool, outcome, tookMs }) => page.log(`${tool}: ${outcome} after ${Math.round(tookMs)} ms`));
client.on('closed', () => page.assistant(undefined));
const { url, token } = await join();
await room.connect(url, token);
