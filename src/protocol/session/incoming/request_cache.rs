//! Remembers the requests of one caller at their owner, so that none runs twice (`wire.md`, section 5.1).

use std::{collections::BinaryHeap, fmt, time::Duration};

use sha2::{Digest, Sha256};

use super::{claims::Claim, form::Form};
use crate::{
    clock::{Instant, later},
    protocol::{
        frame::{Message, ToolUseRequest},
        session::{JobKey, codec::NOTHING_RAN, config::Caps},
    },
    sorted::{SortedMap, SortedSet},
    tool::{CallId, ErrorCode},
    value::Value,
};

/// The reason why a request is refused: a code, and a line for the caller.
#[derive(Clone, Debug)]
pub(in crate::protocol::session) struct Refusal {
    pub(super) code: ErrorCode,
    pub(super) text: Box<str>,
    /// Whether the reason is that the client has not bound the caller.
    pub(super) is_unbound: bool,
}

impl Refusal {
    /// Creates the refusal of a request for which there is no room, which this text names.
    pub(crate) fn busy(limit: &str) -> Self {
        Self::new(ErrorCode::BUSY, format!("{limit}{NOTHING_RAN}"))
    }

    pub(crate) fn new(code: ErrorCode, text: impl Into<Box<str>>) -> Self {
        Self { code, text: text.into(), is_unbound: false }
    }
}

/// The requests of one caller.
#[derive(Debug, Default)]
pub(super) struct RequestCache {
    entries: SortedMap<CallId, CachedRequest>,
    /// The requests whose answers are not acknowledged.
    answered: SortedSet<CallId>,
    /// The entries that may be dropped, by the time at which they must be.
    droppable: SortedSet<(Instant, CallId)>,
    /// The same entries, by the instance of their caller and the stanza of their request. Requests in other forms have none,
    /// and are in the order of their answers.
    oldest: SortedSet<(u32, u32, u64, CallId)>,
    /// The entries whose answers nothing acknowledges, by the time until which they are kept.
    kept: SortedSet<(Instant, CallId)>,
    /// The stanzas of answers that are kept no longer.
    pub(super) released: Vec<i32>,
    /// The calls that were stopped before their requests arrived, by the stanza of the stop.
    tombstones: SortedSet<(u32, CallId)>,
    /// The claimed requests that may not start yet.
    pub(super) claims: SortedMap<CallId, Claim>,
    /// The bytes of unacknowledged results.
    pub(super) bytes: usize,
    /// How long the answers of an absent caller are kept.
    until: Option<Instant>,
    /// The highest absolute stanza of a dropped entry. A request at or below it runs only if it is in the table.
    floor: u32,
    /// The highest absolute stanza of any entry.
    highest: u32,
    /// The number of answers so far.
    answers: u64,
    /// The number of the caller's present instance.
    instance: u32,
}

#[derive(Debug)]
pub(super) struct CachedRequest {
    /// `None` in a tombstone, whose request has not arrived.
    pub(super) fingerprint: Option<[u8; 32]>,
    pub(super) form: Form,
    /// The absolute stanza of the request; in a tombstone that of the stop.
    stanza: u32,
    instance: u32,
    /// The position among the answers that nothing acknowledges.
    order: u64,
    /// How long the entry is kept after the request has settled.
    keep: Duration,
    /// The time at which the entry must be dropped; `None` while it must be kept.
    until: Option<Instant>,
    pub(super) state: RequestState,
}

#[derive(Debug)]
pub(super) enum RequestState {
    /// The request runs.
    Running(JobKey),
    /// The request has its answer, which the caller may not have received.
    Answered(UnacknowledgedResult),
    /// The caller has received the answer.
    Done,
    /// The request was refused with this answer and never runs.
    Refused(Refusal),
    /// The request was stopped before it arrived.
    Tombstone,
    /// The request was claimed, and the caller has not answered the claim.
    Claiming,
}

/// An unacknowledged answer.
pub(super) struct UnacknowledgedResult {
    pub(super) message: Message,
    pub(super) size: usize,
    /// The answer's position among the caller's answers.
    order: u64,
    /// The stanza under which the answer was sent; `None` while it waits for the caller to be reachable.
    pub(super) sent: Option<i32>,
    /// Whether the answer must state that the tool had started, although its code otherwise proves that it had not.
    /// Progress is not retransmitted, so the answer states it.
    pub(super) states_start: bool,
}

impl UnacknowledgedResult {
    pub(super) fn new(message: Message, size: usize, states_start: bool) -> Self {
        Self { message, size, order: 0, sent: None, states_start }
    }
}

