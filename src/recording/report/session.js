"use strict";

// The session: the data block, read into objects, and the words in which it is shown.

const data = JSON.parse(document.getElementById("data").textContent);

// The endings in the order in which the data counts them. Each has a letter and a pattern beside its colour.
const ENDINGS = [
  { name: "ok", letter: "✓" },
  { name: "error", letter: "E" },
  { name: "timeout", letter: "T" },
  { name: "cancelled", letter: "C" },
  { name: "lost", letter: "L" },
  { name: "refused", letter: "R" },
  { name: "open", letter: "?" },
];

const KINDS = {
  1: "ErrorMessage", 6: "ToolUseRequest", 7: "ToolUseResult", 8: "Acknowledgement", 10: "ControlStop",
  12: "Configuration", 70: "ToolsRegister", 71: "ToolsRegisterAck", 72: "Heartbeat", 1000: "ToolProgress",
  1001: "ViewUpdate",
};

const NOBODY = "(nobody)";
const [FIRST, LAST] = data.head.span;

const textAt = (place) => (place === null ? null : data.texts[place]);
const named = (identity) => (identity === "" ? "(no name)" : identity);

const frames = new Map(data.frames.map(
  ([place, at, sent, kind, stanza, size, from, to, lossy, stream, body, meta, result, compressed]) =>
    [place, {
      at, sent, kind, stanza, size, from: named(textAt(from)), to: textAt(to), lossy, stream, body, meta, result, compressed,
    }]));

const calls = data.calls.map((row, n) => {
  const [id, tool, execution, caller, owner, limit, parameters, result, times, ending, code, message, entries,
    frameCount] = row;
  const [requested, delivered, started, stopped, settled] = times;
  const known = times.filter((time) => time !== null);
  const call = {
    n, id, execution, limit, parameters, result, requested, delivered, started, stopped, settled, message, entries,
    frameCount, ending,
    tool: textAt(tool) || "(request not in the file)",
    caller: named(textAt(caller)),
    owner: owner === null ? NOBODY : named(textAt(owner)),
    code: textAt(code),
    begin: known.length ? Math.min(...known) : FIRST,
    // An observer may hear the result first; then nobody knows how long it took.
    took: requested !== null && settled !== null && settled >= requested ? settled - requested : null,
  };
  // What has no end in the file is drawn up to the end of the file.
  call.end = settled === null ? (ENDINGS[ending].name === "open" ? LAST : Math.max(call.begin, ...known)) : settled;
  call.end = Math.max(call.begin, call.end);
  call.outcome = call.code === null ? ENDINGS[ending].name : call.code;
  call.words = [id, call.tool, call.caller, call.owner, ENDINGS[ending].name, call.outcome, execution || ""]
    .join("\n").toLowerCase();
  return call;
});
calls.sort((one, other) => one.begin - other.begin || one.n - other.n);
calls.forEach((call, n) => { call.n = n; });

const events = data.events.map(([at, kind, who, detail]) => ({ at, kind, who, detail }));

// Whether an observer recorded it: then times are those of the copies that it heard.
const OBSERVED = data.participants.some(([, role, , recorder]) => recorder && (role === "observer" || role === "hidden"));

// Elements. Text goes in as text nodes alone.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);

// Numbers for people.

const grouped = (number) => number.toLocaleString("en");

function duration(micros) {
  if (micros === null || micros === undefined) return "–";
  if (micros < 0) return "−" + duration(-micros);
  if (micros < 1000) return micros + " µs";
  if (micros < 99950) return (micros / 1000).toFixed(1) + " ms";
  if (micros < 999500) return Math.round(micros / 1000) + " ms";
  if (micros < 59995000) return (micros / 1e6).toFixed(2) + " s";
  const seconds = Math.round(micros / 1e6);
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + String(seconds % 60).padStart(2, "0") + " s";
  const minutes = Math.round(seconds / 60);
  return Math.floor(minutes / 60) + " h " + String(minutes % 60).padStart(2, "0") + " min";
}

function bytes(count) {
  if (count === null || count === undefined) return "–";
  if (count < 1024) return count + " B";
  if (count < 1024 * 1024) return (count / 1024).toFixed(1) + " KiB";
  return (count / 1024 / 1024).toFixed(1) + " MiB";
}

// A point of the session, counted from its beginning; with as many digits as `step` asks for.
function clock(micros, step) {
  const sign = micros < 0 ? "−" : "";
  const whole = Math.abs(micros);
  const digits = step >= 1e6 ? 0 : Math.min(6, Math.ceil(6 - Math.log10(step) - 1e-9));
  const scaled = Math.round(whole / 10 ** (6 - digits));
  const seconds = Math.floor(scaled / 10 ** digits);
  const fraction = digits ? "." + String(scaled % 10 ** digits).padStart(digits, "0") : "";
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  const head = minutes >= 60 ? Math.floor(minutes / 60) + ":" + two(minutes % 60) : String(minutes);
  return sign + head + ":" + two(seconds % 60) + fraction;
}
const point = (micros) => (micros === null ? "–" : clock(micros, 1000));

// A moment by the calendar; empty if the recording's clock was absurd.
function date(micros) {
  const moment = new Date(data.head.base + micros / 1000);
  return Number.isNaN(moment.getTime()) ? "" : moment.toISOString().replace("T", " ").slice(0, 19) + " UTC";
}

