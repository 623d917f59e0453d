//! Joins session, executor and transport under the real clock: [`Client`], [`Assistant`], [`Call`].
//!
//! State: one [`Session`] behind a lock, shared by the handles and one driver task. A handle gives
//! the session a command and wakes the driver. The driver alone talks to the transport and the
//! executor: it carries out what the session asks for, and tells it what happened. Its task also polls the
//! transport's background work.

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
    tool::{CallError, RegisterError},
    transport::{CloseReason, Identity},
};

mod assistant;
mod call;
pub mod chat;
mod client;
mod consent;
mod driver;
mod events;
mod joint;
mod lock;
mod prompt;
mod ready;
mod setup;
mod spans;
mod turn;

pub use assistant::{Assistant, AssistantBuilder};
pub use call::{Call, CallBuilder};
pub use client::{Client, ClientBuilder};
pub use consent::ConsentRequest;
pub use events::Events;
pub use prompt::PromptRequest;
pub use ready::{Ready, ReadyError};
pub use spans::Propagate;
pub use turn::Turn;

use call::OpenCall;

/// How many events a reader may be behind before it misses the oldest.
const EVENTS_KEPT: usize = 256;

/// What handles, calls and the driver share.
#[derive(Debug)]
struct Shared {
    identity: Identity,
    inner: Mutex<Inner>,
    /// The driver has something to do.
    wake: Notify,
    /// The last handle is gone.
    abandoned: AtomicBool,
    /// Counts changes of what the clients offer.
    offers: watch::Sender<u64>,
    /// Counts what may have changed who can be asked.
    registrations: watch::Sender<u64>,
    closed: watch::Sender<Option<CloseReason>>,
    /// What joins our spans to the traces of others.
    propagation: spans::Propagation,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    calls: HashMap<CallKey, OpenCall>,
    closing: Closing,
    /// None when nothing will ever happen again.
    events: Option<broadcast::Sender<Event>>,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Not begun.
    No,
    /// Nothing new is begun; what is open may end.
    Drain,
    /// Now.
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

    /// It is over: whatever is open ends. The first reason stands.
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

    fn events(&self) -> broadcast::Receiver<Event> {
        match &self.lock().events {
            Some(events) => events.subscribe(),
            None => broadcast::channel(1).1, // its sender is gone, and so it ends at once
        }
    }

    async fn closed(&self) -> CloseReason {
        let mut closed = self.closed.subscribe();
        let reason = closed.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        // The sender lives in `self`, so the wait cannot fail; `Closed` is the harmless reading.
        reason.unwrap_or(CloseReason::Closed)
    }

    /// Why nothing new can begin, if so.
    fn refusal(&self, inner: &Inner) -> Option<CallError> {
        if let Some(reason) = self.closed.borrow().clone() {
            return Some(CallError::Closed(reason));
        }
        (inner.closing != Closing::No).then_some(CallError::Closed(CloseReason::Closed))
    }
}

/// Held by handles alone: when the last one goes, the participant leaves.
#[derive(Debug)]
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
        self.0.wake.notify_one();
    }
}

/// Now, by a clock that tests can pause.
fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

/// How long [`Client::close`] lets open work go on, unless told otherwise.
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
    Random(String),
    /// The session cannot be recorded.
    #[cfg(feature = "record")]
    #[error(transparent)]
    Record(#[from] crate::recording::RecordError),
    /// The token makes its bearer something else, so that others would not take this participant for what it is.
    #[cfg(feature = "livekit")]
    #[error(
        "the token is {bearer}, and this participant needs one of role {wanted}: set the attribute {}={wanted} in the \
         token, or leave it out",
        crate::transport::ROLE_ATTRIBUTE
    )]
    WrongToken {
        /// What the token makes of its bearer.
        bearer: crate::transport::livekit::access_token::Bearer,
        /// The role of the participant that joins.
        wanted: crate::transport::Role,
    },
    /// The room could not be joined.
    #[cfg(feature = "livekit")]
    #[error(transparent)]
    Connect(#[from] crate::transport::livekit::ConnectError),
}

type Reply = oneshot::Sender<Result<crate::value::Value, CallError>>;

