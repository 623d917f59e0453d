//! Runs participants: [`Client`], [`Assistant`] and [`Call`] connect session, executor and transport to the
//! real clock.
//!
//! The handles and one driver task share one [`Session`] behind a lock. A handle gives the session a command and
//! wakes the driver. Only the driver uses the transport and the executor: it handles the session's outputs and feeds
//! it the events. Its task also polls the transport's background work.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, broadcast, oneshot, watch};

use crate::{
    protocol::session::{CallKey, Event, Session},
    runtime::executor::{Renamed, Warning},
    tool::{CallError, RegisterError, SourceStatus, ToolName},
    transport::{CloseReason, Identity},
};

mod assistant;
mod builder;
mod by_owner;
mod call;
pub mod chat;
mod client;
mod consent;
mod descriptions;
mod driver;
mod events;
mod lock;
mod poll_both;
mod prompt;
mod ready;
mod report;
mod round_robin;
mod rules;
mod setup;
mod spans;
mod turn;

pub use assistant::{Assistant, AssistantBuilder};
pub use builder::Builder;
pub use by_owner::ByOwner;
pub use call::{Call, CallBuilder};
pub use client::{Client, ClientBuilder};
pub use consent::ConsentRequest;
pub use events::Events;
pub use prompt::PromptRequest;
pub use ready::{Ready, ReadyError};
pub use spans::Propagate;
pub use turn::Turn;

use self::descriptions::CutDescription;
use call::OpenCall;

fn not_checked((tool, pattern): &(ToolName, String)) -> Event {
    Event::PatternUnchecked { tool: tool.clone(), pattern: pattern.as_str().into() }
}

fn source_note((source, text): &(String, String)) -> Event {
    Event::SourceNote { source: source.as_str().into(), text: text.as_str().into() }
}

/// The most unread events of a reader; beyond it the oldest are dropped.
const EVENTS_KEPT: usize = 256;

/// The state that handles, calls and the driver share.
#[derive(Debug)]
struct Shared {
    identity: Identity,
    inner: Mutex<Inner>,
    /// Wakes the driver.
    wake: Notify,
    /// Whether the last handle was dropped.
    abandoned: AtomicBool,
    /// Counts changes of the tools that clients offer.
    offers: watch::Sender<u64>,
    /// Counts events that may change which client is ready.
    registrations: watch::Sender<u64>,
    closed: watch::Sender<Option<CloseReason>>,
    /// The author's trace propagation.
    propagation: spans::Propagation,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    calls: HashMap<CallKey, OpenCall>,
    closing: Closing,
    /// The tools that the sources list and that are not offered, with the reasons.
    left_out: Vec<(ToolName, RegisterError)>,
    renamed: Vec<Renamed>,
    cut: Vec<CutDescription>,
    unchecked: Vec<(ToolName, String)>,
    /// What the sources say about their tools, each with the source's name.
    notes: Vec<(String, String)>,
    /// The sources that have a name, and their health.
    sources: Vec<SourceStatus>,
    /// The recorder, if the participant is recorded.
    #[cfg(feature = "record")]
    recorder: Option<crate::recording::RecorderWatch>,
    /// The event about a recording that stopped, for those who subscribe later.
    recording_stopped: Option<Event>,
    /// `None` once no further event can follow.
    events: Option<broadcast::Sender<Event>>,
}

/// The stage of leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Not started.
    No,
    /// New work is refused; open work may end.
    Drain,
    /// The participant leaves at once.
    Now,
}

impl Shared {
    fn new(session: Session, propagation: spans::Propagation) -> Arc<Self> {
        Arc::new(Self {
            identity: session.local().identity().clone(),
            inner: Mutex::new(Inner {
                session,
                calls: HashMap::new(),
                closing: Closing::No,
                left_out: Vec::new(),
                renamed: Vec::new(),
                cut: Vec::new(),
                unchecked: Vec::new(),
                notes: Vec::new(),
                sources: Vec::new(),
                #[cfg(feature = "record")]
                recorder: None,
                recording_stopped: None,
                events: Some(broadcast::Sender::new(EVENTS_KEPT)),
            }),
            wake: Notify::new(),
            abandoned: AtomicBool::new(false),
            offers: watch::Sender::new(0),
            registrations: watch::Sender::new(0),
            closed: watch::Sender::new(None),
            propagation,
        })
    }

