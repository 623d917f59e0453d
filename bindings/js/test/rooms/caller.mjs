// Makes calls with an assistant in Node or in a page, and keeps them by a name, so that a test can reach those in a page.

/** @param assistant an `Assistant` of toolbridge */
export function makeCaller(assistant) {
  const calls = new Map();
  const ids = [];
  const violations = waitable([]);
  assistant.on('requested', (event) => ids.push(event));
  assistant.on('violation', (event) => violations.add(event));
  return {
    /** Starts a call. `fill` is the length of a text as the argument; the value of such a call is measured. */
    begin(name, tool, args = {}, { turn: hasTurn = false, fill, measure = false, ...options } = {}) {
      const controller = new AbortController();
      const turn = hasTurn ? assistant.turn() : undefined;
      const steps = waitable([]);
      const given = fill === undefined ? args : { text: 'a'.repeat(fill) };
      const result = (turn ?? assistant)
        .call(tool, given, { ...options, signal: controller.signal, onProgress: ({ status, message }) => steps.add({ status, message }) })
        .then((value) => ({ value: measure ? measured(value) : plain(value) }), describe);
      calls.set(name, { result, controller, turn, steps });
    },
    result: (name) => calls.get(name).result,
    /** Resolves when such a progress is reported. */
    progress: (name, message) => calls.get(name).steps.until((step) => step.message === message).then(() => true),
    cancel: (name) => calls.get(name).controller.abort(),
    bargeIn: (name) => calls.get(name).turn.bargeIn(),
    /** The id of the latest call of a tool that was requested. */
    requested: (tool) => ids.findLast((event) => event.tool === tool)?.call,
    violation: (by) => violations.until((event) => event.by === by).then(() => true),
  };
}

/** A list whose entries can be waited for. */
export function waitable(list) {
  const waiting = new Set();
  return {
    add: (entry) => {
      list.push(entry);
      for (const check of [...waiting]) check();
    },
    until: (matches) =>
      new Promise((resolve) => {
        const check = () => {
          const found = list.find(matches);
          if (found === undefined) return;
          waiting.delete(check);
          resolve(found);
        };
        waiting.add(check);
        check();
      }),
  };
}

/** What a tool has returned, from the result that carries it as a document of MCP. Any other result is returned as it is. */
export function plain(result) {
  if (result.native === undefined) return result;
  const value = JSON.parse(JSON.parse(result.native.json).content[0].text);
  return typeof value === 'object' ? value : { value };
}

/** What a result has in place of a long text. */
export function measured(result) {
  const { text } = plain(result);
  return { length: text.length, isIntact: /^(?:a*|r*)$/.test(text) };
}

function describe({ name, kind, code, message, mayHaveRun, owners, size, max }) {
  return { error: { name, kind, code, message, mayHaveRun, owners, size, max } };
}
