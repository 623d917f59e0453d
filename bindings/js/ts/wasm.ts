/** The core is WebAssembly. */
import type { AnyRoom } from './adapters.js';
import { AssistantBase, type AssistantOptions } from './assistant.js';
import { ClientBase, type ClientOptions } from './client.js';
import { loadWasm } from './load-wasm.js';

export * from './exports.js';

/**
 * Offers tools to the assistant in a room, which may be connected later, or be connected already.
 *
 * @throws TypeError that names a tool that cannot be offered; Error if the room has a `Client` or `Assistant`, if its SDK
 * is too old, or without `crypto.getRandomValues`.
 */
export class Client extends ClientBase {
  constructor(room: AnyRoom, options: ClientOptions = {}) {
    super(room, options, loadWasm);
  }
}

/**
 * Calls the tools of the clients in a room, which may be connected later, or be connected already.
 *
 * @throws As {@link Client} does.
 */
export class Assistant extends AssistantBase {
  constructor(room: AnyRoom, options: AssistantOptions = {}) {
    super(room, options, loadWasm);
  }
}
