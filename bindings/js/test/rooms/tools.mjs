// The tools of the clients in Node and in pages. `seen` is what happened to them.

/** @param toolbridge the module, of whichever entry */
export function makeTools({ tool, ToolError }) {
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
  const tools = {
    echo: tool({ description: 'Returns its arguments', execute: (args) => args }),
    make: tool({
      description: 'Returns a text of this length',
      parameters: { type: 'object', properties: { size: { type: 'number' } }, required: ['size'] },
      execute: ({ size }) => ({ text: 'r'.repeat(size) }),
    }),
    length: tool({ description: 'Returns the length of a text', execute: ({ text }) => text.length }),
    fail: tool({
      description: 'Fails',
      execute: () => {
        throw new ToolError('the watch is out of range', { code: 'out_of_range' });
      },
    }),
    broken: tool({
      description: 'Throws',
      execute: () => {
        throw new Error('secret');
      },
    }),
    strict: tool({
      description: 'Wants a number',
      parameters: { type: 'object' },
      validate: ({ n }) => typeof n === 'number' || 'n: must be a number',
      execute: ({ n }) => n,
    }),
    hang: tool({
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
    }),
    steps: tool({
      description: 'Reports progress',
      execute: async (_, cx) => {
        cx.progress('half');
        await until('go');
        return 'done';
      },
    }),
    note: tool({ description: 'Notes a text', execute: ({ what }) => (note(what), {}) }),
    until: tool({ description: 'Waits for a note', execute: ({ what }) => until(what) }),
    erase: tool({ description: 'Deletes all files, which the person refuses', destructive: true, execute: () => 'gone' }),
    remove: tool({ description: 'Deletes a file', destructive: true, execute: () => 'gone' }),
    ask: tool({ description: 'Deletes after a question that nobody answers', destructive: true, execute: () => 'gone' }),
  };
  return { tools, seen, note, until };
}

/** Answers the questions: that about `erase` and `no` in the arguments are refused, and `never` is not answered. */
export const consent = ({ tool, arguments: args, signal }, note) => {
  if (!args.never) return tool.name !== 'erase' && !args.no;
  note('asked');
  return new Promise(() => signal.addEventListener('abort', () => note('withdrawn')));
};
