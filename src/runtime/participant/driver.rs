//! Runs the task of a participant: handles the session's outputs, and feeds it the events.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;
use tracing::Span;

use super::{
    Closing, Shared,
    call::OpenCall,
    consent::{AskPerson, ConsentRequest},
    descriptions, now,
    round_robin::RoundRobin,
    rules::Rules,
    spans,
};
use crate::{
    clock::later,
    protocol::session::{CallRecord, Event, Output, Question, Selection, SendFailure, Session},
    runtime::executor::{self, Done, Executor, Questions, Reports},
    tool::{CallError, Job, JobKey, Outcome, Progress, Tool},
    transport::{
        CloseReason, ConnectionState, SendError, Sid, Transport, TransportEvent,
        alarm::Alarm,
        send_queue::{Failure, Pump, SendQueue, Sent},
    },
    value::Value,
};

/// The most tool reports that are handled before the transport is polled again.
const REPORTS_AT_ONCE: usize = 64;

/// If the send queue is so long that nothing is read, and no packet was sent for this long, one event is read
/// nevertheless: unread events may be what blocks the packets. Two participants that both wait would wait forever.
const STALLED: Duration = Duration::from_millis(10);

/// The time limit of sending the last packets when leaving.
const FLUSH: Duration = Duration::from_secs(1);

/// The time limit of the transport's close; then it is dropped.
const LEAVE: Duration = Duration::from_secs(5);

/// The time limit of finishing the recording after the transport's close. 4 GiB are compressed in less, on a slow machine.
const INDEX: Duration = Duration::from_secs(120);

/// How long tools may clean up when the participant leaves, whatever their own grace period. The default grace period
/// is 1 s.
const CLEANUP_LIMIT: Duration = Duration::from_secs(10);

/// The driver's state.
pub(super) struct Driver<T: Transport> {
    shared: Arc<Shared>,
    transport: T,
    executor: Executor,
    reports: Reports,
    rules: Rules,
    consent: Option<AskPerson>,
    /// Receives this participant's tools before they are offered.
    offering: Option<Offering>,
    note_end: Option<NoteEnd>,
    /// Ends when the file of the recording is finished.
    recorded: Option<Recorded>,
    questions: Questions,
    queue: SendQueue,
    /// `None` if the transport takes packets from the queue by itself.
    pump: Option<Pump>,
    /// When a reliable packet was last sent or an event read.
    moved: Instant,
    alarm: Alarm,
    sources: RoundRobin,
    drain: Duration,
    drain_until: Option<Instant>,
    sid: Sid,
    _close_on_drop: CloseOnDrop,
}

/// Receives each call whose end no packet shows: no participant was asked, or its owner's answer did not end it.
pub(super) type NoteEnd = Box<dyn Fn(&CallRecord, &CallError) + Send>;

/// Waits until the recording has ended.
pub(super) type Recorded = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Receives the tools that will be offered.
pub(super) type Offering = Box<dyn Fn(&[Tool]) + Send>;

/// Whether a call ended otherwise than by its owner's answer, as far as its result shows.
fn ends_without_answer(record: &CallRecord, result: &Result<Value, CallError>) -> bool {
    match result {
        Ok(_) => false,
        Err(CallError::Tool(_)) => record.owner.is_none(),
        Err(_) => true,
    }
}

/// Ends everything that is open if the driver is dropped: its runtime was shut down, or it panicked.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.finish(&CloseReason::ConnectionLost("the task that drove it is gone".into()));
    }
}

/// An output that is handled without the session's lock.
enum Work {
    Execute(Job, Span),
    Ask(Question),
    Select(Selection),
    /// Settle a call that ended before a participant was asked.
    Settle {
        call: OpenCall,
        record: CallRecord,
        result: Result<Value, CallError>,
    },
}

impl Work {
    /// Returns the job that has not started yet.
    fn job(&self) -> Option<JobKey> {
        match self {
            Self::Execute(job, _) => Some(job.key),
            Self::Ask(question) => Some(question.key),
            Self::Select(_) | Self::Settle { .. } => None,
        }
    }
}

