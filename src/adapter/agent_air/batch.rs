//! Makes several calls at once.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use serde::Serialize;

use super::{
    outcome::{BatchResult, CallResult},
    permission::{Asking, Decision, LIMIT, Permission},
};
use crate::{
    Call, CallBuilder, CallError, EncodeError, ErrorCode, Identity, ToolError, ToolName, Value,
    chat::Caller,
    prompt::{MAX_PROMPT_CHOICES, PermissionPrompt, PromptedCall},
    tools::NotOffered,
};

/// The most calls of a batch: as many as one question to a person can name, and half as many as one client may have open.
pub const MAX_CALLS: usize = MAX_PROMPT_CHOICES;

/// The longest id of a call, in bytes.
const MAX_CALL_ID: usize = 128;

/// The keys of a request's `meta` that name its batch. Their values are texts, because some readers expect that.
const BATCH_ID: &str = "bridge.batch.id";
const BATCH_INDEX: &str = "bridge.batch.index";
const BATCH_SIZE: &str = "bridge.batch.size";

/// One call of a batch.
#[derive(Debug)]
pub struct BatchCall {
    id: String,
    tool: String,
    arguments: Result<Value, EncodeError>,
    owner: Option<Identity>,
    timeout: Option<Duration>,
}

impl BatchCall {
    /// Creates a call of this tool, under the id that the model gave it. `()` means no arguments; any other value must
    /// encode to a map.
    pub fn new(id: impl Into<String>, tool: impl Into<String>, arguments: impl Serialize) -> Self {
        let (id, tool) = (id.into(), tool.into());
        Self { id, tool, arguments: Value::encode(&arguments), owner: None, timeout: None }
    }

    /// Sends the call to this participant, whichever others offer the tool.
    #[must_use]
    pub fn to(mut self, owner: impl Into<Identity>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the total time limit, as [`CallBuilder::timeout`].
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    fn check(&self, index: usize) -> Result<(), BatchError> {
        let is_good =
            !self.id.is_empty() && self.id.len() <= MAX_CALL_ID && !self.id.contains(char::is_control);
        if is_good { Ok(()) } else { Err(BatchError::CallId { index }) }
    }

    /// Returns the call, unsent. Fails if it could never be made.
    fn prepare(&self, caller: &impl Caller) -> Result<CallBuilder, CallError> {
        // A model must not prompt a person in the assistant's name.
        if !self.tool.parse().is_ok_and(|name: ToolName| !name.is_reserved()) {
            let (tool, why) = (self.tool.as_str().into(), Box::new(NotOffered::NotAName));
            return Err(CallError::UnknownTool { tool, why });
        }
        let arguments = self.arguments.clone()?.into_arguments().map_err(CallError::Arguments)?;
        let mut call = caller.call(&self.tool, arguments);
        if let Some(owner) = &self.owner {
            call = call.to(owner.clone());
        }
        if let Some(limit) = self.timeout {
            call = call.timeout(limit);
        }
        Ok(call)
    }

    /// Fails if a question that names the call, after another one, cannot be sent.
    fn check_question(&self) -> Result<(), CallError> {
        let prompt = PermissionPrompt::new(PromptedCall::new(&self.tool)).and(self.prompted());
        Ok(Value::encode(&prompt).map(drop)?)
    }

    fn prompted(&self) -> PromptedCall {
        let mut call = PromptedCall::new(&self.tool);
        call.tool_call_id = Some(self.id.clone());
        call.raw_input = self.arguments.as_ref().ok().cloned();
        call
    }
}

/// Builds a [`Batch`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it starts"]
pub struct BatchBuilder {
    calls: Vec<BatchCall>,
    permission: Option<Permission>,
    permission_limit: Duration,
}

impl BatchBuilder {
    /// Adds a call of this tool, under the id that the model gave it: see [`BatchCall::new`].
    pub fn call(self, id: impl Into<String>, tool: impl Into<String>, arguments: impl Serialize) -> Self {
        self.with_call(BatchCall::new(id, tool, arguments))
    }

    /// Adds a call.
    pub fn with_call(mut self, call: BatchCall) -> Self {
        self.calls.push(call);
        self
    }

    /// Asks a person once, before any call is sent, with a prompt (`bridge.permission`) to this client; `None` for the only
    /// one that answers prompts.
    ///
    /// If the answer does not allow the calls, or there is none, each call fails with `permission_denied`. The model
    /// reads the error's text, which includes what the person said. If a barge-in ends the turn meanwhile, each call is
    /// cancelled. Default: the calls are sent at once.
    ///
    /// The person is not asked about calls that cannot be made, such as one without a valid name: these fail alone.
    pub fn ask_person(mut self, client: Option<Identity>) -> Self {
        self.permission = Some(Permission::Person(client));
        self
    }

