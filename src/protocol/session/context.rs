//! Holds the context of every part of a session: time, configuration, counters, timers, ids and outputs.

use std::{collections::VecDeque, time::Duration};

use super::{
    Config, Counter, Event, JobKey, Output, Stats,
    call_log::CallLog,
    ids::Ids,
    timers::{Timer, Timers},
};
use crate::{
    clock::{Instant, later},
    sorted::SortedMap,
    tool::{CallId, Tool, ToolName},
    transport::{ConnectionState, Identity, Participant, Role, Unreadable},
};

/// The interval between two reports of the same misbehavior of the same participant: 10 s. The later report contains
/// the count.
pub const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// How often packets that cannot be read are reported for one participant at most. Each report says which key to pass, and a
/// wrong one stays wrong.
const UNREADABLE_INTERVAL: Duration = Duration::from_secs(60);

/// The limit on participants and kinds of misbehavior that are reported separately. Further ones are only counted.
const MAX_COMPLAINTS: usize = 256;

/// The context of every part of a session.
#[derive(Debug)]
pub(super) struct Context {
    /// The time of the current input or command.
    pub(super) now: Instant,
    pub(super) config: Config,
    pub(super) local: Local,
    pub(super) ids: Ids,
    pub(super) stats: Stats,
    pub(super) timers: Timers,
    pub(super) log: CallLog,
    complaints: SortedMap<(Option<Identity>, Counter), Complaint>,
    outputs: VecDeque<Output>,
    /// The last key of a call or job.
    last_key: u64,
}

/// Misbehavior of one kind of one participant.
#[derive(Debug)]
struct Complaint {
    reported_at: Instant,
    /// How often it happened since then.
    times: u64,
}

/// The interval between two reports of this kind of misbehavior of the same participant.
fn interval(what: Counter) -> Duration {
    if what.unreadable().is_some() { UNREADABLE_INTERVAL } else { COMPLAINT_INTERVAL }
}

/// The local participant.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) role: Role,
    pub(super) participant: Participant,
    /// Whether the local participant is connected to the server.
    pub(super) connection: ConnectionState,
    /// The tools that it offers.
    pub(super) tools: Vec<Tool>,
    /// The tools that it has and does not offer, with the reasons.
    pub(super) left_out: Vec<(ToolName, String)>,
    /// The last used stanza, as an absolute value, when the server refused a packet because the token does not allow
    /// publishing data. `None` if a later frame has arrived.
    pub(super) muted_at: Option<u32>,
    /// Until this time other participants may not know the local one, and then cannot attribute its packets.
    pub(super) unannounced_until: Option<Instant>,
}

impl Local {
    pub(super) fn identity(&self) -> &Identity {
        self.participant.identity()
    }

    /// Returns whether the local participant may not send: its token does not allow it, or the server has refused a
    /// packet for that reason.
    pub(super) fn cannot_publish(&self) -> bool {
        self.muted_at.is_some() || !self.participant.may_publish_data()
    }

    /// Returns the offered tool of this name.
    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name().as_str() == name)
    }

    /// Returns whether it offers a tool of this name that no client may offer.
    pub(super) fn reserves(&self, name: &ToolName) -> bool {
        self.tool(name.as_str()).is_some_and(|tool| !tool.tool_options().prefer_client)
    }
}

impl Context {
    pub(super) fn new(
        now: Instant,
        role: Role,
        participant: Participant,
        config: Config,
        seed: [u8; 32],
    ) -> Self {
        let local = Local {
            role,
            participant,
            connection: ConnectionState::Connected,
            tools: Vec::new(),
            left_out: Vec::new(),
            muted_at: None,
            unannounced_until: None,
        };
        Self {
            now,
            config,
            local,
            ids: Ids::new(seed),
            stats: Stats::default(),
            timers: Timers::default(),
            log: CallLog::default(),
            complaints: SortedMap::new(),
            outputs: VecDeque::new(),
            last_key: 0,
        }
    }

