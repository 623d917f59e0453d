//! Makes one call: builds its request, and waits for its outcome.

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use serde::Serialize;
use tokio::sync::oneshot;
use tracing::Span;

use super::{Handle, Reply, Shared, now, spans, turn::OpenTurn};
use crate::{
    protocol::session::{CallKey, Request},
    tool::{CallError, CallId, Progress, TraceContext},
    transport::{CloseReason, Identity},
    value::{EncodeError, Value},
};

/// The most unread progress of a reader; beyond it the oldest is dropped.
const PROGRESS_KEPT: usize = 64;

/// A call that has not been sent: see [`Assistant::call`](crate::Assistant::call).
///
/// Awaiting it sends it and waits for its outcome; [`start`](CallBuilder::start) sends it.
#[must_use = "a call is sent when it is awaited or started"]
pub struct CallBuilder {
    handle: Arc<Handle>,
    request: Result<Request, EncodeError>,
    /// Kept until the call is sent, because a turn without handles accepts no calls.
    turn: Option<Arc<OpenTurn>>,
    /// The trace context that the author set.
    trace: Option<TraceContext>,
}

impl CallBuilder {
    pub(super) fn new(handle: Arc<Handle>, tool: &str, arguments: &impl Serialize) -> Self {
        let request = Value::encode(&arguments).map(|arguments| Request::new(tool, arguments));
        Self { handle, request, turn: None, trace: None }
    }

    pub(super) fn in_turn(mut self, turn: &Arc<OpenTurn>) -> Self {
        self.turn = Some(Arc::clone(turn));
        let key = turn.key;
        self.with(|request| Ok(request.turn(key)))
    }

    /// Sends the call to this participant, whichever others offer the tool.
    pub fn to(self, owner: impl Into<Identity>) -> Self {
        self.with(|request| Ok(request.to(owner)))
    }

    /// Sets the total time limit: waiting for an owner, sending and executing. Default: the tool's
    /// [patience](crate::ToolOptions::patience), otherwise 30 s.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|request| Ok(request.timeout(limit)))
    }

    /// Sets how long to wait for a client that offers the tool, within the timeout. Default: 5 s.
    pub fn owner_wait(self, wait: Duration) -> Self {
        self.with(|request| Ok(request.owner_wait(wait)))
    }

    /// Adds an entry to the request's `meta`.
    pub fn meta(self, key: &str, value: impl Serialize) -> Self {
        self.with(|request| Ok(request.meta(key, Value::encode(&value)?)))
    }

    /// Sets the trace context, which the owner reads from its [`ToolContext`](crate::ToolContext::trace). Default:
    /// the context that the builder's [`propagate`](crate::AssistantBuilder::propagate) returns for the call's span.
    pub fn trace(mut self, context: TraceContext) -> Self {
        self.trace = Some(context);
        self
    }

    /// Sends the call. Dropping the returned [`Call`] cancels it.
    pub fn start(self) -> Call {
        let shared = &self.handle.0;
        let (reply, outcome) = oneshot::channel();
        let steps = Arc::new(Steps::default());
        let turn = self.turn;
        let started = match self.request {
            Err(error) => Err(CallError::from(error)),
            Ok(mut request) => {
                let span = spans::call_span(&request.tool, Some(&request.arguments));
                let context = self.trace.or_else(|| shared.propagation.context(&span));
                if let Some(context) = context {
                    request = request.trace(&context);
                }
                begin(shared, request, Reporting { reply, steps: Arc::clone(&steps), span })
            }
        };
        let (state, id) = match started {
            Ok((key, id)) => (State::Open { key, outcome }, id),
            Err(error) => (State::Refused(Some(error)), None),
        };
        drop(turn);
        shared.wake.notify_one();
        Call { shared: Arc::clone(shared), id, state, steps }
    }

    fn with(mut self, change: impl FnOnce(Request) -> Result<Request, EncodeError>) -> Self {
        self.request = self.request.and_then(change);
        self
    }
}

/// Where a call's outcome, progress and span go.
struct Reporting {
    reply: Reply,
    steps: Arc<Steps>,
    span: Span,
}

fn begin(shared: &Shared, request: Request, to: Reporting) -> Result<(CallKey, Option<CallId>), CallError> {
    let mut inner = shared.lock();
    let refusal = shared.refusal(&inner).map_or(Ok(()), Err);
    let begun = refusal.and_then(|()| inner.session.call(now(), request));
    let Reporting { reply, steps, span } = to;
    let key = begun.inspect_err(|error| spans::failed(&span, error))?;
    let id = inner.session.call_id(key).cloned();
    if let Some(id) = &id {
        spans::asked(&span, id.as_str(), inner.session.room());
    }
    inner.calls.insert(key, OpenCall { id: id.clone(), span, reply, steps });
    Ok((key, id))
}

