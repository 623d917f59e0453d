// Each kind of assistant with each kind of client, at least one of them of the package, in a room that is recorded; `toolbridge check` passes it.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { CELLS, openCell, optionsOf } from './cells.mjs';
import { closeBrowser, dispose } from './ends.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

const REFUSED_ARGUMENT = { Rust: 'the parameters do not fit at /n: its type must be number' };

/** Calls that fail, with the fields of their errors. */
const REFUSALS = (owner) => [
  // A program that fails has no code of its own.
  ['fail', {}, { code: owner === 'Rust' ? 'execution_error' : 'out_of_range', message: 'the watch is out of range', mayHaveRun: true }],
  ['strict', { n: 'x' }, { code: 'invalid_parameters', message: REFUSED_ARGUMENT[owner] ?? 'n: must be a number', mayHaveRun: false }],
  ['nothing', {}, { code: 'unknown_tool', mayHaveRun: false }, { ownerWait: 100 }],
  ['broken', {}, { code: 'execution_error', message: 'the tool failed' }],
  ['erase', {}, { code: 'permission_denied', mayHaveRun: false }],
  ['echo', {}, { code: 'unknown_tool', mayHaveRun: false }, { to: 'nobody', ownerWait: 100 }],
];

/** Ways to end a call that runs. Each stops the tool. */
const ENDS = [
  ['timeout', { timeout: 400 }, () => {}, 'timeout'],
  ['cancellation', {}, (call) => call.cancel(), 'cancelled'],
  ['barge-in', { turn: true }, (call) => call.bargeIn(), 'cancelled'],
];

/** A question is withdrawn with its call. */
async function withdraws({ begin, call }) {
  const asked = await begin('ask', { never: true });
  await call('until', { what: 'asked' });
  await asked.cancel();
  assert.equal((await asked.result()).error?.code, 'cancelled');
  assert.deepEqual(await call('until', { what: 'withdrawn' }), { value: { value: true } });
}

for (const cell of CELLS) {
  test(`${cell.name}: success, errors, timeout, cancellation, barge-in, progress and consent`, optionsOf(cell, 60_000), async (t) => {
    const { begin, call, recording } = await openCell(t, cell);
    const value = { a: [1, 'ö', null, { b: 1.5 }] };
    assert.deepEqual(await call('echo', value), { value });
    for (const [tool, args, fields, options] of REFUSALS(cell.owner)) {
      const { error } = await call(tool, args, options);
      for (const [field, expected] of Object.entries(fields)) assert.deepEqual(error?.[field], expected, `${tool}: ${JSON.stringify(error)}`);
    }
    for (const [id, options, end, code] of ENDS) {
      const hang = await begin('hang', { id }, options);
      assert.deepEqual(await call('until', { what: `hang ${id}` }), { value: { value: true } });
      await end(hang);
      const { error } = await hang.result();
      assert.equal(error?.code, code, `${id}: ${JSON.stringify(error)}`);
      assert.equal(error.mayHaveRun, true, id);
      assert.deepEqual(await call('until', { what: `stopped ${id}` }), { value: { value: true } });
    }
    const steps = await begin('steps');
    await steps.progress('half');
    await call('note', { what: 'go' });
    assert.deepEqual(await steps.result(), { value: { value: 'done' } });
    assert.deepEqual(await call('remove'), { value: { value: 'gone' } });
    await withdraws({ begin, call });
    for (const fill of [14_000, 15_001]) {
      assert.deepEqual(await call('echo', {}, { fill, measure: true }), { value: { length: fill, isIntact: true } });
    }
    const { status, report, calls } = await recording.check();
    assert.equal(status, 0, report);
    assert.match(report, /^0 errors/m);
    const outcomes = calls.map(({ tool, outcome }) => `${tool} ${outcome}`);
    for (const expected of ['echo ok', 'steps ok', 'remove ok', 'erase permission_denied', 'hang cancelled']) {
      assert.ok(outcomes.includes(expected), `${expected} is not among ${outcomes.join(', ')}`);
    }
  });
}
