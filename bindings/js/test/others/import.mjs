// Imports the built package, in whichever engine runs this, and loads its core: `import.mjs DIST`. A room that is no SDK's stands for
// one: it never connects.

const [dist] = (globalThis.Deno?.args ?? process.argv.slice(2));
const { pathToFileURL } = await import('node:url');

for (const name of ['index', 'js', 'wasm']) {
  const { Client, tool } = await import(pathToFileURL(`${dist}/esm/${name}.js`).href);
  const room = { state: 'disconnected', room: {}, overhead: 0, listen: () => () => {}, sendStream: async () => {}, publish: async () => {} };
  const client = new Client(room, { tools: { echo: tool({ description: 'Returns its arguments', execute: (args) => args }) } });
  await client.close();
  let refusal = '';
  try {
    new Client(room, { tools: { 'bridge.x': tool({ description: 'x', execute: () => 1 }) } });
  } catch (error) {
    refusal = error.message;
  }
  if (!refusal.includes('bridge.')) throw new Error(`${name}: a reserved name was not refused: ${refusal}`);
}
const { createRequire } = await import('node:module');
const { CallError } = createRequire(import.meta.url)(`${dist}/cjs/index.js`);
if (CallError.name !== 'CallError') throw new Error('the CommonJS form exports no CallError');
console.log(`${globalThis.Deno ? 'Deno' : globalThis.Bun ? 'Bun' : 'Node'}: imports and requires the package`);