impl IntoFuture for CallBuilder {
    type Output = Result<Value, CallError>;
    type IntoFuture = Call;

    fn into_future(self) -> Call {
        self.start()
    }
}

impl fmt::Debug for CallBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallBuilder").field("request", &self.request).finish_non_exhaustive()
    }
}

/// A call in progress: a future of its one outcome.
///
/// Dropping it cancels the call and sends the owner a stop. [`detach`](Call::detach) lets it finish without a caller.
///
/// Polling it again after it has returned its outcome does not panic. It returns [`CallError::Cancelled`], which says
/// nothing about the call.
#[must_use = "dropping a call cancels it"]
pub struct Call {
    shared: Arc<Shared>,
    id: Option<CallId>,
    state: State,
    steps: Arc<Steps>,
}

/// The state of a call at its caller.
enum State {
    /// The outcome is pending.
    Open { key: CallKey, outcome: oneshot::Receiver<Result<Value, CallError>> },
    /// The call was refused; the error has not been returned yet.
    Refused(Option<CallError>),
    /// The outcome was returned.
    Told,
}

impl Call {
    /// Returns its id, or `None` if the call was refused before it got one.
    pub fn id(&self) -> Option<&CallId> {
        self.id.as_ref()
    }

    /// Returns the participant that executes the call, once one was selected: the owner, or the assistant itself.
    pub fn owner(&self) -> Option<Identity> {
        self.shared.lock().session.record(self.id.as_ref()?).and_then(|record| record.owner.clone())
    }

    /// Returns the next progress: first that the tool has started, then the tool's own reports. `None` when the call
    /// has ended.
    ///
    /// # Cancel safety
    /// Safe: dropping the future loses no progress.
    pub async fn progress(&mut self) -> Option<Progress> {
        if !matches!(self.state, State::Open { .. }) {
            return None;
        }
        self.steps.next().await
    }

    pub(super) fn steps(&self) -> Arc<Steps> {
        Arc::clone(&self.steps)
    }

    /// Cancels the call: it settles at once as [`CallError::Cancelled`], and its owner gets a stop.
    pub fn cancel(&mut self) {
        if let State::Open { key, .. } = self.state {
            self.shared.lock().session.cancel(now(), key);
            self.shared.wake.notify_one();
        }
    }

    /// Lets the call finish without a caller: it is sent and executed like any other, and its outcome is discarded.
    pub fn detach(mut self) {
        if let State::Open { key, .. } = self.state {
            let mut inner = self.shared.lock();
            inner.session.detach(now(), key);
            inner.calls.remove(&key);
        }
        self.state = State::Told;
    }
}

impl Future for Call {
    type Output = Result<Value, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            State::Open { outcome, .. } => match Pin::new(outcome).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(result)) => result,
                // The driver has ended without a reason: its runtime was shut down.
                Poll::Ready(Err(_)) => Err(CallError::Closed(CloseReason::Closed)),
            },
            State::Refused(error) => Err(error.take().unwrap_or(CallError::Cancelled)),
            State::Told => Err(CallError::Cancelled),
        };
        self.state = State::Told;
        Poll::Ready(result)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let State::Open { key, .. } = self.state
            && let Some(mut inner) = self.shared.lock_to_drop()
        {
            inner.session.cancel(now(), key);
            drop(inner);
            self.shared.wake.notify_one();
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Receives a call's outcome and progress from the driver.
#[derive(Debug)]
pub(super) struct OpenCall {
    pub(super) id: Option<CallId>,
    /// Open as long as the call is.
    pub(super) span: Span,
    pub(super) reply: Reply,
    pub(super) steps: Arc<Steps>,
}

impl OpenCall {
    pub(super) fn settle(self, result: Result<Value, CallError>) {
        if let Err(error) = &result {
            spans::failed(&self.span, error);
        }
        // A dropped caller does not need it.
        let _ = self.reply.send(result);
        self.steps.end();
    }
}

/// Unread progress.
#[derive(Debug, Default)]
pub(super) struct Steps(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    steps: VecDeque<Progress>,
    ended: bool,
    reader: Option<Waker>,
}

impl Steps {
    pub(super) fn push(&self, step: Progress) {
        self.change(|unread| {
            if unread.steps.len() == PROGRESS_KEPT {
                unread.steps.pop_front();
            }
            unread.steps.push_back(step);
        });
    }

    /// Returns the next progress; `None` when the call has ended.
    pub(super) async fn next(&self) -> Option<Progress> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn end(&self) {
        self.change(|unread| unread.ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Unread)) {
        let reader = {
            let mut unread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut unread);
            unread.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<Progress>> {
        let mut unread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = unread.steps.pop_front() {
            return Poll::Ready(Some(step));
        }
        if unread.ended {
            return Poll::Ready(None);
        }
        unread.reader = Some(context.waker().clone());
        Poll::Pending
    }
}
