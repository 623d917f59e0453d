// Builds the npm package in this folder: `node build.mjs CORE`, where CORE is the folder that `scripts/bindings js` makes
// of the Rust part. Its last line is this folder. It does nothing if `dist` was made of these sources and that core.
// `node build.mjs --install` only installs the packages that it needs.
//
// dist/esm and dist/cjs have the same modules. The second is made of the first, so that both behave alike.

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, 'dist');
/** Has the digest of what `dist` was made of. Not in `dist`, whose files are all published. */
const stamp = join(here, '.dist-digest');

/** Installs the pinned packages into a cache, once, and links it. */
function install() {
  const pins = ['package.json', 'package-lock.json'].map((name) => readFileSync(join(here, name)));
  const key = createHash('sha256').update(pins[1]).update(`${process.platform} ${process.arch}`).digest('hex').slice(0, 12);
  const cache = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'toolbridge');
  const folder = join(cache, `js-packages-${key}`);
  if (!existsSync(folder)) {
    mkdirSync(cache, { recursive: true });
    // Installed in a temporary folder and renamed at the end: one with the final name is always complete.
    const building = mkdtempSync(`${folder}.`);
    writeFileSync(join(building, 'package.json'), pins[0]);
    writeFileSync(join(building, 'package-lock.json'), pins[1]);
    execFileSync('npm', ['ci', '--prefix', building, '--ignore-scripts', '--no-audit', '--no-fund'], { stdio: ['ignore', 2, 2] });
    try {
      renameSync(building, folder);
    } catch (error) {
      if (!existsSync(folder)) throw error;
      rmSync(building, { recursive: true }); // another run was faster
    }
  }
  const link = join(here, 'node_modules');
  const modules = join(folder, 'node_modules');
  if (linkTarget(link) === modules) return;
  rmSync(link, { recursive: true, force: true });
  symlinkSync(modules, link);
}

function linkTarget(path) {
  try {
    return readlinkSync(path);
  } catch {
    return undefined;
  }
}

async function build(core) {
  const { transform } = await import('esbuild');
  const esm = join(dist, 'esm');
  const cjs = join(dist, 'cjs');
  rmSync(dist, { recursive: true, force: true });
  execFileSync(join(here, 'node_modules/.bin/tsc'), ['--project', here], { stdio: ['ignore', 2, 2] });

  // The core: its glue, its bytes, and its translation to plain JavaScript.
  const places = join(esm, 'core');
  mkdirSync(places, { recursive: true });
  const minify = async (path) => (await transform(readFileSync(path, 'utf8'), { format: 'esm', minify: true })).code;
  writeFileSync(join(places, 'wasm.js'), await minify(join(core, 'wasm/core.js')));
  writeFileSync(join(places, 'plain.js'), await minify(join(core, 'plain/core.js')));
  const packed = gzipSync(readFileSync(join(core, 'wasm/core.wasm')), { level: 9 });
  writeFileSync(join(places, 'wasm-bytes.js'), `export const base64 = '${packed.toString('base64')}';\n`);
  cpSync(join(here, 'ts/core'), places, { recursive: true });

  for (const name of readdirSync(esm, { recursive: true })) {
    if (name.endsWith('.d.ts')) cpSync(join(esm, name), join(cjs, name));
    if (!name.endsWith('.js')) continue;
    const source = readFileSync(join(esm, name), 'utf8');
    // The core is minified in both: esbuild would write it out again.
    const { code } = await transform(source, { format: 'cjs', platform: 'node', target: 'es2022', minify: name.startsWith('core') });
    mkdirSync(dirname(join(cjs, name)), { recursive: true });
    writeFileSync(join(cjs, name), code);
  }
  writeFileSync(join(cjs, 'package.json'), '{ "type": "commonjs" }\n');
}

/** A digest of all that `dist` is made of. */
function digestOf(core) {
  const digest = createHash('sha256');
  const sources = readdirSync(join(here, 'ts'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .sort();
  const own = ['build.mjs', 'package-lock.json', 'tsconfig.json'].map((name) => join(here, name));
  const built = ['wasm/core.js', 'wasm/core.wasm', 'plain/core.js'].map((name) => join(core, name));
  for (const path of [...own, ...sources, ...built]) digest.update(`${path}\n`).update(readFileSync(path));
  return digest.digest('hex');
}

/** Builds `dist` unless it is that of these sources. The digest is written last: it is that of a complete build. */
async function buildIfChanged(core) {
  const digest = digestOf(core);
  const before = existsSync(stamp) && existsSync(dist) ? readFileSync(stamp, 'utf8') : undefined;
  if (before === digest) return;
  rmSync(stamp, { force: true });
  await build(core);
  writeFileSync(stamp, digest);
}

const [argument] = process.argv.slice(2);
if (argument === undefined) {
  console.error('usage: node build.mjs CORE | --install');
  process.exit(2);
}
install();
if (argument !== '--install') await buildIfChanged(argument);
console.log(here);