impl fmt::Debug for UnacknowledgedResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnacknowledgedResult")
            .field("bytes", &self.size)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

/// The table has no space for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl RequestCache {
    pub(super) fn find(&self, id: &CallId) -> Option<&CachedRequest> {
        self.entries.get(id)
    }

    /// Replaces the caller's instance. The requests stay, so that none of them runs again; the answers, tombstones and
    /// floor of the old instance are dropped. Returns the highest stanza of the old instance.
    pub(super) fn next_instance(&mut self, now: Instant) -> u32 {
        // Nothing of the old instance's results may reach another process, and no acknowledgement of them can
        // come.
        self.acknowledge_all(now);
        self.end_frames(now)
    }

    /// Does that for what was requested in frames, and keeps the other answers.
    pub(super) fn end_frames(&mut self, now: Instant) -> u32 {
        let is_frame = |id: &&CallId| self.find(id).is_none_or(|entry| entry.form.is_frame());
        let in_frames: Vec<_> = self.answered.iter().filter(is_frame).cloned().collect();
        for id in in_frames {
            self.acknowledged(now, &id);
        }
        for (_, id) in self.tombstones.clone() {
            self.remove(&id);
        }
        self.instance += 1;
        self.until = None;
        std::mem::take(&mut self.highest).max(std::mem::take(&mut self.floor))
    }

    /// Raises the floor: no request up to this stanza may run.
    pub(super) fn raise_floor(&mut self, floor: u32) {
        self.floor = self.floor.max(floor);
    }

    /// Returns whether a frame with a higher stanza has arrived from the caller's present instance.
    pub(super) fn has_received_above(&self, stanza: i32) -> bool {
        stanza.unsigned_abs() < self.highest
    }

    /// Returns whether a repeated request of this form comes from the program that sent the first one.
    pub(super) fn is_present(&self, entry: &CachedRequest, form: &Form) -> bool {
        match entry.form.is_frame() && form.is_frame() {
            true => entry.instance == self.instance,
            false => entry.form.is_in_join_of(form),
        }
    }

    /// Returns the number of remembered requests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a request with this stanza is older than a dropped one.
    pub(super) fn is_below_floor(&self, stanza: Option<i32>) -> bool {
        // A request without a stanza cannot be compared. Once an entry has been dropped, it may be a
        // repetition of that one.
        stanza.is_none_or(|stanza| stanza.unsigned_abs() <= self.floor) && self.floor > 0
    }

    /// Returns whether a result is unacknowledged and its caller may still acknowledge it.
    pub(super) fn is_awaited(&self) -> bool {
        self.has_unacknowledged() && self.until.is_none()
    }

    /// Returns whether a result or claim is unacknowledged.
    fn has_unacknowledged(&self) -> bool {
        !self.answered.is_empty() || !self.claims.is_empty()
    }

    /// Makes space for one more request by dropping an old one if necessary.
    pub(super) fn make_room(&mut self, limits: &Caps) -> Result<(), Full> {
        self.drop_kept(limits.requests.table_bytes.saturating_sub(1));
        if self.bytes >= limits.requests.table_bytes {
            return Err(Full);
        }
        while self.entries.len() >= limits.requests.table_entries {
            // The oldest is dropped. Any other would raise the floor above requests that may still arrive.
            let (.., oldest) = self.oldest.first().cloned().ok_or(Full)?;
            self.forget(&oldest);
        }
        Ok(())
    }

    /// Adds an entry for a request that runs or is claimed.
    pub(super) fn begin(
        &mut self,
        request: &ToolUseRequest,
        form: Form,
        stanza: Option<i32>,
        keep: Duration,
        state: RequestState,
    ) {
        let entry = self.entry(Some(request), stanza.map_or(0, i32::unsigned_abs), keep, state);
        let entry = CachedRequest { form, ..entry };
        self.highest = self.highest.max(entry.stanza);
        self.entries.insert(request.id.clone(), entry);
    }

    /// Marks a claimed request as running, because the claim was granted.
    pub(super) fn granted(&mut self, id: &CallId) -> Option<Claim> {
        let claim = self.claims.remove(id)?;
        self.entries.get_mut(id)?.state = RequestState::Running(claim.job);
        Some(claim)
    }

    /// Marks a claimed request as ended, because the claim was denied. It never runs and needs no answer.
    pub(super) fn denied(&mut self, now: Instant, id: &CallId) -> Option<Claim> {
        let claim = self.claims.remove(id)?;
        let entry = self.entries.get_mut(id)?;
        entry.state = RequestState::Done;
        self.may_drop(now, id);
        Some(claim)
    }

    /// Remembers that this request was refused. Without space for an entry, the floor is raised instead.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        request: &ToolUseRequest,
        stanza: Option<i32>,
        keep: Duration,
        refusal: Refusal,
        limits: &Caps,
    ) {
        let stanza = stanza.map_or(0, i32::unsigned_abs);
        self.highest = self.highest.max(stanza);
        if !self.entries.contains_key(&request.id) && self.make_room(limits).is_err() {
            self.floor = self.floor.max(stanza);
            return;
        }
        // A tombstone may be in its place, which is indexed by the stanza of the stop.
        self.remove(&request.id);
        let entry = self.entry(Some(request), stanza, keep, RequestState::Refused(refusal));
        self.entries.insert(request.id.clone(), entry);
        self.may_drop(now, &request.id);
    }

    /// Remembers that a call was stopped before its request arrived.
    ///
    /// Without space for an entry, the floor is raised instead: the request has a lower stanza than its stop.
    pub(super) fn add_tombstone(
        &mut self,
        now: Instant,
        id: &CallId,
        stanza: Option<i32>,
        keep: Duration,
        limits: &Caps,
    ) {
        let stanza = stanza.map_or(0, i32::unsigned_abs);
        self.highest = self.highest.max(stanza);
        while self.tombstones.len() >= limits.calls.open_per_peer
            && let Some((_, oldest)) = self.tombstones.first().cloned()
        {
            self.forget(&oldest);
        }
        if limits.calls.open_per_peer == 0 || self.make_room(limits).is_err() {
            return self.raise_floor(stanza);
        }
        let entry = self.entry(None, stanza, keep, RequestState::Tombstone);
        self.entries.insert(id.clone(), entry);
        self.tombstones.insert((stanza, id.clone()));
        self.may_drop(now, id);
    }

    /// Sets the answer of a running request.
    pub(super) fn answer(&mut self, id: &CallId, mut answer: UnacknowledgedResult) {
        self.answers += 1;
        answer.order = self.answers;
        if let Some(entry) = self.entries.get_mut(id) {
            self.bytes += answer.size;
            self.answered.insert(id.clone());
            entry.state = RequestState::Answered(answer);
        }
    }

    /// Returns the answer if it is not acknowledged.
    pub(super) fn answer_of(&mut self, id: &CallId) -> Option<&mut UnacknowledgedResult> {
        match &mut self.entries.get_mut(id)?.state {
            RequestState::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the calls whose answers have never been sent, in the order of the answers.
    pub(super) fn answers_not_sent(&self) -> Vec<CallId> {
        let answers = self.answered.iter().filter_map(|id| match &self.entries.get(id)?.state {
            // Ids are random. In the order of the answers, a caller learns of its calls in the order in which
            // they ended.
            RequestState::Answered(answer) if answer.sent.is_none() => Some((answer.order, id)),
            _ => None,
        });
        let answers = answers.collect::<BinaryHeap<_>>().into_sorted_vec();
        answers.into_iter().map(|(_, id)| id.clone()).collect()
    }

    /// Notes that an answer that nothing acknowledges was sent under this stanza. It is kept for a repeated request, and in
    /// case that its packet was not sent.
    pub(super) fn sent_once(&mut self, now: Instant, id: &CallId, stanza: i32) {
        if let Some(answer) = self.answer_of(id) {
            answer.sent = Some(stanza);
        }
        self.answered.remove(id);
        self.may_drop(now, id);
        if let Some(until) = self.find(id).and_then(|entry| entry.until) {
            self.kept.insert((until, id.clone()));
        }
    }

    /// Notes that an answer was not sent, or must be sent again. It must be kept until it is. Returns its stanza.
    pub(super) fn unsent(&mut self, id: &CallId) -> Option<i32> {
        let sent = self.answer_of(id)?.sent.take();
        if self.must_keep(id) {
            self.answered.insert(id.clone());
        }
        sent
    }

    /// Drops the oldest answers that nothing acknowledges until no more bytes than these are kept.
    pub(super) fn drop_kept(&mut self, most: usize) {
        while self.bytes > most
            && let Some((_, id)) = self.kept.pop_first()
        {
            self.release(&id);
        }
    }

    /// Notes that the caller has received the answer, or never will. Its bytes are released.
    pub(super) fn acknowledged(&mut self, now: Instant, id: &CallId) {
        if self.answer_of(id).is_some() {
            self.release(id);
            self.may_drop(now, id);
        }
    }

    /// Releases the bytes of an answer.
    fn release(&mut self, id: &CallId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if let RequestState::Answered(answer) = &entry.state {
            self.bytes = self.bytes.saturating_sub(answer.size);
            self.released.extend(answer.sent.filter(|_| !entry.form.is_frame()));
            self.answered.remove(id);
            entry.state = RequestState::Done;
        }
    }

    fn entry(
        &self,
        request: Option<&ToolUseRequest>,
        stanza: u32,
        keep: Duration,
        state: RequestState,
    ) -> CachedRequest {
        CachedRequest {
            fingerprint: request.map(fingerprint),
            form: Form::Frame,
            stanza,
            instance: self.instance,
            order: 0,
            keep,
            until: None,
            state,
        }
    }

    /// Releases all answers because the caller is gone for good.
    pub(super) fn acknowledge_all(&mut self, now: Instant) {
        let all = self.answered.clone();
        for id in all {
            self.acknowledged(now, &id);
        }
    }

    /// Sets how long the answers are kept after the caller's grace period, in case it still comes back.
    pub(super) fn abandon(&mut self, until: Instant) {
        self.until = Some(until).filter(|_| self.has_unacknowledged());
    }

    /// Notes that the caller is back.
    pub(super) fn resume(&mut self) {
        self.until = None;
    }

    /// Returns the time at which the first entry must be dropped.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let droppable = self.droppable.first().map(|(at, _)| *at);
        droppable.into_iter().chain(self.until).min()
    }

    /// Drops expired entries. Returns whether the time for keeping an absent caller's answers is over, which releases them.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let has_waited = self.until.take_if(|until| *until <= now).is_some();
        if has_waited {
            self.acknowledge_all(now);
        }
        while let Some((_, id)) = self.droppable.first().filter(|(at, _)| *at <= now).cloned() {
            self.forget(&id);
        }
        has_waited
    }

    /// Marks a settled entry as one that may be dropped.
    fn may_drop(&mut self, now: Instant, id: &CallId) {
        self.must_keep(id);
        let Some(entry) = self.entries.get_mut(id) else { return };
        let until = later(now, entry.keep);
        if !entry.form.is_frame() {
            self.answers += 1;
            entry.order = self.answers;
        }
        entry.until = Some(until);
        self.droppable.insert((until, id.clone()));
        self.oldest.insert((entry.instance, entry.stanza, entry.order, id.clone()));
    }

    /// Marks an entry as one that must be kept. Returns whether it was one that may be dropped.
    fn must_keep(&mut self, id: &CallId) -> bool {
        let Some(entry) = self.entries.get_mut(id) else { return false };
        let Some(until) = entry.until.take() else { return false };
        self.droppable.remove(&(until, id.clone()));
        self.oldest.remove(&(entry.instance, entry.stanza, entry.order, id.clone()));
        self.kept.remove(&(until, id.clone()));
        true
    }

    /// Drops an entry and raises the floor to its stanza.
    fn forget(&mut self, id: &CallId) {
        let instance = self.instance;
        // The floor is the present instance's. Another one counts its stanzas by itself, so its entries must
        // not raise it.
        if let Some(entry) = self.remove(id).filter(|entry| entry.instance == instance) {
            self.floor = self.floor.max(entry.stanza);
        }
    }

    fn remove(&mut self, id: &CallId) -> Option<CachedRequest> {
        self.release(id);
        self.must_keep(id);
        let entry = self.entries.remove(id)?;
        self.tombstones.remove(&(entry.stanza, id.clone()));
        Some(entry)
    }
}