    /// Asks this function once, before any call is sent. It gets the question that a person would get.
    ///
    /// If it returns an error, each call fails with `permission_denied` and that text, which the model reads. A panic is a
    /// denial, and a barge-in that ends the turn meanwhile cancels each call.
    pub fn ask_function<F, Fut>(mut self, decide: F) -> Self
    where
        F: FnOnce(PermissionPrompt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.permission = Some(Permission::Function(Box::new(move |prompt| Box::pin(decide(prompt)))));
        self
    }

    /// Sets how long the person, or the function, may take to decide. Default: 60 s. No decision is a denial.
    pub fn permission_limit(mut self, limit: Duration) -> Self {
        self.permission_limit = limit;
        self
    }

    /// Sends all calls, or asks for permission first. The caller is an [`Assistant`](crate::Assistant) or a
    /// [`Turn`](crate::Turn), whose end also ends the calls.
    ///
    /// # Errors
    /// There are more than [`MAX_CALLS`], or the id of a call is empty, longer than 128 bytes or has control characters.
    /// Nothing was sent. Everything else that may be wrong with a call, such as an unknown tool, fails this call alone.
    pub fn start(self, caller: &impl Caller) -> Result<Batch, BatchError> {
        if self.calls.len() > MAX_CALLS {
            return Err(BatchError::TooMany { count: self.calls.len(), limit: MAX_CALLS });
        }
        for (index, call) in self.calls.iter().enumerate() {
            call.check(index)?;
        }
        let id: Arc<str> = nanoid::nanoid!().into();
        let size = self.calls.len().to_string();
        let slot = |(index, call): (usize, &BatchCall)| {
            let checked = if self.permission.is_some() { call.check_question() } else { Ok(()) };
            let state = match call.prepare(caller).and_then(|prepared| checked.map(|()| prepared)) {
                Ok(call) => {
                    let call = call.meta(BATCH_ID, &*id).meta(BATCH_INDEX, index.to_string());
                    State::Unsent(Box::new(call.meta(BATCH_SIZE, &size)))
                }
                Err(error) => State::Failed(error),
            };
            Slot { call_id: call.id.as_str().into(), tool: call.tool.as_str().into(), state }
        };
        let slots: Vec<Slot> = self.calls.iter().enumerate().map(slot).collect();
        let unsent = slots.iter().zip(&self.calls).filter(|(slot, _)| matches!(slot.state, State::Unsent(_)));
        let prompt = question(unsent.map(|(_, call)| call.prompted()));
        let asking = self.permission.zip(prompt);
        let asking = asking.map(|(permission, prompt)| permission.ask(caller, prompt, self.permission_limit));
        let mut batch = Batch { id, slots, asking };
        if batch.asking.is_none() {
            batch.send();
        }
        Ok(batch)
    }
}

/// Returns the question that covers these calls, if there are any.
fn question(mut calls: impl Iterator<Item = PromptedCall>) -> Option<PermissionPrompt> {
    let first = PermissionPrompt::new(calls.next()?);
    let prompt = calls.fold(first, PermissionPrompt::and);
    let text = match prompt.others.len() {
        0 => "May this call be made?".to_owned(),
        others => format!("May these {} calls be made?", others + 1),
    };
    Some(prompt.text(text).option("allow", "Allow", "allow_once").option("reject", "Reject", "reject_once"))
}

/// Why a batch cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The batch has too many calls.
    #[error("a batch of {count} calls exceeds the limit of {limit}; split it")]
    TooMany {
        /// How many calls it has.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// The id of a call is unsuitable.
    #[error("the id of call {index} must have 1 to 128 bytes and no control characters")]
    CallId {
        /// The call's position, counted from 0.
        index: usize,
    },
}

/// Several calls at once, of which each result comes as soon as it is there.
///
/// A batch always ends: each call ends as any other call does, at the latest when its time is over. Calls are told
/// apart by their position, so that two of them may have the same id. Dropping the batch cancels the calls that have
/// not ended.
///
/// ```
/// use serde_json::json;
/// use toolbridge::{Assistant, adapter::agent_air::Batch};
///
/// # async fn example(assistant: Assistant) -> anyhow::Result<()> {
/// let batch = Batch::builder().call("c1", "get_time", ()).call("c2", "get_weather", json!({"city": "Rome"}));
/// let mut batch = batch.ask_person(None).start(&assistant)?;
/// while let Some(result) = batch.next().await {
///     println!("{}: {:?}", result.call_id(), result.status()); // in the order of completion
/// }
/// println!("{}", batch.finish().await.document().json()); // in the order of the requests
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a batch cancels its calls"]
pub struct Batch {
    id: Arc<str>,
    /// In the order of the requests.
    slots: Vec<Slot>,
    /// The permission, while it is being decided. No call has been sent until then.
    asking: Option<Asking>,
}

impl Batch {
    /// Returns a builder of a batch without calls.
    pub fn builder() -> BatchBuilder {
        BatchBuilder { calls: Vec::new(), permission: None, permission_limit: LIMIT }
    }