    /// Notes that the local participant has joined, and that the room has not announced it to the others yet.
    pub(super) fn await_announcement(&mut self) {
        let wait = self.config.times.announcement;
        self.local.unannounced_until = Some(later(self.now, wait));
        if !self.config.described.is_empty() {
            self.set_timer(Timer::Announced, wait);
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.local.role == Role::Client
    }

    /// Notes that the frame of this stanza has arrived at a peer. One after the refused packet shows that packets pass again.
    pub(super) fn note_arrival(&mut self, stanza: i32) {
        if self.local.muted_at.is_some_and(|last| stanza.unsigned_abs() > last) {
            self.permit();
        }
    }

    /// Notes that the local participant may publish data again. What was refused is sent again.
    pub(super) fn permit(&mut self) {
        if self.local.muted_at.take().is_some() {
            self.set_timer(Timer::Permitted, Duration::ZERO);
        }
    }

    /// Sets a timer, unless it has a deadline that it keeps.
    pub(super) fn set_timer(&mut self, timer: Timer, after: Duration) {
        self.timers.set(self.now, timer, after);
    }

    pub(super) fn count(&mut self, counter: Counter) {
        self.stats.add(counter, 1);
    }

    pub(super) fn output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(super) fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Emits an event and updates the call log.
    pub(super) fn event(&mut self, event: Event) {
        self.log.note(self.now, &event, self.local.participant.identity(), self.config.caps.calls.call_log);
        self.outputs.push_back(Output::Event(event));
    }

    /// Notes that a result arrived after a call of the local participant was settled.
    pub(super) fn note_late(&mut self, call: &CallId) {
        self.log.late(self.local.participant.identity(), call, self.now);
    }

    pub(super) fn next_job_key(&mut self) -> JobKey {
        JobKey(self.next_key())
    }

    /// Returns whether this name differs from the session's room.
    pub(super) fn is_other_room(&self, name: Option<&str>) -> bool {
        let room = self.config.room.as_str();
        !room.is_empty() && name.is_some_and(|name| !name.is_empty() && name != room)
    }

    /// Adopts the room's name from a peer if the configuration names none.
    pub(super) fn learn_room(&mut self, name: Option<&str>) {
        if let Some(name) = name.filter(|name| self.config.room.is_empty() && !name.is_empty()) {
            self.config.room = name.to_owned();
        }
    }

    /// Counts misbehavior, and reports it unless the same was reported within its [`interval`].
    pub(super) fn complain<'a>(&mut self, by: impl Into<Option<&'a Identity>>, what: Counter) {
        self.complain_of(by, what, "");
    }

    /// Complains, and says what was wrong.
    pub(super) fn complain_of<'a>(&mut self, by: impl Into<Option<&'a Identity>>, what: Counter, why: &str) {
        let by = by.into();
        self.stats.add(what, 1);
        let (known, now) = (self.complaints.len(), self.now);
        match self.complaints.get_mut(&(by.cloned(), what)) {
            Some(complaint) => complaint.times += 1,
            // A flood under ever new identities costs a counter, and neither memory nor events.
            None if known >= MAX_COMPLAINTS => {}
            None => {
                self.complaints.insert((by.cloned(), what), Complaint { reported_at: now, times: 0 });
                self.set_timer(Timer::Complaints, COMPLAINT_INTERVAL);
                let why = Some(why).filter(|why| !why.is_empty()).map(Into::into);
                self.event(Event::Violation { by: by.cloned(), what, times: 1, why });
            }
        }
    }

    /// Returns why packets of a participant could not be read of late.
    pub(super) fn unreadable(&self, id: &Identity) -> Option<Unreadable> {
        let was = |what| self.complaints.contains_key(&(Some(id.clone()), what));
        Counter::UNREADABLE.into_iter().find(|(what, _)| was(*what)).map(|(_, why)| why)
    }

    /// Reports the misbehavior counted since the last report, and forgets participants without new misbehavior.
    pub(super) fn report_complaints(&mut self) {
        let now = self.now;
        for ((by, what), complaint) in std::mem::take(&mut self.complaints) {
            if now.saturating_duration_since(complaint.reported_at) < interval(what) {
                self.complaints.insert((by, what), complaint);
            } else if complaint.times > 0 {
                self.complaints.insert((by.clone(), what), Complaint { reported_at: now, times: 0 });
                self.event(Event::Violation { by, what, times: complaint.times, why: None });
            }
        }
        if !self.complaints.is_empty() {
            self.set_timer(Timer::Complaints, COMPLAINT_INTERVAL);
        }
    }

    pub(super) fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }
}
