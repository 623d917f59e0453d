// The tools of the clients. `seen` is what happened to them.

/** @param toolbridge the module, of whichever entry */
export function makeTools({ tool, ToolError }) {
  const { options, ...rest } = makeOptions(ToolError);
  const tools = Object.fromEntries(Object.entries(options).map(([name, options]) => [name, tool(options)]));
  return { tools, ...rest };
}

/** The tools before they are described by `tool`. */
export function makeOptions(ToolError) {
  const seen = [];
  const waiting = new Set();
  const note = (what) => {
    seen.push(what);
    for (const check of [...waiting]) check();
  };
  /** Resolves when this was seen. */
  const until = (what) =>
    new Promise((resolve) => {
      const check = () => {
        if (!seen.includes(what)) return;
        waiting.delete(check);
        resolve(true);
      };
      waiting.add(check);
      check();
    });
  const options = {
    echo: { description: 'Returns its arguments', execute: (args) => args },
    make: {
      description: 'Returns a text of this length',
      parameters: { type: 'object', properties: { size: { type: 'number' } }, required: ['size'] },
      execute: ({ size }) => ({ text: 'r'.repeat(size) }),
    },
    length: { description: 'Returns the length of a text', execute: ({ text }) => text.length },
    fail: {
      description: 'Fails',
      execute: () => {
        throw new ToolError('the watch is out of range', { code: 'out_of_range' });
      },
    },
    broken: {
      description: 'Throws',
      execute: () => {
        throw new Error('secret');
      },
    },
    strict: {
      description: 'Wants a number',
      parameters: { type: 'object' },
      validate: ({ n }) => typeof n === 'number' || 'n: must be a number',
      execute: ({ n }) => n,
    },
    hang: {
      description: 'Never ends',
      execute: ({ id }, { signal }) => {
        note('hang');
        note(`hang ${id}`);
        signal.addEventListener('abort', () => {
          note(`stopped: ${signal.reason.reason}`);
          note(`stopped ${id}`);
        });
        return new Promise(() => {});
      },
    },
    steps: {
      description: 'Reports progress',
      execute: async (_, cx) => {
        cx.progress('half');
        await until('go');
        return 'done';
      },
    },
    note: { description: 'Notes a text', execute: ({ what }) => (note(what), {}) },
    until: { description: 'Waits for a note', execute: ({ what }) => until(what) },
    erase: { description: 'Deletes all files, which the person refuses', destructive: true, execute: () => 'gone' },
    remove: { description: 'Deletes a file', destructive: true, execute: () => 'gone' },
    ask: { description: 'Deletes after a question that nobody answers', destructive: true, execute: () => 'gone' },
  };
  return { options, seen, note, until };
}

/** Answers the questions: that about `erase` and `no` in the arguments are refused, and `never` is not answered. */
export const consent = ({ tool, arguments: args, signal }, note) => {
  if (!args.never) return tool.name !== 'erase' && !args.no;
  note('asked');
  return new Promise(() => signal.addEventListener('abort', () => note('withdrawn')));
};
