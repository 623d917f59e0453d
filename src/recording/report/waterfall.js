// The waterfall: a lane for each owner, in it a bar for each call. Bars are below one another only if their calls were in
// progress at the same time. When more than MANY calls are in view, each lane shows how many began in each stretch of time
// instead.

const MANY = 2500;
const LABELLED = 160;
const GUTTER = 168;
const ROW = 20;
const BAR = 13;
const LEAST = 4;
const LANE_GAP = 12;
const DENSE = 56;
const COLUMN = 4;
// Rows of a lane; what overlaps more than this shares the last one.
const MOST_ROWS = 200;

const whole = { from: FIRST, to: Math.max(LAST, FIRST + 1000) };
const view = { from: 0, to: 0, width: 0, fitted: true, focused: -1, chosen: null, drawn: new Map() };

function startWaterfall() {
  const buttons = [
    ["−", "Zoom out", () => zoom(2)], ["+", "Zoom in", () => zoom(0.5)],
    ["←", "Earlier", () => pan(-0.25)], ["→", "Later", () => pan(0.25)], ["Fit", "Fit all calls", fit],
  ];
  for (const [text, label, act] of buttons) {
    const button = make("button", { type: "button", "aria-label": label, title: label }, text);
    button.addEventListener("click", act);
    byId("buttons").append(button);
  }
  startLegend();
  const lanes = byId("lanes");
  lanes.addEventListener("keydown", onKey);
  lanes.addEventListener("wheel", onWheel, { passive: false });
  lanes.addEventListener("pointerdown", onDrag);
  lanes.addEventListener("click", (event) => {
    const bar = event.target.closest("[data-call]");
    if (bar && !view.dragged) openDetails(calls[Number(bar.dataset.call)], "bar");
  });
  filter.listeners.push(redraw);
  new ResizeObserver(() => {
    if (byId("plot").clientWidth !== view.width) refit();
  }).observe(byId("plot"));
  fit();
}

function fit() {
  // Room on the right for the last labels, if there are any.
  const span = whole.to - whole.from;
  const room = Math.max(200, byId("plot").clientWidth - GUTTER);
  const labels = filter.calls.length <= LABELLED ? Math.min(170, room / 4) : 12;
  view.from = whole.from - span * 0.01;
  view.to = whole.to + span * labels / (room - labels);
  view.fitted = true;
  redraw();
}

// After a change of the width.
const refit = () => (view.fitted ? fit() : redraw());

function zoom(factor, around) {
  const centre = around === undefined ? (view.from + view.to) / 2 : around;
  const span = view.to - view.from;
  const wanted = Math.min(Math.max(span * factor, 20), (whole.to - whole.from) * 4);
  view.from = centre - (centre - view.from) * (wanted / span);
  view.to = view.from + wanted;
  keepInSight();
  redraw();
}

function pan(share) {
  const by = (view.to - view.from) * share;
  view.from += by;
  view.to += by;
  keepInSight();
  redraw();
}

function keepInSight() {
  const span = view.to - view.from;
  const from = Math.min(Math.max(view.from, whole.from - span * 0.9), whole.to - span * 0.1);
  view.fitted = false;
  view.to += from - view.from;
  view.from = from;
}

const scale = () => Math.max(50, view.width - GUTTER) / (view.to - view.from);
const x = (at) => GUTTER + (at - view.from) * scale();