    fn begin_close(&self) {
        let mut inner = self.lock();
        if inner.closing == Closing::No {
            inner.closing = Closing::Drain;
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// Ends everything that is open. The first reason is kept.
    fn finish(&self, reason: &CloseReason) {
        let mut inner = self.lock();
        inner.closing = Closing::Now;
        inner.events = None;
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert_with(|| reason.clone());
            first
        });
        for (_, slot) in inner.calls.drain() {
            slot.settle(Err(CallError::Closed(reason.clone())));
        }
    }

    /// Reports the warning of a tool.
    fn warn(&self, warning: Warning) {
        let Warning { call, tool, text } = warning;
        tracing::warn!(%call, %tool, text, "a tool warns");
        if let Some(events) = &self.lock().events {
            let _ = events.send(Event::ToolWarning { call, tool, text }); // there may be no receiver
        }
    }

    /// Replaces the tools that are left out, and reports those that are new.
    fn set_left_out(&self, left_out: Vec<(ToolName, RegisterError)>) {
        let mut inner = self.lock();
        for (tool, why) in left_out.iter().filter(|it| !inner.left_out.contains(it)) {
            tracing::warn!(%tool, %why, "a tool is not offered");
            if let Some(events) = &inner.events {
                let _ = events.send(Event::ToolLeftOut { tool: tool.clone(), why: why.clone() }); // there may be no receiver
            }
        }
        inner.left_out = left_out;
    }

    /// Replaces the tools that have another name than their source's, and reports those that are new.
    fn set_renamed(&self, renamed: &[Renamed]) {
        let mut inner = self.lock();
        for Renamed { source, tool, offered_as } in renamed.iter().filter(|it| !inner.renamed.contains(it)) {
            tracing::info!(source, %tool, %offered_as, "a tool is offered under another name, because its own is taken");
            if let Some(events) = &inner.events {
                let (source, tool, offered_as) = (source.as_str().into(), tool.clone(), offered_as.clone());
                let _ = events.send(Event::ToolRenamed { source, tool, offered_as }); // there may be no receiver
            }
        }
        inner.renamed = renamed.to_vec();
    }

    /// Replaces the descriptions that are cut, and reports those that are new.
    fn set_cut(&self, cut: Vec<CutDescription>) {
        let mut inner = self.lock();
        for it in cut.iter().filter(|it| !inner.cut.contains(it)) {
            tracing::warn!(tool = %it.tool, size = it.size, offered = it.offered, "the description of a tool is cut");
            if let Some(events) = &inner.events {
                let _ = events.send(it.event()); // there may be no receiver
            }
        }
        inner.cut = cut;
    }

    /// Replaces the patterns that are not checked, and reports those that are new.
    fn set_unchecked(&self, unchecked: Vec<(ToolName, String)>) {
        let mut inner = self.lock();
        for it in unchecked.iter().filter(|it| !inner.unchecked.contains(it)) {
            tracing::warn!(tool = %it.0, pattern = it.1, "a pattern of a schema is not checked");
            if let Some(events) = &inner.events {
                let _ = events.send(not_checked(it)); // there may be no receiver
            }
        }
        inner.unchecked = unchecked;
    }

    /// Replaces what the sources say about their tools, and reports what is new.
    fn set_notes(&self, notes: Vec<(String, String)>) {
        let mut inner = self.lock();
        for it in notes.iter().filter(|it| !inner.notes.contains(it)) {
            if let Some(events) = &inner.events {
                let _ = events.send(source_note(it)); // there may be no receiver
            }
        }
        inner.notes = notes;
    }

