// Bundles a program for Hermes, the engine of React Native. As React Native's bundler does, it rewrites what Hermes 0.12 does not know:
// esbuild async functions and private fields, Babel classes and variables that belong to one pass of a loop.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { transformSync } from '@babel/core';
import blockScoping from '@babel/plugin-transform-block-scoping';
import classes from '@babel/plugin-transform-classes';
import { build } from '../../node_modules/esbuild/lib/main.js';

const hermes = fileURLToPath(new URL('node_modules/hermes-engine-cli/linux64-bin/hermes', import.meta.url));
const here = fileURLToPath(new URL('.', import.meta.url));

/** Runs a program in Hermes, whose promises are microtasks as in React Native, and returns what it prints. */
export async function run(source) {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: here },
    bundle: true,
    format: 'iife',
    conditions: ['react-native'],
    target: 'es2016',
    write: false,
  });
  const { code } = transformSync(outputFiles[0].text, { plugins: [classes, blockScoping], compact: true, babelrc: false, configFile: false });
  const folder = mkdtempSync(join(tmpdir(), 'toolbridge-hermes-'));
  try {
    const program = join(folder, 'program.js');
    writeFileSync(program, code);
    return execFileSync(hermes, ['-w', '-O', '-Xmicrotask-queue', program], { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 }).trim();
  } finally {
    rmSync(folder, { recursive: true });
  }
}
