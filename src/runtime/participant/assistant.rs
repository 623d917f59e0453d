//! Runs the assistant: a participant that calls tools.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::sync::watch;

use super::{
    Builder, ByOwner, CallBuilder, Handle, PromptRequest, Ready, participant_methods, prompt::Prompts,
};
use crate::{
    runtime::source::{ToolContext, ToolSource},
    tool::{CallError, NotOffered, Offer, Outcome, PromptAnswer, RegisterError, Tool, ToolError, ToolName},
    transport::{Identity, Participant, Role},
    value::Value,
};

/// A participant that calls tools, its own and those of clients. It is a handle: clones refer to the same
/// participant.
///
/// Dropping the last handle leaves at once; [`close`](Assistant::close) waits for open calls.
#[derive(Debug)]
pub struct Assistant {
    handle: Arc<Handle>,
    /// The changes of the offered tools that a sink has seen. Each clone may be used by another sink.
    seen: Mutex<watch::Receiver<u64>>,
}

impl Clone for Assistant {
    fn clone(&self) -> Self {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { handle: Arc::clone(&self.handle), seen: Mutex::new(seen) }
    }
}

impl Assistant {
    /// Returns a builder.
    pub fn builder() -> AssistantBuilder {
        Builder::new(Role::Assistant, Self::joined)
    }

    fn joined(handle: Arc<Handle>) -> Assistant {
        let seen = Mutex::new(handle.0.offers.subscribe());
        Assistant { handle, seen }
    }

    /// Creates a call of this tool, to be awaited or started. `()` means no arguments; any other value must encode to
    /// a map.
    ///
    /// Prompts ([`Prompt`](crate::prompt::Prompt)) are calls too, to the named client or to the only one that answers them. A
    /// person takes longer than a program: set a [`timeout`](CallBuilder::timeout).
    pub fn call(&self, tool: &str, arguments: impl Serialize) -> CallBuilder {
        CallBuilder::new(Arc::clone(&self.handle), tool, &arguments)
    }

    /// Waits until the tools of this client are known, for at most [10 s](Ready::within).
    ///
    /// A call waits as well, but its [`timeout`](CallBuilder::timeout) counts from its start. After this wait, a call
    /// that names the client is sent at once. The list is empty for a client without toolbridge's handshake: one that
    /// says so is ready at once, and one that has answered nothing when the time is over.
    ///
    /// # Errors
    /// [`NotReady`](crate::tools::ReadyError::NotReady) with the reason, when the time is over; at once for an observer,
    /// which never offers tools. [`NotBound`](crate::tools::ReadyError::NotBound) for a client that is bound to another
    /// assistant. [`Closed`](crate::tools::ReadyError::Closed) when this assistant has left.
    ///
    /// # Cancel safety
    /// Safe: dropping it loses nothing, and it can be called again.
    ///
    /// ```
    /// # async fn example(assistant: toolbridge::Assistant) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let tools = assistant.ready("phone").within(Duration::from_secs(20)).await?;
    /// println!("phone offers {} tools", tools.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn ready(&self, client: impl Into<Identity>) -> Ready {
        Ready::new(Arc::clone(&self.handle), client.into())
    }

    /// Returns this assistant as a tool source that tells apart the clients that offer the same tool.
    ///
    /// A tool that one participant offers has its own name. Of several, each is `owner.tool`, in the form that names of
    /// tools allow ([`NameMap`](crate::tools::NameMap)). A tool that this assistant offers too has its own name alone. The list
    /// is sorted by name, and [`changed`](ToolSource::changed) reports each change.
    pub fn by_owner(&self) -> ByOwner {
        ByOwner::new(self.clone())
    }

    /// Makes a call for a caller behind a sink.
    pub(super) async fn run(
        &self,
        tool: &ToolName,
        owner: Option<Identity>,
        arguments: Value,
        context: ToolContext,
    ) -> Outcome {
        // The context gives the longest time that its caller waits, which need not be allowed for one call.
        let limit = context.time_left().min(self.handle.0.lock().session.longest_call());
        if limit < Duration::from_millis(1) {
            Err(CallError::Timeout { limit })?;
        }
        if tool.is_prompt() {
            // A caller behind a sink, for example a model, must not prompt a person in the assistant's name.
            Err(CallError::unknown_tool(tool.as_str(), NotOffered::NotAName))?;
        }
        let mut call = self.call(tool.as_str(), arguments).timeout(limit);
        if let Some(owner) = owner {
            call = call.to(owner);
        }
        // A propagator knows the current span; without one the sink's own context is passed on.
        if let Some(trace) = context.trace().filter(|_| !self.handle.0.propagation.is_set()) {
            call = call.trace(trace.clone());
        }
        let mut call = call.start();
        let steps = call.steps();
        let mut cancelled = false;
        loop {
            tokio::select! {
                biased;
                // They came before the result; the session limits how many there are.
                Some(step) = steps.next() => context.progress(step),
                result = &mut call => return Ok(result?),
                () = context.cancelled(), if !cancelled => {
                    cancelled = true;
                    call.cancel();
                }
            }
        }
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Returns the tools that can be called now: this assistant's own and those of the clients.
    pub fn tools(&self) -> Vec<Offer> {
        self.handle.0.lock().session.tools()
    }

    /// Returns why a tool that is not among [`tools`](Self::tools) cannot be called now: the error that a call of it would
    /// end with if nothing changed.
    pub fn why_not_offered(&self, tool: &str) -> CallError {
        self.handle.0.lock().session.why_not_offered(tool)
    }
}

