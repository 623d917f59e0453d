//! Remembers the requests by RPC of all callers, so that none runs twice (`wire.md`, section 10).
//!
//! They have neither instances nor stanzas, and no answer is acknowledged. So each is kept for a time after its answer, or
//! until as many newer ones of its caller need its place.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{
    clock::Instant,
    protocol::{rpc::RequestForm, session::JobKey},
    sorted::{SortedMap, SortedSet},
    tool::CallId,
    transport::{Identity, Peer, RpcError},
};

/// A caller in its join, and the id of its request. Another join is another program, or one that has given up its requests.
pub(super) type Key = (Peer, CallId);

/// The requests by RPC.
#[derive(Debug, Default)]
pub(in crate::protocol::session) struct RpcRequests {
    entries: SortedMap<Key, RpcEntry>,
    /// The requests that run.
    jobs: SortedMap<JobKey, Key>,
    /// The answered requests, by the time until which they are kept.
    expiry: SortedSet<(Instant, Key)>,
    /// The requests whose answers have not been sent.
    waiting: SortedSet<Key>,
    /// The last packet of each answer.
    packets: SortedMap<u64, Key>,
    callers: SortedMap<Identity, Usage>,
}

/// How much a client keeps of the requests of one caller, in all the caller's joins.
#[derive(Debug, Default)]
struct Usage {
    entries: usize,
    /// The answered requests, the oldest first.
    answered: SortedSet<(Instant, Key)>,
    /// The bytes of the kept answers.
    bytes: usize,
    /// The requests whose answers are kept, the oldest first.
    kept: SortedSet<(Instant, Key)>,
}

#[derive(Debug)]
pub(super) struct RpcEntry {
    pub(super) fingerprint: [u8; 32],
    pub(super) form: RequestForm,
    until: Option<Instant>,
    packet: Option<u64>,
    pub(super) state: RpcState,
}

pub(super) enum RpcState {
    /// The request runs.
    Running,
    /// The request has this answer.
    Answered(RpcAnswer),
    /// The request was answered, and the answer is no longer kept.
    Dropped,
}

pub(super) type RpcAnswer = Result<Bytes, RpcError>;

impl fmt::Debug for RpcState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("Running"),
            Self::Answered(answer) => f.debug_tuple("Answered").field(&size_of(answer)).finish(),
            Self::Dropped => f.write_str("Dropped"),
        }
    }
}

impl RpcRequests {
    pub(super) fn find(&self, key: &Key) -> Option<&RpcEntry> {
        self.entries.get(key)
    }

    /// Makes room for one more request of this caller, of which so many are remembered at most. The oldest is forgotten if its
    /// answer was sent. Returns false if there is no room.
    pub(super) fn make_room(&mut self, caller: &Identity, most: usize) -> bool {
        while let Some(usage) = self.callers.get(caller).filter(|usage| usage.entries >= most) {
            match usage.answered.first().filter(|(_, key)| !self.waiting.contains(key)) {
                Some((until, key)) => {
                    let (until, key) = (*until, key.clone());
                    self.forget(until, &key);
                }
                None => return false,
            }
        }
        most > 0
    }

    /// Adds a request that runs.
    pub(super) fn begin(&mut self, key: Key, fingerprint: [u8; 32], form: RequestForm, job: JobKey) {
        self.callers.entry(key.0.identity().clone()).or_default().entries += 1;
        self.jobs.insert(job, key.clone());
        let state = RpcState::Running;
        self.entries.insert(key, RpcEntry { fingerprint, form, until: None, packet: None, state });
    }

    /// Returns the request that this job runs, and forgets the job.
    pub(super) fn take_job(&mut self, job: JobKey) -> Option<Key> {
        self.jobs.remove(&job)
    }