    /// Returns what the events have said about the tools as they are now.
    fn tool_notes(&self) -> Vec<Event> {
        let inner = self.lock();
        let left_out = inner.left_out.iter();
        let left_out =
            left_out.map(|(tool, why)| Event::ToolLeftOut { tool: tool.clone(), why: why.clone() });
        let renamed = inner.renamed.iter().map(|Renamed { source, tool, offered_as }| Event::ToolRenamed {
            source: source.as_str().into(),
            tool: tool.clone(),
            offered_as: offered_as.clone(),
        });
        let cut = inner.cut.iter().map(CutDescription::event);
        let unchecked = inner.unchecked.iter().map(not_checked);
        let notes = inner.notes.iter().map(source_note);
        left_out.chain(renamed).chain(cut).chain(unchecked).chain(notes).collect()
    }

    /// Replaces the health of the sources, and reports changes.
    fn set_sources(&self, sources: Vec<SourceStatus>) {
        let mut inner = self.lock();
        for status in sources.iter().filter(|it| !inner.sources.contains(it)) {
            tracing::info!(source = %status.name, health = %status.health, "the health of a tool source");
            if let Some(events) = &inner.events {
                let _ = events.send(Event::Source(status.clone())); // there may be no receiver
            }
        }
        inner.sources = sources;
    }

    fn events(&self) -> Events {
        let inner = self.lock();
        let receiver = match &inner.events {
            Some(events) => events.subscribe(),
            None => broadcast::channel(1).1, // its sender is dropped, and so it ends at once
        };
        Events::new(inner.recording_stopped.clone(), receiver)
    }

    async fn closed(&self) -> CloseReason {
        let mut closed = self.closed.subscribe();
        let reason = closed.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        // The sender lives in `self`, so the wait cannot fail; `Closed` is the harmless default.
        reason.unwrap_or(CloseReason::Closed)
    }

    /// Returns why new work is refused, if it is.
    fn refusal(&self, inner: &Inner) -> Option<CallError> {
        if let Some(reason) = self.closed.borrow().clone() {
            return Some(CallError::NotInRoom(reason));
        }
        (inner.closing != Closing::No).then_some(CallError::NotInRoom(CloseReason::Closed))
    }
}

/// Held only by handles: when the last one is dropped, the participant leaves.
#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
        self.0.wake.notify_one();
    }
}

/// Returns the current time of a clock that tests can pause.
fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

/// How long [`Client::close`] waits for open work by default.
const DRAIN: Duration = Duration::from_secs(5);

/// Why a participant could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The tools cannot be offered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The operating system gave no random bytes for ids and secrets.
    #[error("no random bytes from the operating system: {0}")]
    Random(#[source] std::io::Error),
    /// The session cannot be recorded.
    #[cfg(feature = "record")]
    #[error(transparent)]
    Record(#[from] crate::recording::RecordError),
    /// The token has another role, so that others would not accept this participant in its role.
    #[cfg(feature = "livekit")]
    #[error(
        "the token is {bearer}, and this participant needs one of role {wanted}: set the attribute {}={wanted} in the \
         token, or leave it out",
        crate::transport::ROLE_ATTRIBUTE
    )]
    WrongToken {
        /// The role or kind in the token.
        bearer: crate::livekit::token::access_token::Bearer,
        /// The role that is needed.
        wanted: crate::transport::Role,
    },
    /// The LiveKit room could not be joined.
    #[cfg(feature = "livekit")]
    #[error(transparent)]
    Connect(#[from] crate::livekit::ConnectError),
}

type Reply = oneshot::Sender<Result<crate::value::Value, CallError>>;

