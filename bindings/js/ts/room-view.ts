/** Reports the room to the core: the local joins, whether they are connected, and the participants. */
import type { ReportedParticipant } from './core.js';
import { textOf } from './core-errors.js';
import type { RoomPort } from './room-port.js';

/** A rule about participants. One that throws counts as `false`. */
export type Rule = (participant: ReportedParticipant) => boolean;

/** The author's rules. */
export interface Rules {
  readonly admit?: Rule | undefined;
  readonly mayStop?: Rule | undefined;
}

export interface RoomViewOwner {
  /** Whether there is a session. */
  isOpen(): boolean;
  /** Passes an input to the session. */
  pass(fields: object): void;
  /** Gives up the packets that are being published. */
  interrupt(): void;
  /** The connection is back: what has arrived meanwhile can be read. */
  restored(): void;
  warn(message: string): void;
}

export class RoomView {
  readonly #port: RoomPort;
  readonly #rules: Rules;
  readonly #owner: RoomViewOwner;
  /** The local sid that the session has. */
  #sid = '';
  #isReconnecting = false;
  #isAnnounced = false;
  /** The participants that were reported, by identity: their sids, and their descriptions as texts. */
  readonly #reported = new Map<string, { readonly sid: string; readonly text: string }>();
  readonly #changed = new Set<string>();
  #isFlushScheduled = false;

  constructor(port: RoomPort, rules: Rules, owner: RoomViewOwner) {
    this.#port = port;
    this.#rules = rules;
    this.#owner = owner;
  }

  /** Whether the room has joined again, and the session does not know yet. */
  get isBehind(): boolean {
    return this.#isReconnecting && this.#port.local().sid !== this.#sid;
  }

  /** Forgets what an earlier session knew. The new one is created with this local participant. */
  begin(local: ReportedParticipant): void {
    this.#isReconnecting = false;
    this.#forget(local);
  }

  /** Forgets the participants: the session has ended. */
  end(): void {
    this.#reported.clear();
  }

  /** Reports everybody to a new session. */
  reportAll(): void {
    for (const who of this.#port.participants()) this.report(who.identity);
    this.report(this.#port.local().identity);
  }

  /** Reports what the core does not know of a participant yet. */
  report(identity: string): void {
    const local = this.#port.local();
    const isLocal = identity === local.identity;
    const now = isLocal ? local : this.#port.participant(identity);
    const was = this.#reported.get(identity);
    if (was !== undefined && (now === undefined || now.sid !== was.sid) && !isLocal) {
      this.#reported.delete(identity);
      this.#owner.pass({ type: 'participant_left', peer: { identity, sid: was.sid } });
    }
    if (now === undefined || (isLocal && now.sid !== this.#sid)) return; // another sid is a rejoin
    const described = entry(now);
    const isKnown = this.#reported.get(identity)?.text === described.text;
    if (isLocal ? !this.#isLocalNews(isKnown) : isKnown) return;
    this.#reported.set(identity, described);
    this.#owner.pass({ type: 'participant_joined', participant: isLocal ? now : this.#judge(now) });
  }

  /**
   * Whether the local participant is to be reported. The input also says that it is announced. A server that changes a
   * participant has announced it, so a change is news where the SDK does not tell.
   */
  #isLocalNews(isKnown: boolean): boolean {
    const isAnnounced = this.#isAnnounced || this.#port.isAnnounced();
    if (isAnnounced === false || (isKnown && (this.#isAnnounced || isAnnounced === undefined))) return false;
    this.#isAnnounced = true;
    return true;
  }

  /** Notes that a participant has changed. It is read after the SDK has finished: it emits events amid its changes. */
  touch(identity: string): void {
    this.#changed.add(identity);
    if (this.#isFlushScheduled) return;
    this.#isFlushScheduled = true;
    queueMicrotask(() => {
      this.#isFlushScheduled = false;
      this.flush();
    });
  }

  /** Reports the changes so far. */
  flush(): void {
    // While the room reconnects, the SDK forgets the participants and learns them again.
    if (!this.#owner.isOpen() || this.#isReconnecting || this.#port.state !== 'connected') return;
    if (this.#port.local().sid !== this.#sid) return this.#rejoined();
    const changed = [...this.#changed];
    this.#changed.clear();
    for (const identity of changed) this.report(identity);
  }

  /** Reports what no event of the SDK has shown, before a packet of this sender is passed. */
  reportUnnoticed(sender: string | undefined): void {
    if (this.#isReconnecting) return;
    this.report(this.#port.local().identity);
    if (sender !== undefined) this.report(sender);
  }

  reconnecting(): void {
    if (!this.#owner.isOpen() || this.#isReconnecting) return;
    this.#isReconnecting = true;
    this.#owner.pass({ type: 'connection', state: 'reconnecting' });
  }

  /** The connection is back. */
  reconnected(): void {
    if (this.#port.local().sid !== this.#sid) return this.#rejoined();
    if (this.#isReconnecting) {
      this.#isReconnecting = false;
      this.#owner.pass({ type: 'connection', state: 'connected' });
    }
    for (const identity of this.#reported.keys()) this.#changed.add(identity);
    for (const { identity } of this.#port.participants()) this.#changed.add(identity);
    this.flush();
    this.#owner.restored();
  }

  /** The local participant has another sid: no packet of the old join may be sent in the new one. */
  #rejoined(): void {
    const local = this.#port.local();
    this.#owner.interrupt();
    this.#isReconnecting = false;
    this.#forget(local);
    const present = this.#port.participants();
    for (const who of present) this.#reported.set(who.identity, entry(who));
    this.#owner.pass({ type: 'rejoined', local, present: present.map((who) => this.#judge(who)) });
    this.report(local.identity);
    this.#owner.restored();
  }

  #forget(local: ReportedParticipant): void {
    this.#sid = local.sid;
    this.#isAnnounced = false;
    this.#changed.clear();
    this.#reported.clear();
    this.#reported.set(local.identity, entry(local));
  }

  /** Evaluates the author's rules. */
  #judge(who: ReportedParticipant): ReportedParticipant {
    const accepts = (rule: Rule | undefined): boolean => {
      try {
        return rule?.(who) === true;
      } catch (error) {
        this.#owner.warn(`the rule for ${who.identity} threw ${textOf(error)}; it counts as false`);
        return false;
      }
    };
    const { admit, mayStop } = this.#rules;
    return { ...who, ...(admit && { admitted: accepts(admit) }), ...(mayStop && { mayStop: accepts(mayStop) }) };
  }
}

function entry(who: ReportedParticipant): { readonly sid: string; readonly text: string } {
  return { sid: who.sid, text: JSON.stringify(who) };
}
