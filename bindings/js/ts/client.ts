import type { AnyRoom } from './adapters.js';
import type { LeftOut, LoadCore } from './core.js';
import { checkNames, checkOptions, CLIENT_OPTIONS } from './options.js';
import { expectDone, Participant, type ParticipantOptions } from './participant.js';
import { fields } from './tool.js';

export interface ClientOptions extends ParticipantOptions {
  /** The identity of the assistant whose calls are accepted. Default: the only eligible one in the room. */
  readonly assistant?: string | undefined;
}

/** A participant that offers tools to the assistant in its room. */
export class ClientBase extends Participant {
  /** @internal */
  constructor(room: AnyRoom, { assistant, ...options }: ClientOptions, load: LoadCore) {
    checkNames('Client', options, CLIENT_OPTIONS);
    checkOptions({ assistant });
    super(room, 'client', { ...options, config: fields({ assistant }) }, load);
  }

  /** The identity of the bound assistant, which may call the tools, once there is one. */
  get assistant(): string | undefined {
    const reply = this.driver.query({ type: 'state' });
    return reply?.type === 'state' ? reply.bound : undefined;
  }

  /** The tools that are not offered, and why: as the last event `leftOut` has named them. */
  get leftOut(): readonly LeftOut[] {
    return this.driver.leftOut;
  }

  /**
   * Asks the assistant to stop a call, or all that an interruption would stop. It need not obey.
   *
   * @throws Error if there is no assistant.
   */
  askToStop(call?: string): void {
    expectDone(this.driver.input({ type: 'ask_to_stop', ...fields({ call }) }), 'the assistant cannot be asked');
  }
}