function redraw() {
  view.width = byId("plot").clientWidth;
  const inView = filter.calls.filter((call) => call.end >= view.from && call.begin <= view.to);
  const dense = inView.length > MANY;
  const lanes = new Map();
  for (const call of filter.calls) {
    if (!lanes.has(call.owner)) lanes.set(call.owner, []);
    lanes.get(call.owner).push(call);
  }
  const svg = byId("bars");
  const hadFocus = document.activeElement instanceof SVGElement && svg.contains(document.activeElement);
  view.drawn.clear();
  const parts = [patterns(), draw("g", { class: "downs" })];
  let top = 4;
  for (const [owner, own] of lanes) {
    const lane = draw("g", { role: "group", "aria-label": owner + ", " + grouped(own.length) + " calls" });
    const height = dense ? columns(lane, own, top) : bars(lane, own, top, inView.length <= LABELLED);
    lane.prepend(draw("line", { class: "rule", x1: 0, x2: view.width, y1: top - 2, y2: top - 2 }));
    lane.append(laneName(owner, own.length, top));
    parts.push(lane);
    top += Math.max(height, 34) + LANE_GAP;
  }
  const height = Math.max(top, 60);
  if (!lanes.size) {
    parts.push(draw("text", { class: "empty", x: view.width / 2, y: 34 },
      calls.length ? "No call fits the filter." : "There are no calls in this recording."));
  }
  svg.replaceChildren(...parts);
  svg.setAttribute("width", view.width);
  svg.setAttribute("height", height);
  shadeDowns(parts[1], height);
  drawAxis();
  drawOverview();
  const drawn = view.drawn.size;
  byId("said").textContent = grouped(filter.calls.length) + " of " + grouped(calls.length) + " calls" +
    (dense ? "; " + grouped(inView.length) + " in view, shown as counts: zoom in to see each"
      : drawn < filter.calls.length ? "; " + grouped(drawn) + " in view" : "");
  document.documentElement.dataset.bars = drawn;
  document.documentElement.dataset.dense = dense;
  if (hadFocus) focusBar(view.focused);
}

function laneName(owner, count, top) {
  const cut = owner.length > 22 ? owner.slice(0, 21) + "…" : owner;
  return draw("g", { class: "lane-name" },
    draw("rect", { class: "gutter", x: 0, y: top, width: GUTTER - 8, height: 34 }),
    draw("text", { x: 8, y: top + 14 }, cut),
    draw("text", { class: "small", x: 8, y: top + 29 }, count === 1 ? "1 call" : grouped(count) + " calls"),
    draw("title", {}, owner));
}

// The place of each call of a lane: the first row whose calls had ended when it began. It depends on time alone, so that
// calls one after another share a row at every zoom. With it, when the next call of that row begins.
function stack(own) {
  const rows = [];
  const places = own.map((call) => {
    let row = rows.findIndex((last) => last.end <= call.begin);
    if (row < 0) row = Math.min(rows.length, MOST_ROWS - 1);
    const place = { row, end: call.end, next: null };
    if (rows[row] !== undefined) {
      rows[row].next = call.begin;
      place.end = Math.max(place.end, rows[row].end);
    }
    rows[row] = place;
    return place;
  });
  return places;
}

// The width of a text in the page's font, roughly.
const wide = (text) => text.length * 6.4 + 14;

const label = (call) => {
  const tool = call.tool.length > 32 ? call.tool.slice(0, 31) + "…" : call.tool;
  const outcome = call.outcome.length > 24 ? call.outcome.slice(0, 23) + "…" : call.outcome;
  return call.ending === 0 ? tool : tool + " · " + outcome;
};

function bars(lane, own, top, labelled) {
  const places = stack(own);
  let deepest = 0;
  own.forEach((call, index) => {
    const { row, next } = places[index];
    deepest = Math.max(deepest, row);
    if (call.end < view.from || call.begin > view.to) return;
    const bar = drawBar(call, top + row * ROW + 2, labelled, next);
    if (call === view.chosen) bar.classList.add("chosen");
    view.drawn.set(call.n, bar);
    lane.append(bar);
  });
  return (deepest + 1) * ROW;
}

