/** Calls functions when their time comes, with one timer for all: to set and clear one for each job takes longer than many a job. */

/** The longest delay that timers take, in milliseconds: 2^31 − 1. */
const LONGEST_DELAY = 2_147_483_647;

/** A function that is called once, unless it is cancelled before. */
export interface Alarm {
  /** Performance time in milliseconds. */
  readonly at: number;
  readonly ring: () => void;
}

export class Alarms {
  readonly #waiting = new Set<Alarm>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** When the timer fires. That may be too early, since most alarms are cancelled long before their time: then it is set again. */
  #fires = Infinity;
  #isClosing = false;

  /** Calls a function at a performance time, and never earlier. */
  set(at: number, ring: () => void): Alarm {
    const alarm = { at, ring };
    this.#waiting.add(alarm);
    this.#isClosing = false;
    this.#arm(at);
    return alarm;
  }

  cancel(alarm: Alarm | undefined): void {
    if (alarm === undefined) return;
    this.#waiting.delete(alarm);
    this.#stopIfClosed();
  }

  /** Stops the timer as soon as nothing waits: until it fires, it would keep a program from ending. */
  close(): void {
    this.#isClosing = true;
    this.#stopIfClosed();
  }

  #stopIfClosed(): void {
    if (!this.#isClosing || this.#waiting.size > 0) return;
    clearTimeout(this.#timer);
    this.#fires = Infinity;
  }

  #arm(at: number): void {
    if (at >= this.#fires) return;
    clearTimeout(this.#timer);
    this.#fires = at;
    // Timers fire up to a millisecond early; one that is late, as in a hidden page, does no harm.
    const delay = Math.min(Math.max(Math.ceil(at - performance.now()), 0), LONGEST_DELAY);
    this.#timer = setTimeout(() => this.#fire(), delay);
  }

  #fire(): void {
    this.#fires = Infinity;
    const now = performance.now();
    const due = [...this.#waiting].filter(({ at }) => at <= now).sort((one, other) => one.at - other.at);
    try {
      for (const alarm of due) {
        if (this.#waiting.delete(alarm)) alarm.ring(); // an earlier one may have cancelled it
      }
    } finally {
      this.#arm(Math.min(...[...this.#waiting].map(({ at }) => at))); // also if one has thrown
    }
  }
}
