// Which calls are shown: those that hold every word of the filter and end in one of the outcomes that are ticked.

const filter = { words: [], endings: new Set(ENDINGS.keys()), calls, listeners: [] };

function applyFilter() {
  filter.calls = calls.filter(
    (call) => filter.endings.has(call.ending) && filter.words.every((word) => call.words.includes(word)));
  filter.listeners.forEach((listener) => listener());
}

function startFilter() {
  const counts = data.head.all[2];
  for (const [ending, { name, letter }] of ENDINGS.entries()) {
    const box = make("input", { type: "checkbox", checked: true, disabled: counts[ending] === 0 });
    box.addEventListener("change", () => {
      if (box.checked) filter.endings.add(ending);
      else filter.endings.delete(ending);
      applyFilter();
    });
    const sample = draw("svg", { class: "sample " + name, width: 26, height: 14, "aria-hidden": "true" },
      draw("rect", { class: "run", width: 26, height: 14, rx: 3 }),
      draw("rect", { class: "hatch", width: 26, height: 14, rx: 3, fill: "url(#hatch-" + name + ")" }),
      draw("text", { class: "letter", x: 13, y: 11 }, letter));
    byId("endings").append(make("label", { class: counts[ending] ? null : "none" }, box, sample,
      name, make("b", {}, grouped(counts[ending]))));
  }
  let waiting = 0;
  byId("filter").addEventListener("input", (event) => {
    filter.words = event.target.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    clearTimeout(waiting);
    waiting = setTimeout(applyFilter, calls.length > 5000 ? 150 : 0);
  });
}

