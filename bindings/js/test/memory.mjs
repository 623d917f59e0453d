// A room in memory, with the interface that the adapters of the SDKs have.
//
// Packets arrive one macrotask later, in order. A test can hold them back, drop them, change permissions, and move a
// participant to another join.

export class MemoryRoom {
  constructor(name = 'room') {
    this.name = name;
    this.ports = new Map();
    this.joins = 0;
    /** Returns false for a packet that is lost. */
    this.passes = () => true;
    this.sent = [];
  }

  port(identity, options) {
    return new MemoryPort(this, identity, options);
  }

  announce(identity) {
    for (const port of this.ports.values()) if (port.identity !== identity) port.emit('changed', identity);
  }

  deliver(from, kind, to, packet) {
    this.sent.push({ from: from.identity, kind, to, ...packet });
    if (!this.passes({ from: from.identity, kind, to, ...packet })) return;
    const targets = to.length > 0 ? to : [...this.ports.keys()].filter((identity) => identity !== from.identity);
    for (const identity of targets) {
      const port = this.ports.get(identity);
      if (port) setImmediate(() => port.arrive(kind, { from: from.identity, ...packet }));
    }
  }
}

export class MemoryPort {
  constructor(room, identity, { kind = 'standard', attributes = {}, canPublishData = true, canUpdateMetadata = false, knowsPermissions = true, tellsAnnounced = true } = {}) {
    this.memory = room;
    this.room = this;
    this.identity = identity;
    this.details = { kind, attributes, canPublishData, canUpdateMetadata, knowsPermissions, tellsAnnounced };
    this.state = 'disconnected';
    this.name = room.name;
    this.overhead = 0;
    this.sid = '';
    this.listeners = new Set();
    this.pageListeners = new Set();
    this.publishing = Promise.resolve();
  }

  get role() {
    return this.details.attributes['toolbridge.role'];
  }

  describe() {
    const { kind, attributes, canPublishData, canUpdateMetadata, knowsPermissions } = this.details;
    return {
      identity: this.identity,
      sid: this.sid,
      kind,
      attributes,
      can_update_metadata: knowsPermissions ? canUpdateMetadata : true,
      can_publish_data: knowsPermissions ? canPublishData : true,
    };
  }

  connect() {
    this.sid = `PA_${++this.memory.joins}`;
    this.state = 'connected';
    this.memory.ports.set(this.identity, this);
    this.memory.announce(this.identity);
    this.emit('connected');
  }

  disconnect(reason = { kind: 'closed' }) {
    this.state = 'disconnected';
    this.memory.ports.delete(this.identity);
    this.memory.announce(this.identity);
    this.emit('disconnected', reason);
  }

  /** The connection is lost. Nothing is sent or received until it is back. */
  lose() {
    this.state = 'reconnecting';
    this.emit('reconnecting');
  }

  /** The connection is back, under another sid if `rejoins`. */
  restore({ rejoins = false } = {}) {
    if (rejoins) {
      this.sid = `PA_${++this.memory.joins}`;
      this.memory.announce(this.identity);
    }
    this.state = 'connected';
    this.emit('reconnected');
  }

  change(details) {
    Object.assign(this.details, details);
    this.memory.announce(this.identity);
  }

  leavePage() {
    for (const leave of this.pageListeners) leave();
  }

  // What the adapters have.

  local() {
    return this.describe();
  }

  isAnnounced() {
    return this.details.tellsAnnounced ? true : undefined;
  }

  participants() {
    return [...this.memory.ports.values()].filter((port) => port !== this).map((port) => port.describe());
  }

  participant(identity) {
    const port = identity === this.identity ? undefined : this.memory.ports.get(identity);
    return port?.describe();
  }

  async publish(bytes, reliable, { topic, to }) {
    if (this.state !== 'connected') throw new Error('not connected');
    if (!this.details.canPublishData) throw new Error('not allowed');
    this.memory.deliver(this, 'packet', to, { lane: reliable ? 'reliable' : 'lossy', topic, bytes: bytes.slice() });
  }

  async sendStream(bytes, header, { to }) {
    if (this.state !== 'connected') throw new Error('not connected');
    this.memory.deliver(this, 'stream', to, { ...header, bytes: bytes.slice() });
  }

  listen(events) {
    this.listeners.add(events);
    return () => this.listeners.delete(events);
  }

  onPageLeave(leave) {
    this.pageListeners.add(leave);
    return () => this.pageListeners.delete(leave);
  }

  emit(name, ...args) {
    for (const events of [...this.listeners]) events[name](...args);
  }

  arrive(kind, { from, bytes, ...rest }) {
    if (this.state !== 'connected') return;
    if (kind === 'packet') this.emit('packet', { from, bytes, ...rest });
    else this.emit('stream', { from, ...rest, chunks: chunksOf(bytes) });
  }
}

/** As SDKs do: in chunks of 15,000 bytes. */
async function* chunksOf(bytes) {
  for (let at = 0; at < bytes.length; at += 15_000) yield bytes.subarray(at, at + 15_000);
}

/** A room with a client and an assistant whose tokens have roles, not connected yet. */
export function pair({ client = {}, assistant = {} } = {}) {
  const room = new MemoryRoom();
  return {
    room,
    phone: room.port('phone', { attributes: { 'toolbridge.role': 'client' }, ...client }),
    agent: room.port('agent', { kind: 'agent', attributes: { 'toolbridge.role': 'assistant' }, ...assistant }),
  };
}

/** Resolves with the next such event. */
export function next(participant, name, matches = () => true) {
  return new Promise((resolve) => {
    const stop = participant.on(name, (event) => {
      if (!matches(event)) return;
      stop();
      resolve(event);
    });
  });
}

/** A promise with its functions. */
export function later() {
  let resolve, reject;
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
}

/** Fails if this takes as long as the grace period of a participant that left without a goodbye, which is 5 s. */
export async function atOnce(promise) {
  const begun = performance.now();
  await promise;
  const took = performance.now() - begun;
  if (took > 3_000) throw new Error(`it took ${took} ms`);
}