/// The source of a wake-up.
enum Woken {
    Transport(Option<TransportEvent>),
    Done(Done),
    Consent(JobKey, bool),
    Sent(Sent),
    Sources,
    Time,
    Command,
}

impl<T: Transport> Driver<T> {
    pub(super) fn new(
        shared: Arc<Shared>,
        transport: T,
        queue: Option<SendQueue>,
        (executor, reports): (Executor, Reports),
        drain: Duration,
    ) -> Self {
        let sid = shared.lock().session.local().sid().clone();
        Self {
            _close_on_drop: CloseOnDrop(Arc::clone(&shared)),
            shared,
            transport,
            executor,
            reports,
            rules: Rules::default(),
            consent: None,
            offering: None,
            note_end: None,
            recorded: None,
            questions: Questions::new(),
            pump: queue.is_none().then(Pump::default),
            queue: queue.unwrap_or_default(),
            moved: Instant::now(),
            alarm: Alarm::default(),
            sources: RoundRobin::default(),
            drain,
            drain_until: None,
            sid,
        }
    }

    /// Sets the author's rules about participants.
    pub(super) fn with_rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the handler that asks a person before a tool runs.
    pub(super) fn with_consent(mut self, consent: Option<AskPerson>) -> Self {
        self.consent = consent;
        self
    }

    /// Sets the function that receives changed tools before they are offered.
    pub(super) fn on_changed_tools(mut self, offering: Option<Offering>) -> Self {
        self.offering = offering;
        self
    }

    /// Sets the function that receives calls that ended before a participant was asked, which no packet shows.
    pub(super) fn on_unasked_call(mut self, note_end: Option<NoteEnd>) -> Self {
        self.note_end = note_end;
        self
    }

    /// Sets what waits for the end of the recording.
    pub(super) fn with_recording_end(mut self, recorded: Option<Recorded>) -> Self {
        self.recorded = recorded;
        self
    }

    /// Runs until the participant has left.
    pub(super) async fn run(mut self) {
        let reason = loop {
            // A transport that is always ready must not monopolize the thread.
            tokio::task::consume_budget().await;
            self.take_reports();
            self.carry_out();
            if self.is_over() {
                break CloseReason::Closed;
            }
            let woken = self.woken().await;
            if matches!(woken, Woken::Transport(_) | Woken::Sent(Sent { is_reliable: true, .. })) {
                self.moved = Instant::now();
            }
            match woken {
                Woken::Transport(Some(TransportEvent::Closed(reason))) => break reason,
                Woken::Transport(None) => break CloseReason::ConnectionLost("the transport ended".into()),
                Woken::Transport(Some(event)) => self.handle_transport_event(event),
                Woken::Done(done) => self.done(done),
                Woken::Consent(key, allowed) => self.shared.lock().session.consent(now(), key, allowed),
                Woken::Sent(sent) => self.sent(sent),
                Woken::Sources => self.offer_again(),
                Woken::Time | Woken::Command => {}
            }
        };
        self.end(reason).await;
    }

    /// Handles tool reports. A flood of packets or of reports does not delay the other.
    fn take_reports(&mut self) {
        for _ in 0..REPORTS_AT_ONCE {
            let Some(done) = self.reports.try_recv() else { return };
            self.done(done);
        }
    }

    /// Handles all outputs of the session.
    fn carry_out(&mut self) {
        self.take_outputs();
        self.start_sending();
    }

    /// Handles the session's outputs, due timers first: a flood of packets does not delay timers. Packets wait.
    fn take_outputs(&mut self) {
        for work in self.take_work() {
            match work {
                Work::Execute(job, span) => self.execute(job, span),
                Work::Ask(question) => self.ask(question),
                Work::Select(selection) => self.select(&selection),
                Work::Settle { call, record, result } => {
                    if let (Some(note_end), Err(error)) = (&self.note_end, &result) {
                        note_end(&record, error);
                    }
                    call.settle(result);
                }
            }
        }
    }