function drawBar(call, y, labelled, next) {
  const ending = ENDINGS[call.ending];
  // What lies outside of the picture is drawn at its edge: numbers stay small, and names are not covered.
  const at = (time) => Math.min(Math.max(x(time), GUTTER), view.width + 40);
  const from = at(call.begin);
  // A short call is widened to be seen, and hit, but not into the next one of its row.
  const room = next === null ? Infinity : Math.max(1, x(next) - x(call.begin) - 1);
  const to = Math.max(from + Math.min(LEAST, room), at(call.end));
  // What is too near to the beginning to be told apart from it is not drawn.
  const apart = (time) => time !== null && (time - call.begin) * scale() >= 3;
  const begun = apart(call.started) ? Math.min(at(call.started), to - 1) : from;
  const box = (attributes, left, right) =>
    draw("rect", { y, x: left.toFixed(1), width: Math.max(1, right - left).toFixed(1), height: BAR, rx: 2, ...attributes });
  const bar = draw("g", {
    class: "bar " + ending.name, role: "button", tabindex: -1, "data-call": call.n,
    "aria-label": call.tool + ", " + call.owner + ", " + call.outcome + ", " +
      (call.took === null ? "no end" : duration(call.took)) + ", at " + point(call.begin),
  },
    box({ class: "hit", y: y - 2, height: ROW - 2 }, from - Math.min(3, room / 2), to + Math.min(3, room / 2)),
    begun > from ? box({ class: "wait" }, from, begun) : null,
    box({ class: "run" }, begun, to),
    box({ class: "hatch", fill: "url(#hatch-" + ending.name + ")" }, begun, to));
  for (const mark of ["delivered", "started", "stopped"]) {
    if (!apart(call[mark]) || call[mark] < view.from || call[mark] > view.to) continue;
    bar.append(draw("path", { class: "tick " + mark, d: TICKS[mark],
      transform: "translate(" + at(call[mark]).toFixed(1) + " " + y + ")" }));
  }
  const fits = labelled && (next === null || to + wide(label(call)) < x(next));
  if (fits) bar.append(draw("text", { class: "label", x: (to + 6).toFixed(1), y: y + 11 }, label(call)));
  else if (call.ending && to - begun >= 12) {
    bar.append(draw("text", { class: "letter", x: ((begun + to) / 2).toFixed(1), y: y + 10.5 }, ending.letter));
  }
  bar.append(draw("title", {}, label(call) + "\n" + call.id + "\n" + duration(call.took)));
  return bar;
}

// Of many calls, above the lanes: how many there were at a time, and how long each took.

const OVERVIEW = 200;
const STRIP = 44;
const CHART = 96;

function drawOverview() {
  const overview = byId("overview");
  const isShown = filter.calls.length > OVERVIEW;
  overview.style.display = isShown ? "" : "none";
  if (!isShown) return overview.replaceChildren();
  overview.setAttribute("width", view.width);
  overview.setAttribute("height", STRIP + CHART);
  return overview.replaceChildren(strip(), chart());
}

// How many calls were in progress after each begin and each end, in order of time.
function inProgress(calls) {
  const changes = [];
  for (const call of calls) {
    // An end comes before a begin at the same time, but for a call that took no time.
    changes.push([call.begin, 1, 1], [call.end, call.end > call.begin ? 0 : 2, -1]);
  }
  changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let count = 0;
  return changes.map(([at, , change]) => [at, (count += change)]);
}

// The most calls that were in progress at one time, in each stretch of time.
function densities(columns) {
  const counts = new Array(columns).fill(0);
  const raise = (column, count) => { counts[column] = Math.max(counts[column], count); };
  let column = 0;
  let running = 0;
  for (const [at, count] of inProgress(filter.calls)) {
    const place = Math.floor((x(at) - GUTTER) / COLUMN);
    for (; column < Math.min(place, columns); column += 1) raise(column, running);
    if (place >= columns) break;
    if (place >= 0) raise(place, Math.max(running, count));
    running = count;
  }
  for (; column < columns; column += 1) raise(column, running);
  return counts;
}

function strip() {
  const counts = densities(Math.max(1, Math.ceil((view.width - GUTTER) / COLUMN)));
  const most = counts.reduce((most, count) => Math.max(most, count), 1);
  const group = draw("g", { class: "strip" },
    draw("text", { class: "name", x: 8, y: 16 }, "Density"),
    draw("text", { class: "small", x: 8, y: 31 }, "calls at a time"),
    draw("text", { class: "small most", x: GUTTER - 6, y: 12 }, grouped(most)),
    draw("line", { class: "rule", x1: 0, x2: view.width, y1: STRIP - 0.5, y2: STRIP - 0.5 }));
  counts.forEach((count, column) => {
    if (!count) return;
    const height = Math.max(1.5, (count / most) * (STRIP - 8));
    group.append(draw("rect", { x: GUTTER + column * COLUMN, y: (STRIP - 1 - height).toFixed(1),
      width: COLUMN - 0.5, height: height.toFixed(1) }));
  });
  return group;
}

