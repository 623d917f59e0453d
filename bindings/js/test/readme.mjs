// The examples of the package's page.

import { readFileSync } from 'node:fs';

const page = readFileSync(new URL('../README.md', import.meta.url), 'utf8');

/** All examples of these languages, in order. */
export function examples(...languages) {
  const blocks = [...page.matchAll(/```(\w+)\n([^]*?)```/g)].map(([, language, code]) => ({ language, code }));
  return blocks.filter(({ language }) => languages.includes(language));
}

/** The one with this text. */
export function example(language, text) {
  const found = examples(language).filter(({ code }) => code.includes(text));
  if (found.length !== 1) throw new Error(`the README has ${found.length} examples with ${text}`);
  return found[0].code;
}
