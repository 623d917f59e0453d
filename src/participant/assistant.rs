//! A participant that asks for tools.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use tokio::sync::watch;

use super::{CallBuilder, Handle, JoinError, Ready, participant_methods, setup::Setup, setup_methods};
use crate::{
    tool::{
        CallError, NotOffered, Offer, Outcome, RegisterError, Tool, ToolName,
        source::{ToolContext, ToolSource},
    },
    transport::{Identity, Participant, Role, Transport},
    value::Value,
};

/// A participant that asks for tools, its own and the clients', as a handle: clones are the same participant.
///
/// Dropping the last one leaves at once; [`close`](Assistant::close) waits for what is open.
#[derive(Debug)]
pub struct Assistant {
    handle: Arc<Handle>,
    /// What of the offers' changes a sink has seen. Each clone may be in the hands of another sink.
    seen: Mutex<watch::Receiver<u64>>,
}

impl Clone for Assistant {
    fn clone(&self) -> Self {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { handle: Arc::clone(&self.handle), seen: Mutex::new(seen) }
    }
}

impl Assistant {
    /// What an assistant is made of.
    pub fn builder() -> AssistantBuilder {
        AssistantBuilder::default()
    }

    /// A call of this tool, to be awaited or started. `()` stands for no arguments; else they are a map.
    ///
    /// The questions to a person ([`Prompt`](crate::Prompt)) are asked so too, of the only or the named client that
    /// answers them. A person takes longer than a program: give them a [`timeout`](CallBuilder::timeout).
    pub fn call(&self, tool: &str, arguments: impl Serialize) -> CallBuilder {
        CallBuilder::new(Arc::clone(&self.handle), tool, &arguments)
    }

    /// Waits until the tools of this client are known, for [10 s](Ready::within) at most.
    ///
    /// A call waits as well, but its [`timeout`](CallBuilder::timeout) counts from its beginning. After this, a call that
    /// names the client is sent at once. A client that speaks without the handshake and registers nothing is ready when it
    /// has been silent for 1 s since it could know this assistant; its tools are not known, and the list is empty.
    ///
    /// # Errors
    /// [`NotReady`](crate::ReadyError::NotReady) with the reason, when the time is over; at once for an observer, which
    /// never offers tools. [`NotBound`](crate::ReadyError::NotBound) for a client that listens to another assistant.
    /// [`Closed`](crate::ReadyError::Closed) when this assistant has left.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost when it is dropped, and it can be asked again.
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

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// What can be called just now: our own tools and those of the clients.
    pub fn tools(&self) -> Vec<Offer> {
        self.handle.0.lock().session.tools()
    }
}

participant_methods!(Assistant);

/// A sink may take an assistant for a source: its tools are all that can be called in the room.
///
/// A tool that several clients offer is listed once; calling it is ambiguous, as it is by [`Assistant::call`].
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

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        // The context says how long its caller waits at most; that is no demand for so long a call.
        let limit = context.time_left().min(self.handle.0.lock().session.longest_call());
        if limit < Duration::from_millis(1) {
            Err(CallError::Timeout { limit })?;
        }
        if tool.is_prompt() {
            // Whoever sits behind a sink, a model for instance, does not speak to a person in our name.
            Err(CallError::unknown_tool(tool.as_str(), NotOffered::NotAName))?;
        }
        let mut call = self.call(tool.as_str(), arguments).timeout(limit);
        // What joins traces knows the span in which we are; else the sink's own context goes on.
        if let Some(trace) = context.trace().filter(|_| !self.handle.0.propagation.is_set()) {
            call = call.trace(trace.clone());
        }
        let mut call = call.start();
        let steps = call.steps();
        let mut cancelled = false;
        loop {
            tokio::select! {
                biased;
                result = &mut call => return Ok(result?),
                Some(step) = steps.next() => context.progress(step),
                () = context.cancelled(), if !cancelled => {
                    cancelled = true;
                    call.cancel();
                }
            }
        }
    }

    async fn changed(&self) {
        let mut changes = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).mark_unchanged();
    }
}

/// What an assistant is made of: its own tools, whom it admits, and how it chooses.
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it joins"]
pub struct AssistantBuilder {
    setup: Setup,
}

impl AssistantBuilder {
    /// Admits this client by name, and greets it as soon as it is there.
    ///
    /// Named, its tools can be called as soon as both are in the room; else LiveKit must announce it
    /// first, which takes up to 3 s. Default: whoever has the token attribute `toolbridge.role: client`.
    pub fn client(mut self, identity: impl Into<Identity>) -> Self {
        self.setup.config = self.setup.config.admit(identity);
        self
    }

    /// Admits the clients that this rule admits, beside those whose token says that they are clients.
    ///
    /// It runs while the session is locked, and often: it must be quick, and must not use a handle of this
    /// participant, which panics. A rule that panics says no.
    pub fn admit(mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) -> Self {
        self.setup.config = self.setup.config.admit_if(rule);
        self
    }

    /// Admits nobody whose token names no role.
    ///
    /// By default, if neither [`client`](Self::client) nor [`admit`](Self::admit) was called and no participant has
    /// the role `client`, the assistant admits the only ordinary participant whose token names no role, so that
    /// tokens from any LiveKit token server work. Turn this off where other people can join the room.
    pub fn admit_only_roles(mut self) -> Self {
        self.setup.config = self.setup.config.admit_only_roles();
        self
    }

    /// Lets the clients that this rule allows stop calls (`ControlStop`). Default: none. What holds for
    /// [`admit`](Self::admit) holds for this rule, too.
    pub fn allow_stop(mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) -> Self {
        self.setup.config = self.setup.config.allow_stop(rule);
        self
    }

    /// Calls of this tool go to this client, whoever else offers it. A bad name is an error when joining.
    pub fn pin(mut self, tool: &str, owner: impl Into<Identity>) -> Self {
        match tool.parse() {
            Ok(tool) => self.setup.config = self.setup.config.pin(tool, owner),
            Err(error) => self.setup.problem = Some(RegisterError::Name(error)),
        }
        self
    }

    /// Joins over a transport of your own.
    ///
    /// # Errors
    /// [`JoinError::Register`] when our own tools cannot be offered.
    ///
    /// # Cancel safety
    /// Dropped half-way, nothing has joined.
    pub async fn join_over(self, transport: impl Transport) -> Result<Assistant, JoinError> {
        let handle = self.setup.join(transport, Role::Assistant)?;
        let seen = Mutex::new(handle.0.offers.subscribe());
        Ok(Assistant { handle, seen })
    }

    /// Joins a LiveKit room: `url` as `wss://…`, with a token for that room.
    ///
    /// # Errors
    /// [`JoinError::Register`] when our own tools cannot be offered, [`JoinError::WrongToken`] when the token names another
    /// role, else what kept us out and what to do about it. A token without a role is not an error; the log says what
    /// will not work with it.
    ///
    /// # Cancel safety
    /// Dropped half-way, the participant leaves again.
    #[cfg(feature = "livekit")]
    pub async fn join(self, url: &str, token: &str) -> Result<Assistant, JoinError> {
        self.setup.check()?;
        self.setup.check_token(token, Role::Assistant)?;
        let room = self.setup.room.clone().join(url, token).await?;
        self.join_over(room).await
    }
}

setup_methods!(AssistantBuilder);