/// The methods of both [`Client`] and [`Assistant`], written once.
macro_rules! participant_methods {
    ($name:ident) => {
        impl $name {
            /// Returns the identity of this participant.
            pub fn identity(&self) -> &crate::transport::Identity {
                &self.handle.0.identity
            }

            /// Returns the room's name.
            pub fn room(&self) -> String {
                self.handle.0.lock().session.room().to_owned()
            }

            /// Returns the other participants that have been announced.
            pub fn participants(&self) -> Vec<crate::transport::Participant> {
                self.handle.0.lock().session.participants()
            }

            /// Returns the counters.
            pub fn stats(&self) -> crate::protocol::session::Stats {
                self.handle.0.lock().session.stats().clone()
            }

            /// Returns the number of calls by this participant that have no outcome yet.
            pub fn open_calls(&self) -> usize {
                self.handle.0.lock().session.open_calls()
            }

            /// Returns the number of this participant's tools that are running.
            pub fn open_jobs(&self) -> usize {
                self.handle.0.lock().session.open_jobs()
            }

            /// Returns records of calls, without arguments and results: the last 256 that have ended, oldest first,
            /// then the open ones. They include the calls that this participant made and those that it executed.
            pub fn calls(&self) -> Vec<crate::protocol::session::CallRecord> {
                self.handle.0.lock().session.records()
            }

            /// Returns the tools that this participant's sources list and that it does not offer, with the reasons:
            /// for example one over a limit. See [`Event::ToolLeftOut`](crate::Event::ToolLeftOut).
            pub fn left_out(&self) -> Vec<(crate::tool::ToolName, crate::tool::RegisterError)> {
                self.handle.0.lock().left_out.clone()
            }

            /// Returns what is to be said about the tools of this participant's sources as they are now: the tools that
            /// are left out or have another name, the descriptions that are cut, and the patterns that are not checked. The
            /// events about them may have preceded [`events`](Self::events).
            pub fn tool_notes(&self) -> Vec<crate::protocol::session::Event> {
                self.handle.0.tool_notes()
            }

            /// Returns this participant's tool sources that have a name, and their health. See
            /// [`Event::Source`](crate::Event::Source).
            pub fn sources(&self) -> Vec<crate::tool::SourceStatus> {
                self.handle.0.lock().sources.clone()
            }

            /// Returns the counters of this participant's recording, or `None` if it is not recorded. After
            /// [`close`](Self::close), [`failed`](crate::recording::RecorderStats::failed) says whether the file is
            /// complete. See also [`Event::RecordingStopped`](crate::Event::RecordingStopped).
            #[cfg(feature = "record")]
            pub fn recording(&self) -> Option<crate::recording::RecorderStats> {
                let inner = self.handle.0.lock();
                inner.recorder.as_ref().map(crate::recording::RecorderWatch::stats)
            }

            /// Returns a stream of the events from now on. If the recording has stopped already,
            /// [`Event::RecordingStopped`](crate::Event::RecordingStopped) is the first.
            pub fn events(&self) -> crate::runtime::participant::Events {
                self.handle.0.events()
            }

            /// Sends a frame of a type that the protocol does not define, with an encoded body.
            ///
            /// # Errors
            /// If the protocol defines the type, the frame is too large, or the participant is not in the room.
            pub fn send_frame(
                &self,
                to: crate::protocol::session::Destination,
                kind: crate::protocol::frame::Kind,
                meta: crate::protocol::frame::Meta,
                body: crate::value::Value,
            ) -> Result<(), crate::protocol::session::SendFrameError> {
                let shared = &self.handle.0;
                if let Some(reason) = shared.closed.borrow().clone() {
                    return Err(crate::protocol::session::SendFrameError::Closed(reason));
                }
                shared.lock().session.send(crate::runtime::participant::now(), to, kind, meta, body)?;
                shared.wake.notify_one();
                Ok(())
            }

            /// Leaves the room: starts no new work, waits for open work (as long as the builder's `drain` allows),
            /// and says goodbye. Returns why the participant left, which may have happened earlier.
            ///
            /// # Cancel safety
            /// Once polled, the participant leaves even if the future is dropped.
            pub async fn close(&self) -> crate::transport::CloseReason {
                self.handle.0.begin_close();
                self.handle.0.closed().await
            }

            /// Resolves when the participant has left the room for any reason.
            ///
            /// # Cancel safety
            /// Safe: dropping it loses nothing.
            pub async fn closed(&self) -> crate::transport::CloseReason {
                self.handle.0.closed().await
            }
        }
    };
}
use participant_methods;
