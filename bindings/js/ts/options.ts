/** Checks what an application passes, before anything has changed. Each error names the option and what it may be. */
import { isObject } from './json.js';

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
export const CALL_OPTIONS = ['to', 'timeout', 'ownerWait', 'signal', 'onProgress', 'meta'];

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

/** Says that there is no option or event of this name, which one is meant, and which there are. */
export function unknown(what: string, name: string, known: readonly string[]): string {
  // As Python writes it, too: `read_only`.
  const meant = known.find((it) => it.toLowerCase() === name.replaceAll('_', '').toLowerCase());
  const hint = meant === undefined ? '' : ` (did you mean "${meant}"?)`;
  return `there is no ${what} "${name}"${hint}; the ${what}s are ${[...known].sort().join(', ')}`;
}

function expect(isRight: boolean, where: string, what: string, value: unknown): void {
  if (!isRight) throw new TypeError(`${where} must be ${what}, not ${value === null ? 'null' : typeof value}`);
}

function shown(value: unknown): string {
  return typeof value === 'string' ? `"${value}"` : String(value);
}