// A dot for each call: when it began, and how long it took, by powers of ten.
function chart() {
  const timed = filter.calls.filter((call) => call.took !== null);
  const shortest = timed.reduce((least, call) => Math.min(least, Math.max(call.took, 1)), Infinity);
  const longest = timed.reduce((most, call) => Math.max(most, call.took, 1), 1);
  const low = Math.floor(Math.log10(timed.length ? shortest : 1));
  const high = Math.max(low + 1, Math.ceil(Math.log10(longest)));
  const y = (took) => STRIP + 8 + (CHART - 16) * (1 - (Math.log10(Math.max(took, 1)) - low) / (high - low));
  const group = draw("g", { class: "chart" },
    draw("text", { class: "name", x: 8, y: STRIP + 18 }, "Took"),
    draw("text", { class: "small", x: 8, y: STRIP + 33 }, OBSERVED ? "as the observer heard" : "request to result"));
  for (let power = low; power <= high; power += 1) {
    const at = y(10 ** power).toFixed(1);
    group.append(draw("line", { class: "rule", x1: GUTTER, x2: view.width, y1: at, y2: at }));
    if (high - low <= 5 || (high - power) % 2 === 0) {
      group.append(draw("text", { class: "small most", x: GUTTER - 6, y: Number(at) + 4 }, power10(power)));
    }
  }
  // What would be one dot upon another is drawn once; of very many calls, what would be nearly so.
  const cell = timed.length > MANY ? 5 : 1;
  const taken = new Set();
  for (const call of timed) {
    if (call.begin < view.from || call.begin > view.to) continue;
    const [cx, cy] = [x(call.begin), y(call.took)].map((at) => Math.round(at / cell) * cell);
    const key = (cx * 1000 + cy) * ENDINGS.length + call.ending;
    if (taken.has(key)) continue;
    taken.add(key);
    group.append(draw("circle", { class: "dot run " + ENDINGS[call.ending].name, cx, cy, r: call.ending ? 3 : 2 }));
  }
  const chosen = view.chosen;
  if (chosen && chosen.took !== null && chosen.begin >= view.from && chosen.begin <= view.to) {
    group.append(draw("circle", { class: "chosen", cx: x(chosen.begin).toFixed(1), cy: y(chosen.took).toFixed(1), r: 6 }));
  }
  return group;
}

const power10 = (power) => {
  const units = ["µs", "ms", "s"];
  const unit = Math.min(Math.floor(power / 3), 2);
  return 10 ** (power - unit * 3) + " " + units[unit];
};

// How many calls began in each stretch of time, by ending.
function columns(lane, own, top) {
  const counts = new Map();
  let most = 1;
  for (const call of own) {
    if (call.begin < view.from || call.begin > view.to) continue;
    const column = Math.floor((x(call.begin) - GUTTER) / COLUMN);
    if (!counts.has(column)) counts.set(column, new Array(ENDINGS.length).fill(0));
    const sums = counts.get(column);
    sums[call.ending] += 1;
    most = Math.max(most, sums.reduce((sum, count) => sum + count));
  }
  for (const [column, sums] of counts) {
    const left = GUTTER + column * COLUMN;
    const group = draw("g", { class: "column" }, draw("title", {},
      ENDINGS.map(({ name }, ending) => (sums[ending] ? sums[ending] + " " + name : "")).filter(Boolean).join(", ")));
    let bottom = top + DENSE;
    sums.forEach((count, ending) => {
      if (!count) return;
      const height = Math.max(1, (count / most) * (DENSE - 2));
      bottom -= height;
      group.append(draw("rect", { class: "run " + ENDINGS[ending].name, x: left, y: bottom.toFixed(1),
        width: COLUMN - 0.5, height: height.toFixed(1) }));
    });
    lane.append(group);
  }
  lane.append(draw("text", { class: "small most", x: GUTTER - 12, y: top + 8 }, grouped(most)));
  return DENSE;
}

const TICKS = {
  delivered: "M0 -3V5",
  started: "M0 -3V" + (BAR + 3),
  stopped: "M-4 -4L4 4M4 -4L-4 4",
};

