/** Checks what an application passes, before anything has changed. Each error names the option and what it may be. */
import { isObject } from './json.js';
import { CAP_NAMES, TIME_NAMES } from './vocabulary.js';

const TEXTS = ['description', 'title', 'shortTitle', 'source'];
const FLAGS = ['destructive', 'idempotent', 'readOnly', 'openWorld', 'preferClient'];
const FUNCTIONS = ['execute', 'validate'];
const CHOICES: Readonly<Record<string, readonly string[]>> = {
  consent: ['never', 'once_per_session', 'always'],
  disclose: ['full', 'name', 'nothing'],
  bargeIn: ['cancel', 'finish', 'report'],
};
/** The times of a tool, and whether they may be 0. */
const TIMES: Readonly<Record<string, boolean>> = { timeout: false, patience: false, cancelGrace: true };
const OTHERS = ['parameters', 'outputSchema', 'meta'];
const ALL = [...TEXTS, ...FLAGS, ...FUNCTIONS, ...Object.keys(CHOICES), ...Object.keys(TIMES), ...OTHERS];

/** The longest time of the core's inputs, in milliseconds. */
const LONGEST = 9_007_199_254_000;

const COMMON = ['tools', 'consent', 'version', 'fastLane', 'times', 'caps'];
/** The options of constructors and calls. */
export const CLIENT_OPTIONS = [...COMMON, 'assistant'];
export const ASSISTANT_OPTIONS = [...COMMON, 'clients', 'admit', 'admitOnlyRoles', 'allowStop', 'pins', 'choose'];
export const CALL_OPTIONS = ['model', 'to', 'timeout', 'ownerWait', 'signal', 'onProgress', 'meta'];

/** The name of a time of the protocol. */
export type TimeName = (typeof TIME_NAMES)[number];
/** The name of a limit of the protocol. */
export type CapName = (typeof CAP_NAMES)[number];

/** @throws TypeError that names the option of a client or an assistant that has a value that it cannot have. */
export function checkOptions(options: Readonly<Record<string, unknown>>): void {
  for (const [name, value] of Object.entries(options)) {
    const where = `\`${name}\``;
    if (value === undefined) continue;
    if (['consent', 'admit', 'allowStop'].includes(name)) expect(typeof value === 'function', where, 'a function', value);
    else if (['version', 'assistant'].includes(name)) expect(typeof value === 'string', where, 'a text', value);
    else if (['fastLane', 'admitOnlyRoles'].includes(name)) expect(typeof value === 'boolean', where, 'true or false', value);
    else if (['clients', 'pins'].includes(name)) expect(Array.isArray(value), where, 'a list', value);
    else {
      expect(isObject(value), where, 'an object', value);
      checkNames(where, value as object, name === 'times' ? TIME_NAMES : CAP_NAMES);
      for (const [key, item] of Object.entries(value as object)) {
        if (item === undefined) continue;
        if (name === 'times') checkTime(`\`times.${key}\``, item, true);
        else expect(Number.isSafeInteger(item) && (item as number) >= 0, `\`caps.${key}\``, 'a whole number of 0 or more', item);
      }
    }
  }
}

/** @throws TypeError that names what it is for, if there is no such option. */
export function checkNames(of: string, options: object, known: readonly string[]): void {
  const found = Object.keys(options).find((name) => !known.includes(name));
  if (found !== undefined) throw new TypeError(`${of}: ${unknown('option', found, known)}`);
}

/** @throws TypeError that names the tool, if an option is unknown or has a value that it cannot have. */
export function checkToolOptions(tool: string, options: object): void {
  checkNames(`tool "${tool}"`, options, ALL);
  for (const [name, value] of Object.entries(options)) {
    const where = `tool "${tool}": \`${name}\``;
    if (value === undefined) continue;
    const choices = CHOICES[name];
    if (TEXTS.includes(name)) expect(typeof value === 'string', where, 'a text', value);
    else if (FLAGS.includes(name)) expect(typeof value === 'boolean', where, 'true or false', value);
    else if (FUNCTIONS.includes(name)) expect(typeof value === 'function', where, 'a function', value);
    else if (name === 'outputSchema' || name === 'meta') expect(isObject(value), where, 'an object', value);
    else if (name in TIMES) checkTime(where, value, TIMES[name] === true);
    else if (choices !== undefined) checkChoice(where, value, choices);
  }
}

/** @throws TypeError if the value is none of these names. */
export function checkChoice(where: string, value: unknown, choices: readonly string[]): void {
  if (choices.includes(value as string)) return;
  throw new TypeError(`${where} is ${shown(value)}; it must be one of ${choices.map((it) => `"${it}"`).join(', ')}`);
}

/** @throws TypeError if this is no number of milliseconds that a limit can have. */
export function checkTime(where: string, time: unknown, mayBeZero = false): void {
  if (typeof time === 'number' && time >= 0 && time <= LONGEST && (time > 0 || mayBeZero)) return;
  throw new TypeError(`${where} is ${shown(time)}; it must be a number of milliseconds ${mayBeZero ? 'of 0 or more' : 'above 0'}`);
}

/** @throws TypeError if this is neither missing nor the signal of an `AbortController`. */
export function checkSignal(signal: unknown): void {
  if (signal === undefined) return;
  const is = isObject(signal) && typeof signal['addEventListener'] === 'function' && typeof signal['removeEventListener'] === 'function';
  if (!is) throw new TypeError(`\`signal\` must be an AbortSignal, not ${shown(signal)}`);
}

/** Says that there is no option or event of this name, which one is meant, and which there are. */
export function unknown(what: string, name: string, known: readonly string[]): string {
  // As Python writes it, too: `read_only`.
  const plain = (it: string) => it.replaceAll('_', '').toLowerCase();
  const meant = known.find((it) => plain(it) === plain(name));
  const hint = meant === undefined ? '' : ` (did you mean "${meant}"?)`;
  return `there is no ${what} "${name}"${hint}; the ${what}s are ${[...known].sort().join(', ')}`;
}

function expect(isRight: boolean, where: string, what: string, value: unknown): void {
  if (isRight) return;
  const found = value === null || typeof value === 'number' ? String(value) : typeof value;
  throw new TypeError(`${where} must be ${what}, not ${found}`);
}

function shown(value: unknown): string {
  return typeof value === 'string' ? `"${value}"` : String(value);
}
