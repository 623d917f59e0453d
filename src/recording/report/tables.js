// Sortable tables. Of a long one only the rows in sight are in the page.

const ROW_HEIGHT = 29;
const ALL_AT_ONCE = 1000;
const WINDOW = 60;

// A column is [title, value to sort by, text to show, class]. Without a text the value itself is shown.
function sortable(place, caption, columns, rows, open) {
  const state = { rows: [...rows], by: null, down: false, top: 0, chosen: null };
  const head = make("tr");
  const body = make("tbody");
  const scroll = byId(place);
  const table = make("table", { "aria-label": caption }, make("thead", {}, head), body);
  columns.forEach(([title, value, , kind], at) => {
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      state.down = state.by === at ? !state.down : false;
      state.by = at;
      [...head.children].forEach((cell, place) => {
        if (place === at) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      sort();
      show(true);
    });
    head.append(make("th", { scope: "col", class: kind }, button));
  });

  function sort() {
    if (state.by === null) return;
    const value = columns[state.by][1];
    const order = state.down ? -1 : 1;
    // What has no value comes last either way.
    state.rows.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return order * (typeof a === "number" ? a - b : String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
    });
  }

  function line(row, at) {
    const cells = columns.map(([, value, text, kind]) => {
      const content = text ? text(row) : value(row);
      const cell = make("td", { class: kind }, content === null ? "–" : content);
      if (typeof content === "string" && content.length > 24) cell.title = content;
      return cell;
    });
    const chosen = row === state.chosen;
    return make("tr", open ? { tabindex: -1, "data-row": at, "aria-rowindex": at + 2,
      class: chosen ? "chosen" : null, "aria-current": chosen ? "true" : null } : {}, ...cells);
  }

  function show(always) {
    const count = state.rows.length;
    const all = count <= ALL_AT_ONCE;
    const top = all ? 0 : Math.max(0, Math.min(count - WINDOW, Math.floor(scroll.scrollTop / ROW_HEIGHT) - 15));
    if (!always && (all || Math.abs(top - state.top) < 8)) return;
    state.top = top;
    const shown = state.rows.slice(top, all ? count : top + WINDOW);
    const below = all ? 0 : count - top - shown.length;
    // Empty rows as high as those that are not there.
    const spacer = (rows) => {
      const row = make("tr", { class: "spacer", "aria-hidden": "true" }, make("td", { colspan: columns.length }));
      row.firstChild.style.height = rows * ROW_HEIGHT + "px";
      return row;
    };
    body.replaceChildren(...[top ? spacer(top) : null, ...shown.map((row, at) => line(row, top + at)),
      below > 0 ? spacer(below) : null].filter((row) => row !== null));
    if (open && body.querySelector("[data-row]")) body.querySelector("[data-row]").tabIndex = 0;
    table.setAttribute("aria-rowcount", count + 1);
  }

  function focus(at) {
    const to = Math.min(Math.max(at, 0), state.rows.length - 1);
    if (to < 0) return;
    if (!body.querySelector('[data-row="' + to + '"]')) {
      scroll.scrollTop = Math.max(0, to * ROW_HEIGHT - 100);
      show(true);
    }
    const row = body.querySelector('[data-row="' + to + '"]');
    if (row) row.focus();
  }

  if (open) {
    body.addEventListener("click", (event) => {
      const row = event.target.closest("[data-row]");
      if (row) open(state.rows[Number(row.dataset.row)]);
    });
    body.addEventListener("keydown", (event) => {
      const row = event.target.closest("[data-row]");
      if (!row) return;
      const at = Number(row.dataset.row);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 12, PageUp: at - 12, Home: 0,
        End: state.rows.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") open(state.rows[at]);
      else if (to !== undefined) focus(to);
      else return;
      event.preventDefault();
    });
  }
  scroll.addEventListener("scroll", () => show(false), { passive: true });
  scroll.append(table);
  show(true);
  return {
    replace(rows) {
      state.rows = [...rows];
      sort();
      show(true);
    },
    focus: (row) => focus(state.rows.indexOf(row)),
    // Marks one row, and brings it into sight within the table.
    choose(row) {
      state.chosen = row;
      for (const marked of body.querySelectorAll(".chosen")) {
        marked.classList.remove("chosen");
        marked.removeAttribute("aria-current");
      }
      const at = row === null ? -1 : state.rows.indexOf(row);
      if (at < 0) return;
      const from = at * ROW_HEIGHT;
      if (from < scroll.scrollTop || from > scroll.scrollTop + scroll.clientHeight - 3 * ROW_HEIGHT) {
        scroll.scrollTop = Math.max(0, from - 4 * ROW_HEIGHT);
        show(false);
      }
      const line = body.querySelector('[data-row="' + at + '"]');
      if (!line) return;
      line.classList.add("chosen");
      line.setAttribute("aria-current", "true");
    },
  };
}

let callTable = null;
const focusRow = (call) => callTable.focus(call);

function chip(call) {
  const { name, letter } = ENDINGS[call.ending];
  return make("span", { class: "outcome " + name },
    make("span", { class: "chip", "aria-hidden": "true" }, letter), " " + call.outcome);
}

function startTables() {
  const after = (call, time) => (time === null || call.requested === null ? null : time - call.requested);
  const span = (value) => (call) => duration(value(call));
  const delivered = (call) => after(call, call.delivered);
  const started = (call) => after(call, call.started);
  callTable = sortable("calls", "Calls", [
    ["At", (call) => call.begin, (call) => point(call.begin), "number"],
    ["Tool", (call) => call.tool, null, "tool"],
    ["Asked by", (call) => call.caller],
    ["Run by", (call) => call.owner],
    ["Execution", (call) => call.execution],
    ["Outcome", (call) => call.outcome, chip],
    ["Delivered", delivered, span(delivered), "number"],
    ["Started", started, span(started), "number"],
    ["Took", (call) => call.took, span((call) => call.took), "number"],
    ["Parameters", (call) => call.parameters, (call) => bytes(call.parameters), "number"],
    ["Result", (call) => call.result, (call) => bytes(call.result), "number"],
    ["Id", (call) => call.id, null, "id"],
  ], filter.calls, (call) => openDetails(call, "row"));
  filter.listeners.push(() => callTable.replace(filter.calls));

  const time = (title, at) => [title, (row) => row[3][at], (row) => duration(row[3][at]), "number"];
  const failed = (row) => row[1] - row[2][0] - row[2][ENDINGS.length - 1];
  sortable("tools", "Tools", [
    ["Tool", (row) => row[0], (row) => row[0] || "(request not in the file)", "tool"],
    ["Calls", (row) => row[1], (row) => grouped(row[1]), "number"],
    ["Ok", (row) => row[2][0], (row) => grouped(row[2][0]), "number"],
    ["Not ok", failed, (row) => grouped(failed(row)), "number"],
    time("p50", 0), time("p90", 1), time("p99", 2), time("max", 3),
  ], data.tools);

  const role = ([, role, agent, recorder]) =>
    [role, agent ? "agent" : null, recorder ? "recorded" : null].filter((word) => word).join(", ") || "–";
  sortable("participants", "Participants", [
    ["Identity", (row) => row[0], (row) => named(row[0]), "tool"],
    ["Role", role],
    ["Joins", (row) => row[4], null, "number"],
    ["Frames", (row) => row[5], (row) => grouped(row[5]), "number"],
    ["Sent", (row) => row[6], (row) => bytes(row[6]), "number"],
    ["Asked", (row) => row[7], (row) => grouped(row[7]), "number"],
    ["Ran", (row) => row[8], (row) => grouped(row[8]), "number"],
  ], data.participants);
}

