// Replays one trace in whichever engine this is: see replay.mjs.

const INPUT = '{"input":';
const SENT = '{"sent":';
const START = '{"start":';

/** Returns what the core writes for each line of a trace that is not an input: the first that differs, or how many are equal. */
export function replay(Session, trace, toBase64) {
  let session;
  let result;
  let equal = 0;
  const outputLine = () => {
    const output = session.nextOutput();
    if (output === undefined) return `{"deadlineMs":${session.nextDeadline() ?? null}}`;
    const bytes = session.takeBytes();
    if (bytes === undefined) return `{"output":${output}}`;
    return `{"output":${output.slice(0, -1)},"bytes":"${toBase64(bytes)}"}}`;
  };
  const resultOf = (input) => {
    try {
      if (session === undefined) {
        session = Session.create(input);
        return undefined;
      }
      const reply = session.handle(input);
      return reply === undefined ? undefined : `{"reply":${reply}}`;
    } catch (error) {
      return `{"error":${JSON.stringify(error.message)}}`;
    }
  };
  for (const line of trace.split("\n")) {
    if (line === "") continue;
    if (result === undefined && line.startsWith(INPUT)) {
      result = resultOf(line.slice(INPUT.length, -1));
      continue;
    }
    if (result === undefined && line.startsWith(SENT)) {
      session.sent(...JSON.parse(line).sent);
      continue;
    }
    if (result === undefined && line.startsWith(START)) {
      result = `{"started":${session.start(...JSON.parse(line).start)}}`;
      continue;
    }
    const found = result ?? outputLine();
    result = undefined;
    if (found !== line) return { expected: line, found };
    equal += 1;
  }
  session?.free();
  return { equal };
}