const tickSample = (mark) => draw("svg", { width: 14, height: 18, "aria-hidden": "true" },
  draw("rect", { class: "faint", x: 0, y: 3, width: 14, height: BAR }),
  draw("path", { class: "tick " + mark, d: TICKS[mark], transform: "translate(7 4)" }));

// What the marks mean; of those of the room, the ones that occur.
function startLegend() {
  const add = (sample, text) => byId("legend").append(make("li", {}, sample, text));
  add(tickSample("delivered"), "delivered");
  add(tickSample("started"), "started");
  add(tickSample("stopped"), "stop sent");
  add(waitSample(), "paler: not yet started");
  const kinds = new Set(events.map((event) => event.kind));
  for (const [kind, d] of Object.entries(MARKS)) {
    if (!kinds.has(kind)) continue;
    add(draw("svg", { width: 14, height: 14, "aria-hidden": "true" },
      draw("path", { class: "mark " + kind, d, transform: "translate(7 7)" })), SAID[kind]);
  }
}

const waitSample = () => draw("svg", { class: "bar ok", width: 26, height: 14, "aria-hidden": "true" },
  draw("rect", { class: "wait", width: 12, height: 14 }), draw("rect", { class: "run", x: 12, width: 14, height: 14 }));

function patterns() {
  const shapes = {
    error: "M-2 2L2 -2M0 8L8 0M6 10L10 6", timeout: "M2 0V8M6 0V8", cancelled: "M1.5 2h2M5.5 6h2",
    lost: "M0 0L8 8M8 0L0 8", refused: "M0 2H8M0 6H8",
  };
  return draw("defs", {}, ...Object.entries(shapes).map(([name, d]) => draw("pattern",
    { id: "hatch-" + name, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, draw("path", { class: "thread", d }))));
}

// Above the lanes: time, and what happened in the room.

const MARKS = {
  here: "M0 -5L5 0L0 5L-5 0Z", joined: "M0 -5L5 4H-5Z", left: "M0 5L5 -4H-5Z", changed: "M-4 0H4M0 -4V4",
  up: "M-5 0L-1 4L5 -4", down: "M-4 -4L4 4M4 -4L-4 4", unsent: "M0 -5V1M0 4V5", unrecorded: "M0 -5V1M0 4V5",
  left_out: "M0 -5V1M0 4V5",
  closed: "M-4 -4H4V4H-4Z", other: "M-3 0H3",
};
const SAID = {
  here: "the recorded participant joined", joined: "joined", changed: "what is known of it changed", left: "left",
  up: "link up", down: "link down", unsent: "a packet did not leave", unrecorded: "packets were not recorded",
  left_out: "packets were left out so far, since it has no rights:",
  closed: "closed", other: "an event that this version does not know",
};

function tell(event) {
  return [point(event.at), event.who === null ? "" : named(event.who), SAID[event.kind] || event.kind, event.detail]
    .filter((word) => word !== "").join(" ");
}

function drawAxis() {
  const axis = byId("axis");
  const step = niceStep((view.to - view.from) * 90 / Math.max(90, view.width - GUTTER));
  const parts = [draw("text", { class: "small", x: 8, y: 15 }, "time"), draw("text", { class: "small", x: 8, y: 38 }, "room")];
  const grid = draw("g", { class: "grid" });
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    if (x(at) < GUTTER) continue;
    if (x(at) < view.width - 24) parts.push(draw("text", { class: "time", x: x(at).toFixed(1), y: 15 }, clock(at, step)));
    grid.append(draw("line", { x1: x(at).toFixed(1), x2: x(at).toFixed(1), y1: 0, y2: "100%" }));
  }
  byId("bars").prepend(grid);
  parts.push(draw("line", { class: "rule", x1: 0, x2: view.width, y1: 21, y2: 21 }));
  let last = null;
  let clustered = [];
  const flush = () => {
    if (!clustered.length) return;
    const { kind, at } = clustered[0];
    // Marks that would hide one another become one that names all.
    const names = clustered.slice(0, 20).map(tell).join("\n") + (clustered.length > 20 ? "\n…" : "");
    parts.push(draw("g", { transform: "translate(" + x(at).toFixed(1) + " 34)", role: "img", "aria-label": names },
      draw("rect", { class: "hit", x: -8, y: -10, width: 16, height: 20 }),
      draw("path", { class: "mark " + kind, d: MARKS[kind] || MARKS.other }),
      clustered.length > 1 ? draw("text", { class: "small", x: 8, y: 4 }, String(clustered.length)) : null,
      draw("title", {}, names)));
  };
  for (const event of events) {
    if (event.at < view.from || event.at > view.to) continue;
    if (last !== null && x(event.at) - x(last) < 13) clustered.push(event);
    else {
      flush();
      clustered = [event];
      last = event.at;
    }
  }
  flush();
  axis.replaceChildren(...parts);
  axis.setAttribute("width", view.width);
  axis.setAttribute("height", 46);
}