/// What both builders have in common, written once.
macro_rules! setup_methods {
    ($name:ident) => {
        impl $name {
            /// Offers a plain async function as a tool. A bad or double name is an error when joining.
            pub fn tool<M>(
                self,
                name: &str,
                description: &str,
                handler: impl crate::tool::functions::Handler<M, ()>,
            ) -> Self {
                self.tool_with(name, description, crate::tool::ToolOptions::default(), handler)
            }

            /// Offers a plain async function as a tool, with options.
            pub fn tool_with<M>(
                mut self,
                name: &str,
                description: &str,
                options: crate::tool::ToolOptions,
                handler: impl crate::tool::functions::Handler<M, ()>,
            ) -> Self {
                self.setup.functions = self.setup.functions.tool_with(name, description, options, handler);
                self
            }

            /// Asks a person before a tool of ours runs that needs it: every time for a destructive one, else
            /// as its [`Consent`](crate::Consent) says. On `false` nothing runs, and the caller reads
            /// `permission_denied`; so it does if there is no answer until 500 ms before its budget ends.
            ///
            /// Without this, such a tool is an error when joining. The future is dropped when the question is
            /// taken back: the call was cancelled, or its caller left. A function that panics is a no.
            ///
            /// ```
            /// # async fn dialog(_question: String) -> bool { true }
            /// # async fn erase_album() -> Result<(), toolbridge::ToolError> { Ok(()) }
            /// use toolbridge::{Client, ConsentRequest, ToolOptions};
            ///
            /// let client = Client::builder()
            ///     .tool_with("erase_album", "Delete an album", ToolOptions::destructive(), erase_album)
            ///     .consent(|ask: ConsentRequest| async move {
            ///         let (who, tool) = (ask.caller(), ask.tool().name());
            ///         dialog(format!("{who} wants {tool}: {}", ask.arguments().to_json())).await
            ///     });
            /// ```
            pub fn consent<F, Fut>(mut self, ask: F) -> Self
            where
                F: Fn(crate::participant::ConsentRequest) -> Fut + Send + Sync + 'static,
                Fut: std::future::Future<Output = bool> + Send + 'static,
            {
                self.setup.consent = Some(crate::participant::consent::AskPerson::new(ask));
                self
            }

            /// Joins the spans of calls to the traces of other processes: see
            /// [`Propagate`](crate::Propagate). Default: a trace context that a request brings is read, and
            /// none is made.
            pub fn propagate(mut self, propagate: impl crate::participant::Propagate) -> Self {
                self.setup.propagation = crate::participant::spans::Propagation::new(propagate);
                self
            }

            /// Offers all tools of a source. Two tools of one name are an error when joining; see
            /// [`ToolSource::prefixed`](crate::tool::source::ToolSource::prefixed).
            pub fn tools(mut self, source: impl crate::tool::source::ToolSource) -> Self {
                self.setup.sources.push(std::sync::Arc::new(source));
                self
            }

            /// Which of several is meant: of clients that offer one tool, of participants that may be the assistant.
            /// Default: nobody, and that is an error or event.
            pub fn choose(mut self, policy: crate::protocol::session::SelectionPolicy) -> Self {
                self.setup.config = self.setup.config.choose(policy);
                self
            }

            /// Changes any number or rule of the session: see [`Config`](crate::protocol::session::Config).
            pub fn configure(mut self, change: impl FnOnce(&mut crate::protocol::session::Config)) -> Self {
                change(&mut self.setup.config);
                self
            }

            /// How long `close` lets open work go on. Default: 5 s.
            pub fn drain(mut self, limit: std::time::Duration) -> Self {
                self.setup.drain = limit;
                self
            }

            /// Records the session to a file, as an MCAP recording: see [`recording`](crate::recording). A file
            /// that is there is an error when joining ([`JoinError::Record`](crate::JoinError::Record)).
            ///
            /// What is secret by its name, and what tools of ours carry that do not disclose everything, is taken
            /// out before it is written. The calls never wait for the file: if it cannot be written, the recording
            /// ends, and they go on. `close` finishes it.
            #[cfg(feature = "record")]
            pub fn record(self, path: impl AsRef<std::path::Path>) -> Self {
                self.record_with(path, crate::recording::RecorderOptions::default())
            }

            /// Records the session to a file, with options.
            #[cfg(feature = "record")]
            pub fn record_with(
                mut self,
                path: impl AsRef<std::path::Path>,
                options: crate::recording::RecorderOptions,
            ) -> Self {
                self.setup.record = Some((path.as_ref().to_owned(), options));
                self
            }

            /// How a LiveKit room is joined: certificates, limits.
            #[cfg(feature = "livekit")]
            pub fn connect_options(mut self, options: crate::transport::livekit::ConnectOptions) -> Self {
                self.setup.room = options;
                self
            }
        }
    };
}

/// What a [`Client`] and an [`Assistant`] have in common, written once.
macro_rules! participant_methods {
    ($name:ident) => {
        impl $name {
            /// Our identity.
            pub fn identity(&self) -> &crate::transport::Identity {
                &self.handle.0.identity
            }

            /// The room's name.
            pub fn room(&self) -> String {
                self.handle.0.lock().session.room().to_owned()
            }

            /// Who else is in the room, as far as it was announced.
            pub fn participants(&self) -> Vec<crate::transport::Participant> {
                self.handle.0.lock().session.participants()
            }

            /// What was counted so far.
            pub fn stats(&self) -> crate::protocol::session::Stats {
                self.handle.0.lock().session.stats().clone()
            }

            /// Calls of ours that have no outcome yet.
            pub fn open_calls(&self) -> usize {
                self.handle.0.lock().session.open_calls()
            }

            /// Tools of ours that run just now.
            pub fn open_jobs(&self) -> usize {
                self.handle.0.lock().session.open_jobs()
            }

            /// What became of calls: the last 256 that have ended, oldest first, then those that are open. Ours
            /// and those that we ran, without arguments and results.
            pub fn calls(&self) -> Vec<crate::protocol::session::CallRecord> {
                self.handle.0.lock().session.records()
            }

            /// What happens from now on.
            pub fn events(&self) -> crate::participant::Events {
                crate::participant::Events::new(self.handle.0.events())
            }

            /// Sends a frame of a type that is not this protocol's, with a finished body.
            ///
            /// # Errors
            /// When its type is one of ours, it is too large, or we are not in the room.
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
                shared.lock().session.send(crate::participant::now(), to, kind, meta, body)?;
                shared.wake.notify_one();
                Ok(())
            }

            /// Leaves in order: begins nothing new, lets what is open end (as long as the builder's `drain`
            /// says), says goodbye. Returns why the participant left, which may have been earlier.
            ///
            /// # Cancel safety
            /// Once polled, the participant leaves whether or not this is awaited to the end.
            pub async fn close(&self) -> crate::transport::CloseReason {
                self.handle.0.begin_close();
                self.handle.0.closed().await
            }

            /// Resolves when the participant has left the room, for whatever reason.
            ///
            /// # Cancel safety
            /// Safe: nothing is lost when it is dropped.
            pub async fn closed(&self) -> crate::transport::CloseReason {
                self.handle.0.closed().await
            }
        }
    };
}
use {participant_methods, setup_methods};
