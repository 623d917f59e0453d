// One call in full: its times, its sizes, and its frames.

let opener = null;

function openDetails(call, from) {
  opener = { from, call };
  choose(call);
  const panel = byId("details");
  const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  close.addEventListener("click", closeDetails);
  const title = make("h2", { id: "details-title", tabindex: -1 }, call.tool);
  panel.replaceChildren(
    make("div", { class: "panel-head" }, title, close),
    make("p", { class: "verdict " + ENDINGS[call.ending].name },
      make("span", { class: "chip", "aria-hidden": "true" }, ENDINGS[call.ending].letter), " " + call.outcome,
      call.message ? ": " + call.message : null),
    facts(call),
    ...resultPart(call),
    make("h3", {}, "Frames"),
    frameList(call));
  panel.scrollTop = 0;
  panel.hidden = false;
  document.body.classList.add("with-details");
  refit();
  view.focused = call.n;
  title.focus({ preventScroll: true });
  setAddress("#call=" + encodeURIComponent(call.id));
}

// Marks the call that is shown: its bar, its dot, and its row. None marks nothing.
function choose(call) {
  view.chosen = call;
  for (const bar of document.querySelectorAll(".bar.chosen")) bar.classList.remove("chosen");
  const bar = call && view.drawn.get(call.n);
  if (bar) bar.classList.add("chosen");
  callTable.choose(call);
  drawOverview();
}

// The address names the call that is shown, so that it can be passed on beside the file.
function setAddress(fragment) {
  try {
    history.replaceState(null, "", fragment || location.href.split("#")[0]);
  } catch {
    // A browser that does not allow it for files shows the page all the same.
  }
}

function openFromAddress() {
  const [, encoded] = /^#call=(.*)$/.exec(location.hash) || [];
  if (encoded === undefined) return;
  try {
    const id = decodeURIComponent(encoded);
    const call = calls.find((one) => one.id === id);
    if (call) openDetails(call, "row");
  } catch {
    // Not an address that this page wrote.
  }
}

function closeDetails() {
  byId("details").hidden = true;
  choose(null);
  document.body.classList.remove("with-details");
  setAddress("");
  refit();
  if (opener && opener.from === "bar") focusCall(opener.call);
  else if (opener) focusRow(opener.call);
  opener = null;
}

