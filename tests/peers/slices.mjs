// What the trace engine of Chrome's DevTools makes of a trace file, as one JSON object: its processes by number, and each
// pair of asynchronous events that it finds (times in microseconds).
//
//     slices.mjs FILE

import { readFileSync } from "node:fs";

import { Helpers, Processor, Types } from "@paulirish/trace_engine";

const { traceEvents } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const { isPairableAsyncBegin, isPairableAsyncEnd, isPairableAsyncInstant, isProcessName } = Types.Events;

const engine = Processor.TraceProcessor.createWithAllHandlers();
await engine.parse(traceEvents, {});
const names = traceEvents.filter(isProcessName);
const asynchronous = traceEvents.filter(
  (event) => isPairableAsyncBegin(event) || isPairableAsyncEnd(event) || isPairableAsyncInstant(event),
);
const slices = Helpers.Trace.createMatchedSortedSyntheticEvents(asynchronous).map(({ pid, name, ts, dur, args }) => ({
  process: pid,
  name,
  start: ts,
  duration: dur,
  call: args.data.beginEvent.args,
}));

console.log(
  JSON.stringify({
    events: traceEvents.length,
    known: names.length + asynchronous.length,
    processes: Object.fromEntries([...engine.data.Meta.processNames].map(([pid, { args }]) => [pid, args.name])),
    slices,
  }),
);