    /// Sets the answer of a request, which is kept until then. If the answers of its caller have more bytes than allowed, the
    /// oldest ones are dropped.
    pub(super) fn answer(&mut self, key: &Key, answer: RpcAnswer, until: Instant, most: usize) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let size = size_of(&answer);
        if let Some(before) = entry.until.replace(until) {
            self.expiry.remove(&(before, key.clone()));
            self.release(key, before);
            if let Some(usage) = self.callers.get_mut(key.0.identity()) {
                usage.answered.remove(&(before, key.clone()));
            }
        }
        self.expiry.insert((until, key.clone()));
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = RpcState::Answered(answer);
        }
        self.waiting.insert(key.clone());
        let Some(usage) = self.callers.get_mut(key.0.identity()) else { return };
        usage.answered.insert((until, key.clone()));
        usage.kept.insert((until, key.clone()));
        usage.bytes += size;
        let mut excess = Vec::new();
        let mut bytes = usage.bytes;
        if bytes > most {
            // First those that were sent: no SDK asks for them again.
            let sent = usage.kept.iter().filter(|it| !self.waiting.contains(&it.1));
            let unsent = usage.kept.iter().filter(|it| self.waiting.contains(&it.1));
            for it in sent.chain(unsent).filter(|it| it.1 != *key) {
                if bytes <= most {
                    break;
                }
                bytes -= self.entries.get(&it.1).map_or(0, RpcEntry::size);
                excess.push(it.clone());
            }
        }
        for (until, key) in excess {
            // One that waits to be sent goes on waiting: its caller must hear that there is none any more.
            self.release(&key, until);
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.state = RpcState::Dropped;
            }
        }
    }

    /// Notes that the answer was given to the transport in this packet.
    pub(super) fn note_sent(&mut self, key: &Key, packet: u64) {
        self.waiting.remove(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(before) = entry.packet.replace(packet) {
            self.packets.remove(&before);
        }
        self.packets.insert(packet, key.clone());
    }

    /// Returns the request whose answer was in this packet, which was not sent. It waits again.
    pub(super) fn note_unsent(&mut self, packet: u64) -> Option<Key> {
        let key = self.packets.remove(&packet)?;
        self.waiting.insert(key.clone());
        Some(key)
    }

    /// Gives up sending the answer of a request, unless its caller asks again.
    pub(super) fn give_up(&mut self, key: &Key) {
        self.waiting.remove(key);
    }

    /// Returns the requests of this caller whose answers wait to be sent; of all callers without one.
    pub(super) fn waiting(&self, caller: Option<&Identity>) -> Vec<Key> {
        let is_theirs = |key: &&Key| caller.is_none_or(|caller| key.0.identity() == caller);
        self.waiting.iter().filter(is_theirs).cloned().collect()
    }

    /// Returns the time at which the first request may be forgotten.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiry.first().map(|(until, _)| *until)
    }

    /// Forgets the requests that were kept long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((until, key)) = self.expiry.first().filter(|(until, _)| *until <= now).cloned() {
            self.forget(until, &key);
        }
    }

    /// Forgets an answered request.
    fn forget(&mut self, until: Instant, key: &Key) {
        let at = (until, key.clone());
        self.expiry.remove(&at);
        self.release(key, until);
        self.waiting.remove(key);
        if let Some(packet) = self.entries.remove(key).and_then(|entry| entry.packet) {
            self.packets.remove(&packet);
        }
        let caller = key.0.identity();
        if let Some(usage) = self.callers.get_mut(caller) {
            usage.answered.remove(&at);
            usage.entries -= 1;
            if usage.entries == 0 {
                self.callers.remove(caller);
            }
        }
    }

    /// Releases the bytes of an answer.
    fn release(&mut self, key: &Key, until: Instant) {
        let size = self.entries.get(key).map_or(0, RpcEntry::size);
        if let Some(usage) = self.callers.get_mut(key.0.identity())
            && usage.kept.remove(&(until, key.clone()))
        {
            usage.bytes -= size;
        }
    }
}

impl RpcEntry {
    fn size(&self) -> usize {
        match &self.state {
            RpcState::Answered(answer) => size_of(answer),
            RpcState::Running | RpcState::Dropped => 0,
        }
    }
}

fn size_of(answer: &RpcAnswer) -> usize {
    match answer {
        Ok(payload) => payload.len(),
        Err(error) => error.message.len() + error.data.len(),
    }
}

/// Returns the hash of a request's method and payload.
pub(super) fn fingerprint(method: &str, payload: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((method.len() as u64).to_be_bytes());
    hash.update(method);
    hash.update(payload);
    hash.finalize().into()
}