    /// Handles the outputs that need the session's lock. Returns the others, in their order: they may call the author's
    /// functions, which may use the participant's handles.
    fn take_work(&mut self) -> Vec<Work> {
        let mut work = Vec::new();
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
        let now = now();
        if inner.session.poll_timeout().is_some_and(|due| due <= now) {
            inner.session.handle_timeout(now);
        }
        while let Some(output) = self.next_output(&mut inner.session, now) {
            match output {
                Output::Transmit(packet) => {
                    let id = packet.id;
                    if self.queue.push(packet, &self.sid).is_err() {
                        inner.session.handle_send_failed(now, id, SendFailure::QueueFull);
                    }
                }
                Output::Execute(job) => {
                    let own = Some(&job).filter(|job| job.caller == shared.identity);
                    let own = own.and_then(|job| inner.session.call_key(&job.call));
                    let own = own.and_then(|key| inner.calls.get(&key));
                    let span = spans::tool_span(&job, inner.session.room(), own.map(|slot| &slot.span));
                    work.push(Work::Execute(job, span));
                }
                Output::Ask(question) => work.push(Work::Ask(question)),
                Output::Select(selection) => work.push(Work::Select(selection)),
                Output::Abort { key, reason } => {
                    let known = work.len();
                    work.retain(|it| it.job() != Some(key));
                    if work.len() == known && !self.questions.withdraw(key) {
                        self.executor.abort(key, reason);
                    }
                }
                Output::Settled { key, result } => {
                    if let Some(slot) = inner.calls.remove(&key) {
                        let record = slot.id.as_ref().and_then(|id| inner.session.record(id));
                        spans::ended(&slot.span, record);
                        match record.filter(|record| ends_without_answer(record, &result)) {
                            Some(record) if self.note_end.is_some() => {
                                work.push(Work::Settle { call: slot, record: record.clone(), result });
                            }
                            _ => slot.settle(result),
                        }
                    }
                }
                Output::Event(event) => {
                    if let Event::Progress { key: Some(key), progress, .. } = &event
                        && let Some(slot) = inner.calls.get(key)
                    {
                        slot.steps.push(progress.clone());
                    }
                    if let Event::ToolsChanged { .. } = &event {
                        shared.offers.send_modify(|changes| *changes += 1);
                    }
                    if let Some(events) = &inner.events {
                        let _ = events.send(event); // there may be no receiver
                    }
                }
            }
        }
        let registrations = inner.session.registrations();
        shared.registrations.send_if_modified(|seen| std::mem::replace(seen, registrations) != registrations);
        while let Some(id) = self.queue.large()
            && !inner.session.is_wanted(id)
        {
            self.queue.cancel(id);
        }
        work
    }

    /// Asks a person, unless the call would be refused anyway.
    fn ask(&mut self, question: Question) {
        let key = question.key;
        let refusal = self.executor.check(question.tool.name(), &question.arguments).err();
        match (refusal, self.consent.clone()) {
            (Some(refusal), _) => self.settle(key, Err(refusal)),
            (None, Some(consent)) => self.questions.ask(key, consent.ask(ConsentRequest::new(question))),
            (None, None) => self.shared.lock().session.consent(now(), key, false),
        }
        self.shared.wake.notify_one(); // its outputs are still to be handled
    }

    /// Runs the author's selection function.
    fn select(&self, selection: &Selection) {
        let named = selection.evaluate();
        self.shared.lock().session.select(now(), selection.key, named);
        self.shared.wake.notify_one(); // its outputs are still to be handled
    }

    fn settle(&self, key: JobKey, outcome: Outcome) {
        self.shared.lock().session.settle(now(), key, outcome);
    }

    fn execute(&mut self, job: Job, span: Span) {
        self.shared.propagation.adopt(&span, job.trace().as_ref());
        self.executor.execute(job, span);
    }

