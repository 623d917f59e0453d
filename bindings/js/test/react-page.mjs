import { createElement, StrictMode } from 'react';
import { flushSync } from 'react-dom';
import { createRoot } from 'react-dom/client';
import { Assistant, tool } from 'toolbridge';
import { useTools } from 'toolbridge/react';

import { MemoryRoom } from './memory.mjs';

const room = new MemoryRoom();
const phone = room.port('phone', { attributes: { 'toolbridge.role': 'client' } });
const agent = room.port('agent', { attributes: { 'toolbridge.role': 'assistant' } });
globalThis.bot = new Assistant(agent);
phone.connect();
agent.connect();

let registered = 0;
globalThis.bot.on('toolsChanged', () => registered++);
globalThis.registrations = () => registered;

let begin;
globalThis.hanging = new Promise((resolve) => (begin = resolve));
const hang = tool({
  description: 'Never ends',
  execute: () => {
    begin();
    return new Promise(() => {});
  },
});

globalThis.renderings = 0;

/** Another component of the same room. */
function Other({ name }) {
  const { error } = useTools(phone, [{ [name]: tool({ description: 'Another', execute: () => 'other' }) }]);
  return error ? ` other: ${error.message}` : ' other';
}

function App({ n, description, name, erases, consent, times }) {
  globalThis.renderings++;
  // Other objects at each rendering.
  const erase = tool({ description: 'Erases', destructive: true, execute: () => 'erased' });
  const own = { [name]: tool({ description, execute: () => n }), ...(erases && { erase }), hang };
  const { assistant, error, client } = useTools(phone, own, { ...(consent && { consent }), ...(times && { times }) });
  globalThis.client = client;
  return createElement('span', null, error ? `error: ${error.message}` : `${assistant ?? 'nobody'} ${n}`);
}

const root = createRoot(document.querySelector('#root'));
globalThis.render = (n, description = 'Counts', name = 'count', { other, ...options } = {}) => {
  const components = [createElement(App, { key: 'app', n, description, name, ...options })];
  if (other !== undefined) components.push(createElement(Other, { key: 'other', name: other }));
  // With its effects, which offer the tools.
  flushSync(() => root.render(createElement(StrictMode, null, ...components)));
};
globalThis.unmount = () => root.unmount();

/** Resolves with the page's text when it begins so. */
globalThis.shown = (text) =>
  new Promise((resolve) => {
    const check = () => {
      const found = document.body.textContent;
      if (!found.startsWith(text)) return false;
      observer.disconnect();
      resolve(found);
      return true;
    };
    const observer = new MutationObserver(check);
    observer.observe(document.body, { childList: true, subtree: true, characterData: true });
    check();
  });

globalThis.next = (name) =>
  new Promise((resolve) => {
    const stop = globalThis.bot.on(name, () => {
      stop();
      resolve();
    });
  });

globalThis.ready = true;