    /// Returns the batch's id, which its requests carry as `bridge.batch.id`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the next result, in the order of completion; `None` when all calls have ended.
    ///
    /// A batch that needs a permission waits for it here, and sends its calls here.
    ///
    /// # Cancel safety
    /// Safe: dropping the future loses no result.
    pub async fn next(&mut self) -> Option<CallResult> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Waits until all calls have ended; returns their results in the order of the requests, also those that
    /// [`next`](Self::next) has returned.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the calls that have not ended.
    pub async fn finish(mut self) -> BatchResult {
        while self.next().await.is_some() {}
        let results = self.slots.into_iter().filter_map(|slot| match slot.state {
            State::Ended(result) => Some(*result),
            _ => None,
        });
        BatchResult::new(self.id, results.collect())
    }

    /// Cancels the calls that have not ended. Their results follow: [`CallError::Cancelled`], and
    /// [`Status::Timeout`](super::Status::Timeout) in the runtime's code.
    pub fn cancel(&mut self) {
        self.asking = None;
        for slot in &mut self.slots {
            match &mut slot.state {
                State::Unsent(_) => slot.state = State::Failed(CallError::Cancelled),
                State::Open(call) => call.cancel(),
                State::Failed(_) | State::Ended(_) => {}
            }
        }
    }

    fn send(&mut self) {
        for slot in &mut self.slots {
            slot.state = match std::mem::replace(&mut slot.state, State::Failed(CallError::Cancelled)) {
                State::Unsent(call) => State::Open(call.start()),
                other => other,
            };
        }
    }

    fn deny(&mut self, why: &str) {
        let text = format!("{why}; nothing ran");
        for slot in &mut self.slots {
            if matches!(slot.state, State::Unsent(_)) {
                slot.state =
                    State::Failed(CallError::Tool(ToolError::new(ErrorCode::PERMISSION_DENIED, &text)));
            }
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<CallResult>> {
        if let Some(asking) = &mut self.asking {
            let Poll::Ready(decision) = asking.poll(context) else { return Poll::Pending };
            self.asking = None;
            match decision {
                Decision::Allowed => self.send(),
                Decision::Denied(why) => self.deny(&why),
                Decision::Interrupted => self.cancel(),
            }
        }
        let mut is_open = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            match slot.poll(index, context) {
                Poll::Ready(Some(result)) => return Poll::Ready(Some(result)),
                Poll::Ready(None) => {}
                Poll::Pending => is_open = true,
            }
        }
        if is_open { Poll::Pending } else { Poll::Ready(None) }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.slots.iter().filter(|slot| matches!(slot.state, State::Ended(_))).count();
        f.debug_struct("Batch")
            .field("id", &self.id)
            .field("calls", &self.slots.len())
            .field("ended", &ended)
            .finish_non_exhaustive()
    }
}

/// One call of a batch, at its position.
struct Slot {
    call_id: Arc<str>,
    tool: Arc<str>,
    state: State,
}

enum State {
    Unsent(Box<CallBuilder>),
    Open(Call),
    /// It ended without being sent; its result has not been returned.
    Failed(CallError),
    /// Its result was returned.
    Ended(Box<CallResult>),
}

impl Slot {
    /// Returns the result once: `Ready(None)` after that.
    fn poll(&mut self, index: usize, context: &mut Context<'_>) -> Poll<Option<CallResult>> {
        let outcome = match &mut self.state {
            State::Ended(_) => return Poll::Ready(None),
            State::Unsent(_) => return Poll::Pending,
            State::Open(call) => match Pin::new(call).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => outcome,
            },
            State::Failed(error) => Err(std::mem::replace(error, CallError::Cancelled)),
        };
        let result = CallResult::new(index, &self.call_id, &self.tool, outcome);
        self.state = State::Ended(Box::new(result.clone()));
        Poll::Ready(Some(result))
    }
}