function facts(call) {
  const since = (time) => (time === null ? "–" : call.requested === null ? point(time)
    : point(time) + "  (+" + duration(time - call.requested) + ")");
  const rows = [
    ...aboutCall(call), ["Id", call.id], ["Asked by", call.caller], ["Run by", call.owner], ["Execution", call.execution || "–"],
    OBSERVED ? ["Times", "when the observer heard it"] : null,
    ["Requested", point(call.requested) + (call.requested === null ? "" : "  " + date(call.requested))],
    ["Delivered", since(call.delivered)], ["Started", since(call.started)],
    call.stopped === null ? null : ["Stopped", since(call.stopped)], ["Settled", since(call.settled)],
    ["Limit", call.limit === null ? "–" : duration(call.limit * 1000)],
    ["Parameters", bytes(call.parameters)], ["Result", bytes(call.result)],
  ];
  return make("dl", { class: "facts" }, ...rows.filter((row) => row !== null)
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// What an agent has said of its call: what it does, its kind, and its files. It is in the request's metadata, and the files
// that it names later are in its progress.
function aboutCall(call) {
  const all = call.entries.map((place) => frames.get(place)).filter((frame) => frame);
  const request = all.find((frame) => frame.kind === 6);
  const meta = (request && parsed(request.meta)) || {};
  const text = (key) => (typeof meta[key] === "string" && meta[key] ? meta[key] : null);
  const places = [meta["bridge.acp.locations"], ...all.map((frame) => frame.kind === 1000 && (parsed(frame.body) || {}).content)
    .map((content) => content && content.locations)].flatMap(files);
  const rows = [["Does", text("bridge.acp.title")], ["Kind", text("bridge.acp.kind")],
    ["Files", [...new Set(places)].slice(0, 20).join(", ") || null]];
  return rows.filter(([, value]) => value !== null);
}

// The locations of a list, which may be JSON in a text.
function files(list) {
  const places = typeof list === "string" ? parsed([list]) : list;
  if (!Array.isArray(places)) return [];
  return places.filter((it) => it && typeof it.path === "string")
    .map((it) => it.path + (Number.isInteger(it.line) ? ":" + it.line : ""));
}

// The value of a JSON text, unless it was left out or cut.
function parsed(part) {
  try {
    return part && JSON.parse(part[0]);
  } catch {
    return null;
  }
}

function frameList(call) {
  const list = make("ol", { class: "frames" });
  let missing = call.frameCount - call.entries.length;
  const origin = call.requested === null ? call.begin : call.requested;
  for (const place of call.entries) {
    const frame = frames.get(place);
    if (!frame) missing += 1;
    else list.append(make("li", {}, frameItem(frame, origin)));
  }
  if (call.frameCount === 0) {
    return make("p", { class: "note" }, "There are none: nobody was asked to run it.");
  }
  return make("div", {}, list, missing > 0
    ? make("p", { class: "note" }, grouped(missing) + (missing === 1 ? " frame is" : " frames are") + " not in this page.")
    : null);
}

function frameItem(frame, origin) {
  const name = frame.kind === null ? "malformed" : KINDS[frame.kind] || "type " + frame.kind;
  const kind = frame.kind === 6 || frame.kind === 7 ? " main" : frame.kind === null ? " bad" : "";
  const item = make("details", { class: "frame" + kind },
    make("summary", {},
      make("span", { class: "when" }, (frame.at < origin ? "" : "+") + duration(frame.at - origin)),
      make("span", { class: "way", title: frame.sent ? "sent" : "heard" }, frame.sent ? "↑ sent" : "↓ heard"),
      make("span", { class: "what" }, name),
      make("span", { class: "size" }, bytes(frame.size))));
  // What matters most is open at once. A body is laid out when somebody looks.
  item.open = kind !== "" && frame.body !== null && frame.body[0].length < 2000;
  item.addEventListener("toggle", () => {
    if (!item.open || item.children.length > 1) return;
    item.append(make("p", { class: "route" },
      frame.from + " → " + (frame.to === null ? (frame.sent ? "everybody" : "the recorded participant") : frame.to) +
      " · stanza " + (frame.stanza === null ? "none" : frame.stanza) +
      " · " + (frame.stream ? "stream" : frame.lossy ? "lossy" : "reliable") +
      (frame.compressed ? " · compressed" : "") + " · " + point(frame.at)));
    item.append(...jsonPart(frame.body, data.head.limits.body, "The body was left out: the page was full."));
    if (frame.meta !== null) item.append(make("p", { class: "route" }, "meta"), ...jsonPart(frame.meta, 0, ""));
  });
  return item;
}

function jsonPart(part, limit, otherwise) {
  if (part === null) return [make("p", { class: "note" }, otherwise)];
  const [text, length] = part;
  const cut = length > new TextEncoder().encode(text).length;
  return [make("pre", { tabindex: 0 }, pretty(text)),
    cut ? make("p", { class: "note" }, "Cut: the whole has " + grouped(length) + " bytes of JSON.") : null]
    .filter((it) => it !== null);
}

// JSON, indented. It works on the text alone, so that numbers keep their digits, escapes stay visible, and a text that
// was cut is shown as far as it goes.
function pretty(text) {
  const out = document.createDocumentFragment();
  const pieces = text.match(/"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^\s{}[\],:"]+/g) || [];
  let depth = 0;
  const line = () => "\n" + "  ".repeat(Math.min(depth, 64));
  pieces.forEach((piece, at) => {
    const next = pieces[at + 1];
    if (piece === "{" || piece === "[") {
      depth += 1;
      out.append(piece + (next === "}" || next === "]" ? "" : line()));
    } else if (piece === "}" || piece === "]") {
      depth = Math.max(0, depth - 1);
      const before = pieces[at - 1];
      out.append((before === "{" || before === "[" ? "" : line()) + piece);
    } else if (piece === ",") out.append("," + line());
    else if (piece === ":") out.append(": ");
    else {
      const sort = next === ":" ? "key" : piece[0] === '"' ? "text" : "value";
      out.append(make("span", { class: sort }, piece));
    }
  });
  return out;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("details").hidden) closeDetails();
});

