// A result as a person sees it: sections of lines, and the document that it comes from. Texts go in as text nodes alone.

// The styles of a line and of a text in it, in the order in which the data numbers them.
const LINES = ["plain", "heading", "quote", "mono", "added", "removed", "place", "said"];
const INKS = ["plain", "strong", "emphasis", "code", "link"];

function resultPart(call) {
  const shown = call.entries.map((place) => frames.get(place)).filter((frame) => frame && frame.result !== null);
  if (shown.length === 0) return [];
  const [sections, spoken, needsModel, native] = shown[shown.length - 1].result;
  return [
    make("h3", {}, "Result, as a person sees it"),
    sections.length ? make("div", { class: "result" }, ...sections.map(sectionItem))
      : make("p", { class: "note" }, "Nothing: it is for the model, or empty."),
    make("dl", { class: "facts heard" },
      make("dt", {}, "Spoken"), make("dd", {}, spoken === null ? "–" : spoken),
      make("dt", {}, "Model"), make("dd", {}, needsModel ? "runs on the result" : "does not run")),
    native === null ? null : nativeItem(native),
  ].filter((it) => it !== null);
}

function sectionItem([title, note, collapsed, lines, omitted]) {
  const content = linesOf(lines, omitted);
  if (title === "" && note === "" && !collapsed) return content;
  return make("details", { class: "part", open: !collapsed },
    make("summary", {}, make("span", { class: "what" }, title || note), make("span", { class: "size" }, title ? note : "")),
    content);
}

function linesOf(lines, omitted) {
  return make("div", { class: "lines" }, ...lines.map(lineItem), omitted === 0 ? null
    : make("p", { class: "note" }, "… " + grouped(omitted) + (omitted === 1 ? " more line" : " more lines")));
}

function lineItem([style, ...texts]) {
  return make("div", { class: "line " + LINES[style] }, ...texts.map(textItem));
}

function textItem(text) {
  if (typeof text === "string") return text;
  const [ink, words] = text;
  if (INKS[ink] !== "link" || !/^https?:\/\//.test(words)) return make("span", { class: INKS[ink] }, words);
  return make("a", { href: words, target: "_blank", rel: "noopener noreferrer" }, words);
}

// Laid out when somebody looks.
function nativeItem([system, text, length]) {
  const item = make("details", { class: "part" },
    make("summary", {}, make("span", { class: "what" }, "Document of " + system),
      make("span", { class: "size" }, bytes(length))));
  item.addEventListener("toggle", () => {
    if (item.open && item.children.length === 1) item.append(...jsonPart([text, length], 0, ""));
  });
  return item;
}

// The states of views in the order of their times. The latest of each view is open; an earlier one is laid out when somebody
// looks.
function startViews() {
  const latest = new Map(data.views.map(([, from, [view]], at) => [JSON.stringify([from, view]), at]));
  byId("views").hidden = data.views.length === 0;
  byId("views").lastElementChild.append(...data.views.map(([at, from, state], place) =>
    viewItem(at, from, state, latest.get(JSON.stringify([from, state[0]])) === place)));
}

function viewItem(at, from, [view, note, , lines, omitted], open) {
  const item = make("details", { class: "part", "data-view": view },
    make("summary", {}, make("span", { class: "what" }, view),
      make("span", { class: "size" }, note + " · " + named(from) + " · " + point(at))));
  const layOut = () => {
    if (item.open && item.children.length === 1) item.append(linesOf(lines, omitted));
  };
  item.addEventListener("toggle", layOut);
  item.open = open;
  layOut();
  return item;
}
