// The examples of the page compile, and the one in the folder of examples. rooms/readme.test.mjs runs them.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { examples } from './readme.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));

/** What an example takes from its surroundings, by a line of its own. */
const SURROUNDINGS = {
  'const room = new Room()': `declare const photos: Set<string>;`,
  'const assistant = new Assistant(room)': `import { Room } from 'livekit-client'; declare const room: Room;`,
  'const turn = ': `import { Assistant } from 'toolbridge'; declare const assistant: Assistant;`,
  'function Lamp': '',
};

test('examples of the README and the folder compile', { timeout: 60_000 }, async () => {
  const all = examples('ts', 'tsx');
  assert.equal(all.length, Object.keys(SURROUNDINGS).length);
  const folder = mkdtempSync(join(root, 'test/types/readme-'));
  try {
    all.forEach(({ language, code }, n) => {
      const [line] = Object.keys(SURROUNDINGS).filter((line) => code.includes(line));
      writeFileSync(join(folder, `example${n}.${language}`), `${SURROUNDINGS[line]}\ndeclare const url: string, token: string;\n${code}\nexport {};\n`);
    });
    cpSync(join(root, '../../examples/page_client.ts'), join(folder, 'page_client.ts'));
    const config = { extends: '../tsconfig.json', compilerOptions: { jsx: 'react-jsx', rootDir: '../../..' }, include: ['.'] };
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config));
    const out = await new Promise((resolve) => {
      execFile(join(root, 'node_modules/.bin/tsc'), ['--project', folder], (_, stdout) => resolve(stdout));
    });
    assert.equal(out, '');
  } finally {
    rmSync(folder, { recursive: true });
  }
});