    /// Returns the next output. If there is none, the session learns the length of the reliable queue, and may then
    /// have one.
    fn next_output(&self, session: &mut Session, now: std::time::Instant) -> Option<Output> {
        session.poll_output().or_else(|| {
            session.handle_backlog(now, self.queue.backlog());
            session.poll_output()
        })
    }

    /// Waits for the next wake-up. Each source has its turn, however many the others have.
    async fn woken(&mut self) -> Woken {
        let deadline = self.deadline();
        let stalled = self.queue.is_long().then(|| self.moved + STALLED);
        let Self { transport, queue, pump, reports, questions, shared, alarm, executor, .. } = self;
        let is_draining = self.drain_until.is_some();
        let event = async {
            if let Some(stalled) = stalled {
                tokio::time::sleep_until(stalled).await;
            }
            Woken::Transport(transport.recv().await)
        };
        let done = async {
            match reports.recv().await {
                Some(done) => Woken::Done(done),
                None => pending().await,
            }
        };
        self.sources
            .next([
                pin!(async { Woken::Sent(sent(queue, pump.as_mut(), is_draining).await) }),
                pin!(event),
                pin!(done),
                pin!(async {
                    let (key, allowed) = questions.answer().await;
                    Woken::Consent(key, allowed)
                }),
                pin!(async {
                    shared.wake.notified().await;
                    Woken::Command
                }),
                pin!(async {
                    alarm.wait_until(deadline).await;
                    Woken::Time
                }),
                pin!(async {
                    executor.changed().await;
                    Woken::Sources
                }),
            ])
            .await
    }

    fn deadline(&self) -> Option<Instant> {
        let session = self.shared.lock().session.poll_timeout().map(Instant::from_std);
        [session, self.drain_until].into_iter().flatten().min()
    }

    fn handle_transport_event(&mut self, event: TransportEvent) {
        if event == TransportEvent::ConnectionState(ConnectionState::Connected)
            && *self.transport.local().sid() != self.sid
        {
            return self.rejoined();
        }
        let event = match event {
            TransportEvent::Joined(who) if *who.identity() != self.shared.identity => {
                TransportEvent::Joined(self.rules.evaluate(who))
            }
            other => other,
        };
        self.shared.lock().session.handle_event(now(), event);
    }

    /// Handles a new local sid. Queued packets were meant for peers of the previous join: none may be sent in the new
    /// one.
    fn rejoined(&mut self) {
        self.take_outputs();
        let local = self.transport.local();
        self.sid = local.sid().clone();
        let present = self.transport.present().into_iter().map(|who| self.rules.evaluate(who)).collect();
        let mut inner = self.shared.lock();
        for packet in self.queue.cancel_queued() {
            inner.session.handle_send_failed(now(), packet, SendFailure::Interrupted);
        }
        inner.session.handle_rejoined(now(), local, present);
    }

    fn done(&mut self, done: Done) {
        let inner = || self.shared.lock();
        match done {
            Done::Started(key) => inner().session.progress(now(), key, Progress::started()),
            Done::Progress(key, progress) => inner().session.progress(now(), key, progress),
            Done::Warning(warning) => self.shared.warn(warning),
            Done::Settled(key, outcome) => inner().session.settle(now(), key, outcome),
        }
    }

    fn sent(&mut self, sent: Sent) {
        for Failure { id, error } in sent.failed {
            tracing::debug!(%error, "a packet was not handed over");
            self.shared.lock().session.handle_send_failed(now(), id, error.into());
        }
    }

    fn start_sending(&mut self) {
        if let Some(pump) = &mut self.pump {
            pump.start(&self.queue, &self.transport);
        }
    }

    fn offer_again(&mut self) {
        self.executor.refresh();
        let mut tools = self.executor.tools();
        if let Some(offering) = &self.offering {
            offering(&tools);
        }
        let (cut, refused) = {
            let session = &mut self.shared.lock().session;
            let executor = &self.executor;
            let cut = descriptions::cut(&mut tools, session.tool_caps(), |tool| executor.is_optional(tool));
            (cut, session.offer_and_explain(now(), tools, executor.left_out()))
        };
        self.shared.set_left_out([self.executor.left_out(), &refused].concat());
        self.shared.set_renamed(self.executor.renamed());
        self.shared.set_cut(cut);
        self.shared.set_unchecked(self.executor.unchecked());
        self.shared.set_notes(self.executor.notes());
        self.shared.set_sources(self.executor.statuses());
    }

