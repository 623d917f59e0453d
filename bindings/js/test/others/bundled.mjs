// Bundles a program for Hermes, the engine of React Native. As React Native's bundler does, it turns classes into functions, which Hermes
// 0.12 does not know.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { transformFileSync } from '@babel/core';
import classes from '@babel/plugin-transform-classes';
import { build } from '../../node_modules/esbuild/lib/main.js';

const hermes = fileURLToPath(new URL('node_modules/hermes-engine-cli/linux64-bin/hermes', import.meta.url));
const here = fileURLToPath(new URL('.', import.meta.url));

const lowerClasses = {
  name: 'classes',
  setup: (build) =>
    build.onLoad({ filter: /\.js$/ }, ({ path }) => ({
      contents: transformFileSync(path, { plugins: [classes], compact: true, babelrc: false, configFile: false }).code,
      loader: 'js',
    })),
};

/** Runs a program in Hermes, and returns what it prints. */
export async function run(source) {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: here },
    bundle: true,
    format: 'iife',
    target: 'es2018',
    write: false,
    plugins: [lowerClasses],
  });
  const folder = mkdtempSync(join(tmpdir(), 'toolbridge-hermes-'));
  try {
    const program = join(folder, 'program.js');
    writeFileSync(program, outputFiles[0].text);
    return execFileSync(hermes, ['-O', program], { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 }).trim();
  } finally {
    rmSync(folder, { recursive: true });
  }
}
