import { createInterface } from 'node:readline';

/** Returns the URL that a `toolbridge dev` prints when it has started. What it prints later is dropped. */
export async function serverUrl(child) {
  for await (const line of createInterface({ input: child.stdout })) {
    const url = /LIVEKIT_URL=(\S+)/.exec(line)?.[1];
    if (url !== undefined) {
      child.stdout.resume();
      return url;
    }
  }
  throw new Error('toolbridge dev did not start');
}
