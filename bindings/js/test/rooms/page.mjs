// A page that is a client or an assistant. The tests run functions in it. It has no import map and no inline script, so that
// it works with a strict policy.

import * as livekit from '/node_modules/livekit-client/dist/livekit-client.esm.mjs';

import { makeCaller, offered } from './caller.mjs';
import { consent, makeTools } from './tools.mjs';

const entries = { toolbridge: 'index', 'toolbridge/js': 'js', 'toolbridge/wasm': 'wasm' };
const entry = new URL(location.href).searchParams.get('entry');
const toolbridge = await import(`/dist/esm/${entries[entry]}.js`);

globalThis.livekit = livekit;
globalThis.toolbridge = toolbridge;

/** Joins as a client, and resolves when an assistant has the tools if `registered`. */
globalThis.startClient = async ({ url, token, registered = false, options = {}, roomOptions = {} }) => {
  const { tools, seen, note, until } = makeTools(toolbridge);
  const room = new livekit.Room(roomOptions);
  const client = new toolbridge.Client(room, { tools, consent: (ask) => consent(ask, note), ...options });
  const events = [];
  for (const name of ['connected', 'bound', 'registered', 'unaccepted', 'closed', 'error', 'warning', 'violation', 'connection', 'joined']) {
    client.on(name, (event) => {
      events.push({ name, ...event });
      note(name);
    });
  }
  Object.assign(globalThis, { room, client, seen, note, until, events });
  await room.connect(url, token, { autoSubscribe: false });
  if (registered) await until('registered');
};

/** Joins as an assistant, and resolves when these clients offer tools. */
globalThis.startAssistant = async ({ url, token, clients }) => {
  const room = new livekit.Room();
  const assistant = new toolbridge.Assistant(room, {});
  Object.assign(globalThis, { room, assistant, caller: makeCaller(assistant) });
  await room.connect(url, token, { autoSubscribe: false });
  await offered(assistant, clients);
};

/** Makes a call, and returns what a test can compare. */
globalThis.tryCall = async (tool, args, options) => {
  try {
    return { value: await globalThis.assistant.call(tool, args, options) };
  } catch (error) {
    const { name, kind, code, message, mayHaveRun } = error;
    return { name, kind, code, message, mayHaveRun };
  }
};

globalThis.ready = true;