function niceStep(least) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600].map((seconds) => seconds * 1e6);
  if (least <= 5e5) {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
  }
  return steps.find((step) => step >= least) || Math.ceil(least / 3.6e9) * 3.6e9;
}

function shadeDowns(group, height) {
  let since = null;
  const shade = (from, to) => {
    const left = Math.max(GUTTER, x(from));
    const right = Math.min(view.width, x(to));
    if (right > left) group.append(draw("rect", { class: "shade", x: left, width: right - left, y: 0, height }));
  };
  for (const event of events) {
    if (event.kind === "down" && since === null) since = event.at;
    if (event.kind === "up" && since !== null) {
      shade(since, event.at);
      since = null;
    }
  }
  if (since !== null) shade(since, whole.to);
}

// Hands: keys, wheel, dragging.

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const acts = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: fit, f: fit,
    ArrowRight: () => (event.shiftKey ? pan(0.25) : stepTo(1)), ArrowLeft: () => (event.shiftKey ? pan(-0.25) : stepTo(-1)),
    PageDown: () => pan(0.9), PageUp: () => pan(-0.9),
    Home: () => focusCall(filter.calls[0]), End: () => focusCall(filter.calls[filter.calls.length - 1]),
    Enter: () => openFocused(), " ": () => openFocused(),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}

function openFocused() {
  const bar = document.activeElement && document.activeElement.closest("[data-call]");
  if (bar) openDetails(calls[Number(bar.dataset.call)], "bar");
}

function stepTo(by) {
  const focused = document.activeElement && document.activeElement.closest("[data-call]");
  if (document.documentElement.dataset.dense === "true") return pan(by * 0.25);
  const inView = (call) => call.end >= view.from && call.begin <= view.to;
  if (!focused) return focusCall(filter.calls.find(inView) || filter.calls[0]);
  const place = filter.calls.findIndex((call) => call.n === Number(focused.dataset.call));
  return focusCall(filter.calls[place + by]);
}

function focusCall(call) {
  if (!call) return;
  if (call.end < view.from || call.begin > view.to) {
    const by = call.begin - (view.from + view.to) / 2;
    view.from += by;
    view.to += by;
    keepInSight();
    redraw();
  }
  focusBar(call.n);
}

function focusBar(n) {
  view.focused = n;
  const bar = view.drawn.get(n);
  if (bar) {
    bar.focus();
    bar.scrollIntoView({ block: "nearest" });
  }
}

function onWheel(event) {
  const along = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    const at = view.from + (event.clientX - byId("bars").getBoundingClientRect().left - GUTTER) / scale();
    zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.004), at);
  } else if (along) pan(along / Math.max(200, view.width));
  else return;
  event.preventDefault();
}

function onDrag(event) {
  view.dragged = false;
  if (event.button !== 0 || event.pointerType === "touch") return;
  const start = { x: event.clientX, from: view.from, to: view.to };
  let waiting = 0;
  const move = (moved) => {
    const by = moved.clientX - start.x;
    if (!view.dragged && Math.abs(by) < 5) return;
    view.dragged = true;
    view.from = start.from - by / scale();
    view.to = start.to - by / scale();
    keepInSight();
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; redraw(); });
  };
  const end = () => {
    removeEventListener("pointermove", move);
    removeEventListener("pointerup", end);
    removeEventListener("pointercancel", end);
    // The click that ends a drag comes first.
    setTimeout(() => { view.dragged = false; }, 0);
  };
  addEventListener("pointermove", move);
  addEventListener("pointerup", end);
  addEventListener("pointercancel", end);
}