    /// Returns whether the participant has left deliberately. Starts and monitors the drain.
    fn is_over(&mut self) -> bool {
        if self.shared.abandoned.load(Ordering::Relaxed) {
            return true;
        }
        let mut inner = self.shared.lock();
        match inner.closing {
            Closing::No => false,
            Closing::Now => true,
            Closing::Drain => {
                inner.session.drain(now());
                let until =
                    *self.drain_until.get_or_insert_with(|| Instant::from_std(later(now(), self.drain)));
                (inner.session.is_drained() && self.queue.is_empty()) || Instant::now() >= until
            }
        }
    }

    async fn end(mut self, reason: CloseReason) {
        {
            let mut inner = self.shared.lock();
            match reason {
                CloseReason::Closed => {
                    // Before the goodbye, which ends the calls that are left as perhaps run.
                    for key in self.executor.refuse_unstarted() {
                        inner.session.settle(now(), key, Err(executor::leaving()));
                    }
                    inner.session.close(now());
                }
                _ => inner.session.handle_event(now(), TransportEvent::Closed(reason.clone())),
            }
        }
        // A remaining large packet would delay the goodbye, which ends its call anyway.
        self.queue.cancel_large();
        self.carry_out();
        if reason == CloseReason::Closed {
            // Packets that are not sent by then are dropped: the goodbye is optional.
            let _ = tokio::time::timeout(FLUSH, self.flush()).await;
        }
        // Also after another end: a transport may have more to finish than its connection, such as a file.
        if tokio::time::timeout(LEAVE, self.transport.close()).await.is_err() {
            tracing::warn!(limit = ?LEAVE, "the transport did not leave in time");
        }
        self.carry_out();
        if tokio::time::timeout(CLEANUP_LIMIT, self.executor.rest()).await.is_err() {
            tracing::warn!(limit = ?CLEANUP_LIMIT, "tools did not end in time");
        }
        self.executor.close_sources().await;
        let Self { shared, transport, recorded, _close_on_drop, .. } = self;
        drop(transport); // nothing is recorded after this
        if let Some(ended) = recorded
            && tokio::time::timeout(INDEX, ended).await.is_err()
        {
            tracing::warn!(limit = ?INDEX, "the recording was not finished in time");
        }
        tracing::debug!(participant = %shared.identity, %reason, "left the room");
        shared.finish(&reason);
    }

    /// Sends the queued packets.
    async fn flush(&mut self) {
        loop {
            self.start_sending();
            if self.queue.is_empty() {
                return;
            }
            let sent = sent(&self.queue, self.pump.as_mut(), true).await;
            self.sent(sent);
        }
    }
}

/// Waits until packets were sent or failed ([`SendQueue::poll_sent`]).
///
/// # Cancel safety
/// Dropping the future loses no failure.
async fn sent(queue: &SendQueue, mut pump: Option<&mut Pump>, all: bool) -> Sent {
    poll_fn(|cx| {
        let has_ended = pump.as_mut().is_some_and(|pump| pump.poll(cx, queue));
        match queue.poll_sent(cx, all) {
            Poll::Pending if has_ended && !queue.is_empty() => Poll::Ready(Sent::default()),
            sent => sent,
        }
    })
    .await
}

impl From<SendError> for SendFailure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::TooLarge { size, limit } => Self::TooLarge { size, limit },
            SendError::NotAllowed => Self::NotAllowed,
            SendError::Closed(_) => Self::Closed,
            SendError::Interrupted => Self::Interrupted,
            SendError::NoDestination | SendError::Other(_) => Self::Other(error.to_string()),
        }
    }
}
