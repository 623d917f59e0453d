// The page, from the top.

function startHead() {
  const { title, room, all, version } = data.head;
  const [, count, byEnding, times] = all;
  byId("title").textContent = title;
  document.title = title;
  byId("about").textContent = [
    room.name === null ? null : "Room " + room.name,
    room.recorder === null ? null : "recorded by " + named(room.recorder),
    data.head.base ? date(FIRST) : null,
    duration(LAST - FIRST),
  ].filter((part) => part !== null && part !== "").join(" · ");
  const share = (part) => (count ? (100 * part / count).toFixed(part === count || part === 0 ? 0 : 1) + " %" : "–");
  const answered = byEnding[0];
  const heard = OBSERVED ? " (as heard)" : "";
  const tiles = [
    ["Calls", grouped(count)], ["Succeeded", share(answered)], ["Half within" + heard, duration(times[0])],
    ["99 % within" + heard, duration(times[2])], ["Longest" + heard, duration(times[3])],
    ["Packets", grouped(room.packets)], ["Bytes", bytes(room.bytes)],
  ];
  byId("tiles").append(...tiles.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  byId("footer").textContent = "toolbridge " + version + ". Times are of the recording machine's clock.";
}

function startNotices() {
  const { calls, frames, bodies, events, participants, tools, views } = data.omitted;
  const { malformed, redacted, unsent, unrecorded, leftOut } = data.head.room;
  const say = (count, one, many) => (count ? grouped(count) + " " + (count === 1 ? one : many) : null);
  const notices = [
    ...data.head.notes,
    OBSERVED ? "An observer recorded this. All times are when it heard a copy, not when the participants sent or " +
      "received the frame." : null,
    say(unrecorded, "packet could not be recorded: what is missing may be in it.",
      "packets could not be recorded: what is missing may be in them."),
    say(leftOut, "packet of or to a participant without rights was left out, because a limit was reached.",
      "packets of or to participants without rights were left out, because a limit was reached."),
    say(malformed, "packet is not a valid frame.", "packets are not valid frames."),
    say(redacted, "frame had something taken out when it was recorded.",
      "frames had something taken out when they were recorded."),
    say(unsent, "packet did not leave.", "packets did not leave."),
    say(calls, "call is only counted: this page holds no more.", "calls are only counted: this page holds no more."),
    say(frames, "frame was left out: this page holds no more.", "frames were left out: this page holds no more."),
    say(bodies, "frame is without its body: this page holds no more.",
      "frames are without their bodies: this page holds no more."),
    say(events, "event of the room was left out.", "events of the room were left out."),
    say(participants, "participant was left out.", "participants, or more, were left out."),
    say(views, "state of a view was left out.", "states of views were left out."),
    say(tools, "tool was left out of the table of tools.", "tools were left out of the table of tools."),
  ];
  byId("notices").append(...notices.filter((text) => text !== null).map((text) => make("li", {}, text)));
}

startHead();
startNotices();
startFilter();
startWaterfall();
startTables();
startViews();
openFromAddress();
document.documentElement.dataset.ready = "true";