participant_methods!(Assistant);

/// An assistant is a tool source: it offers every tool that can be called in the room.
///
/// A tool that several clients offer is listed once; calling it is ambiguous, as with [`Assistant::call`].
impl ToolSource for Assistant {
    fn list(&self) -> Vec<Tool> {
        let mut tools: Vec<Tool> = Vec::new();
        for offer in self.tools() {
            if !tools.iter().any(|tool| tool.name() == offer.tool.name()) {
                tools.push(offer.tool);
            }
        }
        tools
    }

    fn execute(
        &self,
        tool: &ToolName,
        arguments: Value,
        context: ToolContext,
    ) -> impl Future<Output = Outcome> + Send {
        self.run(tool, None, arguments, context)
    }

    async fn changed(&self) {
        let mut changes = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).mark_unchanged();
    }
}

/// Builds an [`Assistant`]: its own tools, the clients that it admits, and its selection policy.
pub type AssistantBuilder = Builder<Assistant>;

impl AssistantBuilder {
    /// Admits this client by name, and starts the handshake as soon as it is in the room.
    ///
    /// The tools of a named client can be called as soon as both are in the room; otherwise LiveKit must announce it
    /// first, which takes up to 3 s. Default: participants with the token attribute `toolbridge.role: client`.
    pub fn client(mut self, identity: impl Into<Identity>) -> Self {
        self.setup.config = self.setup.config.admit(identity);
        self
    }

    /// Admits the participants for which this rule returns true, in addition to those whose token has the role
    /// `client`.
    ///
    /// The rule is evaluated whenever a participant is announced or its description changes. It must be quick, since
    /// packets wait for it. A rule that panics counts as false.
    pub fn admit(mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) -> Self {
        self.setup.rules.set_admit(rule);
        self.setup.config = self.setup.config.admit_only_roles();
        self
    }

    /// Admits no participant only because it is alone.
    ///
    /// By default, if neither [`client`](Self::client) nor [`admit`](Self::admit) was called and no participant has
    /// the role `client`, the assistant admits the only ordinary participant whose token has no role, so that tokens
    /// from any LiveKit token server work. Call this if other people can join the room.
    pub fn admit_only_roles(mut self) -> Self {
        self.setup.config = self.setup.config.admit_only_roles();
        self
    }

    /// Lets the clients for which this rule returns true stop calls (`ControlStop`). Default: none. The rule is
    /// evaluated when that of [`admit`](Self::admit) is.
    pub fn allow_stop(mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) -> Self {
        self.setup.rules.set_allow_stop(rule);
        self
    }

    /// Answers the questions of this assistant's own tools ([`ToolContext::ask`]): permissions, choices, sign-ins, forms.
    /// Default: a client is asked.
    ///
    /// It is for an assistant that has a person of its own, for example at a terminal. The future is dropped when the
    /// answer is no longer needed. Calls of the reserved tools (`bridge.permission` and similar) go to clients as before.
    pub fn prompt<F, Fut>(mut self, ask: F) -> Self
    where
        F: Fn(PromptRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<PromptAnswer, ToolError>> + Send + 'static,
    {
        self.setup.prompts = Some(Arc::new(Prompts(ask)));
        self
    }

    /// Calls this tool of this participant by [LiveKit's RPC](crate::guide::livekit_rpc) (`performRpc`): for an app that
    /// registers methods and does not have toolbridge. The participant is admitted, and sent nothing but requests. If it uses
    /// toolbridge's handshake after all, it is called by that, and offers what it registers.
    ///
    /// The arguments are the payload as JSON. A payload that is returned as JSON is the result, and other text is a string. A
    /// name that is reserved, or that this assistant offers itself, is an error when joining.
    ///
    /// ```
    /// use toolbridge::{Assistant, Tool};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let location = Tool::new("getUserLocation".parse()?, "Where the user is");
    /// let assistant = Assistant::builder().rpc_tool("web-user", location);
    /// # drop(assistant);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rpc_tool(mut self, owner: impl Into<Identity>, tool: Tool) -> Self {
        self.setup.config = self.setup.config.rpc_tool(owner, tool);
        self
    }

    /// Reads each answer by RPC as JSON, also a number, `true`, `null` or a text in quotes; one that is not JSON is an
    /// [`execution_error`](crate::ErrorCode::EXECUTION_ERROR). Default: a JSON object or array is read, and any other answer is a
    /// text, so that the digits of a post code or a parcel stay as they are.
    pub fn rpc_json(mut self) -> Self {
        self.setup.config = self.setup.config.rpc_json();
        self
    }

    /// Sets whether owners that are called by RPC are pinged when they send nothing during a call. Default: true.
    ///
    /// A ping calls the method `toolbridge.ping`, which the owner does not have; its app may log that. A call whose owner
    /// answers no ping is lost after 7 s. Without pings it ends with its time limit, or when the room reports that the
    /// owner has left, which takes 20 s if its process was killed.
    pub fn rpc_probe(mut self, probes: bool) -> Self {
        self.setup.config = self.setup.config.rpc_probe(probes);
        self
    }

    /// Sends calls of this tool only to this client. An invalid name is an error when joining.
    pub fn pin(mut self, tool: &str, owner: impl Into<Identity>) -> Self {
        match tool.parse() {
            Ok(tool) => self.setup.config = self.setup.config.pin(tool, owner),
            Err(error) => self.setup.problem = Some(RegisterError::Name(error)),
        }
        self
    }
}
