// What React Native adds to Hermes, with react-native-get-random-values and LiveKit's SDK for React Native. Time is virtual, because the
// timers of Hermes's command line do not wait: the next timer is due as soon as nothing else is left to do.

import { AbortController } from 'abort-controller/dist/abort-controller.js';

const { setImmediate: soon } = globalThis;
const timers = new Map();
let lastTimer = 0;
let now = 0;
/** How many functions of `setImmediate` have not run. */
let immediates = 0;

/** Runs the next timer. */
function fire() {
  if (immediates > 0) return soon(fire);
  const [next] = [...timers].sort(([, a], [, b]) => a.due - b.due);
  if (next === undefined) return; // it was cleared
  const [timer, { run, due }] = next;
  timers.delete(timer);
  now = due;
  run();
}

Object.assign(globalThis, {
  setTimeout(run, delay = 0) {
    timers.set(++lastTimer, { run, due: now + delay });
    soon(fire);
    return lastTimer;
  },
  clearTimeout: (timer) => void timers.delete(timer),
  setImmediate(run) {
    immediates += 1;
    soon(() => {
      immediates -= 1;
      run();
    });
  },
  queueMicrotask: (run) => void Promise.resolve().then(run),
  performance: { now: () => now },
  console: { assert() {}, error() {}, warn() {} },
  crypto: { getRandomValues: (bytes) => bytes.map(() => Math.random() * 256) },
  AbortController, // an old one: its signals have neither `reason` nor `throwIfAborted`
});
Object.defineProperty(Symbol, 'asyncIterator', { value: Symbol('Symbol.asyncIterator') });
