// Calls between two sessions of the core, without a room: what the core itself costs. It runs in every engine.

/** The time between two calls, in milliseconds of the sessions' time: a client takes 50 calls a second. */
const INTERVAL = 25;

/**
 * Makes so many calls of 220 letters, one after the other, and returns the milliseconds of each: of both ends, with all timers.
 * `frames` counts the frames that arrived, and `longest` is the longest time that one of them took.
 */
export function calls(Session, count, now) {
  let at = 0;
  const ends = {};
  const queue = [];
  let settled = 0;
  let frames = 0;
  let longest = 0;

  const who = (identity, role) => ({
    identity,
    sid: `PA_${identity}`,
    kind: role === 'assistant' ? 'agent' : 'standard',
    attributes: { 'toolbridge.role': role },
    canUpdateMetadata: false,
  });
  const pass = (name, input, bytes) => {
    const { session } = ends[name];
    session.handle(JSON.stringify({ atMs: at, ...input }), bytes);
    for (let text = session.nextOutput(); text !== undefined; text = session.nextOutput()) {
      const output = JSON.parse(text);
      if (output.type === 'transmit') {
        const bytes = session.takeBytes();
        session.sent(at, output.packet);
        queue.push({ from: name, to: output.to, lane: output.lane, topic: output.topic, bytes });
      } else if (output.type === 'execute') {
        jobs.push({ name, key: output.key });
      } else if (output.type === 'result') {
        if (output.error !== undefined) throw new Error(text);
        settled += 1;
      }
    }
  };
  const jobs = [];
  const work = () => {
    for (;;) {
      const job = jobs.shift();
      if (job !== undefined) {
        if (!ends[job.name].session.start(at, job.key)) throw new Error('a job has ended before its start');
        pass(job.name, { type: 'settle', key: job.key, value: { ok: true } });
        continue;
      }
      const packet = queue.shift();
      if (packet === undefined) return;
      const from = { identity: packet.from, sid: `PA_${packet.from}` };
      for (const to of packet.to) {
        frames += 1;
        const begun = now();
        pass(to, { type: 'packet', from, lane: packet.lane, topic: packet.topic }, packet.bytes);
        longest = Math.max(longest, now() - begun);
      }
    }
  };
  /** Lets time pass, from one deadline to the next. */
  const elapse = (time) => {
    const end = at + time;
    for (;;) {
      const due = (name) => ends[name].session.nextDeadline() ?? Infinity;
      const name = due('agent') <= due('phone') ? 'agent' : 'phone';
      if (due(name) > end) break;
      at = due(name);
      pass(name, { type: 'timeout' });
      work();
    }
    at = end;
  };

  for (const [identity, role] of [['agent', 'assistant'], ['phone', 'client']]) {
    const config = { lossy: true, streams: true };
    const create = { type: 'create', atMs: at, role, local: who(identity, role), seed: (role === 'client' ? '1' : '2').repeat(64), config };
    ends[identity] = { session: Session.create(JSON.stringify(create)) };
    pass(identity, { type: 'listen', events: ['closed'] });
  }
  pass('phone', { type: 'offer', tools: [{ name: 'echo', description: 'x' }] });
  pass('agent', { type: 'participant_joined', participant: who('phone', 'client') });
  pass('phone', { type: 'participant_joined', participant: who('agent', 'assistant') });
  for (let n = 0; n < 40; n += 1) elapse(100);

  const data = 'abcdefghijk'.repeat(20);
  const each = [];
  frames = longest = 0;
  for (let n = 0; n < count; n += 1) {
    elapse(INTERVAL);
    const begun = now();
    pass('agent', { type: 'call', id: n, tool: 'echo', to: 'phone', arguments: { data } });
    work();
    each.push(now() - begun);
    if (settled !== n + 1) throw new Error(`call ${n} has no result`);
  }
  for (const name of Object.keys(ends)) ends[name].session.free();
  each.sort((a, b) => a - b);
  return { median: each[Math.floor(count / 2)], mean: each.reduce((sum, it) => sum + it, 0) / count, perCall: frames / count, longest };
}