/// Returns a hash of a request's tool, execution and parameters. Equal requests have equal hashes.
pub(super) fn fingerprint(request: &ToolUseRequest) -> [u8; 32] {
    let execution = match &request.execution {
        Ok(execution) => execution.as_str(),
        Err(text) => text,
    };
    let mut hash = Sha256::new();
    for part in [request.tool_name.as_bytes(), execution.as_bytes(), Value::as_bytes(&request.parameters)] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::RequestCaps;
    use crate::protocol::session::tests::an_instant;
    use crate::tool::Execution;

    const KEEP: Duration = Duration::from_secs(60);

    fn request(id: &str) -> ToolUseRequest {
        ToolUseRequest {
            id: CallId::known(id),
            tool_name: "t".into(),
            parameters: Value::empty(),
            execution: Ok(Execution::Client),
            timeout_ms: None,
            conversation_id: None,
            message_id: None,
        }
    }

    fn running(job: u64) -> RequestState {
        RequestState::Running(JobKey(job))
    }

    fn answer(size: usize) -> UnacknowledgedResult {
        UnacknowledgedResult::new(Message::Heartbeat, size, false)
    }

    fn limits(change: fn(&mut RequestCaps)) -> Caps {
        let mut caps = Caps::default();
        change(&mut caps.requests);
        caps
    }

    #[test]
    fn dropped_request_raises_the_floor() {
        let (mut table, now) = (RequestCache::default(), an_instant());
        let limits = limits(|caps| caps.table_entries = 2);
        for (n, id) in ["a", "b"].into_iter().enumerate() {
            table.begin(&request(id), Form::Frame, Some(-(n as i32) - 5), KEEP, running(n as u64));
            table.answer(&CallId::known(id), answer(1));
        }
        assert_eq!(table.make_room(&limits), Err(Full), "an answer that is not acknowledged stays");
        table.acknowledged(now, &CallId::known("a"));
        assert!(!table.is_below_floor(Some(-5)));
        assert_eq!(table.make_room(&limits), Ok(()));
        assert!(table.find(&CallId::known("a")).is_none());
        assert!(table.is_below_floor(Some(-5)) && !table.is_below_floor(Some(-6)));
        table.acknowledged(now, &CallId::known("b"));
        table.expire(now + KEEP);
        assert!(table.is_empty() && table.next_expiry().is_none());
    }

    #[test]
    fn a_full_table_drops_the_oldest_request_whenever_it_would_have_expired() {
        let (mut table, now) = (RequestCache::default(), an_instant());
        let limits = limits(|caps| caps.table_entries = 2);
        for (stanza, id, keep) in [(-1, "a", 10 * KEEP), (-3, "b", KEEP)] {
            table.begin(&request(id), Form::Frame, Some(stanza), keep, running(0));
            table.answer(&CallId::known(id), answer(1));
            table.acknowledged(now, &CallId::known(id));
        }
        assert_eq!(table.make_room(&limits), Ok(()));
        assert!(
            table.find(&CallId::known("b")).is_some() && !table.is_below_floor(Some(-2)),
            "the second may still come"
        );
    }

    #[test]
    fn a_full_table_drops_the_requests_of_an_earlier_instance_first() {
        let (mut table, now) = (RequestCache::default(), an_instant());
        let limits = limits(|caps| caps.table_entries = 2);
        for (stanza, id) in [(-9, "a"), (-2, "b")] {
            table.begin(&request(id), Form::Frame, Some(stanza), KEEP, running(0));
            table.answer(&CallId::known(id), answer(1));
            table.acknowledged(now, &CallId::known(id));
            if id == "a" {
                table.next_instance(now);
            }
        }
        assert_eq!(table.make_room(&limits), Ok(()));
        assert!(table.find(&CallId::known("b")).is_some() && !table.is_below_floor(Some(-1)));
    }

    #[test]
    fn bytes_of_answers_are_capped() {
        let (mut table, now) = (RequestCache::default(), an_instant());
        let limits = limits(|caps| caps.table_bytes = 100);
        table.begin(&request("a"), Form::Frame, Some(-1), KEEP, running(0));
        table.answer(&CallId::known("a"), answer(100));
        assert_eq!(table.make_room(&limits), Err(Full));
        table.acknowledged(now, &CallId::known("a"));
        assert_eq!(table.make_room(&limits), Ok(()));
    }

    #[test]
    fn a_refusal_is_remembered_by_entry_or_floor() {
        let (mut table, now) = (RequestCache::default(), an_instant());
        let limits = limits(|caps| caps.table_entries = 1);
        table.begin(&request("a"), Form::Frame, Some(-1), KEEP, running(0));
        table.refuse(now, &request("b"), Some(-2), KEEP, Refusal::new(ErrorCode::BUSY, ""), &limits);
        assert!(table.find(&CallId::known("b")).is_none() && table.is_below_floor(Some(-2)));
    }

    #[test]
    fn tombstones_are_bounded() {
        let (mut table, now) = (RequestCache::default(), an_instant());
        let limits = Caps::default();
        for n in 0..200 {
            table.add_tombstone(now, &CallId::known(format!("c{n}")), Some(-n), KEEP, &limits);
        }
        assert_eq!(table.tombstones.len(), limits.calls.open_per_peer);
        table.expire(now + KEEP);
        assert!(table.is_empty());
    }

    #[test]
    fn other_content_has_another_fingerprint() {
        let mut other = request("a");
        other.tool_name = "u".into();
        assert_ne!(fingerprint(&request("a")), fingerprint(&other));
        assert_eq!(fingerprint(&request("a")), fingerprint(&request("b")));
    }
}
