// Replaces `@livekit/rtc-node` by the older version of this folder: `node --import ./older-sdk.mjs --test …`.

import { register } from 'node:module';

const hook = `
export function resolve(name, context, next) {
  return next(name, name === '@livekit/rtc-node' ? { ...context, parentURL: ${JSON.stringify(import.meta.url)} } : context);
}
`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);
