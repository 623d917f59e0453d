//! Builds participants: what a client and an assistant set alike, and how they join.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    ConsentRequest, Handle, JoinError, Propagate, consent::AskPerson, setup::Setup, spans::Propagation,
};
use crate::{
    protocol::session::{Config, SelectionPolicy},
    runtime::{functions::Handler, source::ToolSource},
    transport::{Role, Transport},
};

/// Builds a participant: a [`Client`](crate::Client) or an [`Assistant`](crate::Assistant), whose `builder` returns it.
#[must_use = "a builder does nothing until it joins"]
pub struct Builder<P> {
    pub(super) setup: Setup,
    role: Role,
    joined: fn(Arc<Handle>) -> P,
}

impl<P> Builder<P> {
    pub(super) fn new(role: Role, joined: fn(Arc<Handle>) -> P) -> Self {
        Self { setup: Setup::default(), role, joined }
    }

    /// Offers a plain async function as a tool. [`ToolOptions::on`](crate::ToolOptions::on) sets its options. An
    /// invalid or duplicate name is an error when joining.
    pub fn tool<M>(mut self, name: &str, description: &str, handler: impl Handler<M, ()>) -> Self {
        self.setup.functions = self.setup.functions.tool(name, description, handler);
        self
    }

    /// Sets the handler that asks a person before a tool of this participant runs: every time for a
    /// destructive tool, otherwise as its [`Consent`](crate::Consent) says. If it returns `false`, or does
    /// not return until 500 ms before the call's budget ends, nothing runs, and the caller gets
    /// `permission_denied`.
    ///
    /// Without a handler, such a tool is an error when joining. The future is dropped when the question is
    /// withdrawn because the call was cancelled or its caller left. A handler that panics counts as `false`.
    ///
    /// ```
    /// # async fn dialog(_question: String) -> bool { true }
    /// # async fn erase_album() -> Result<(), toolbridge::ToolError> { Ok(()) }
    /// use toolbridge::{Client, ConsentRequest, ToolOptions};
    ///
    /// let client = Client::builder()
    ///     .tool("erase_album", "Delete an album", ToolOptions::destructive().on(erase_album))
    ///     .consent(|ask: ConsentRequest| async move {
    ///         let (who, tool) = (ask.caller(), ask.tool().name());
    ///         dialog(format!("{who} wants {tool}: {}", ask.arguments().to_json())).await
    ///     });
    /// ```
    pub fn consent<F, Fut>(mut self, ask: F) -> Self
    where
        F: Fn(ConsentRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.setup.consent = Some(AskPerson::new(ask));
        self
    }

    /// Connects the spans of calls to the traces of other processes: see [`Propagate`](crate::tools::Propagate).
    /// Default: the trace context of a request is read, and none is created.
    pub fn propagate(mut self, propagate: impl Propagate) -> Self {
        self.setup.propagation = Propagation::new(propagate);
        self
    }

    /// Offers all tools of a source. Two tools with the same name are an error when joining; see
    /// [`ToolSource::prefixed`].
    pub fn tools(mut self, source: impl ToolSource) -> Self {
        self.setup.sources.push(Arc::new(source));
        self
    }

    /// Sets the policy that selects among several clients that offer a tool, or among several possible
    /// assistants. Default: none is selected; calls fail with `Ambiguous`, and an event names the possible
    /// assistants.
    pub fn choose(mut self, policy: SelectionPolicy) -> Self {
        self.setup.config = self.setup.config.choose(policy);
        self
    }

    /// Changes any limit or rule of the session: see [`Config`].
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.setup.config);
        self
    }

    /// Sets how long `close` waits for open work. Default: 5 s.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.setup.drain = limit;
        self
    }

    /// Records the session to a file, as an MCAP recording: see [`recording`](crate::recording). An existing
    /// file is an error when joining ([`JoinError::Record`](crate::JoinError::Record)).
    ///
    /// Before writing, values under secret-looking keys are redacted, and so is the data of this
    /// participant's tools that do not disclose everything. Calls never wait for the file: if it cannot be
    /// written, the recording ends and the calls continue. `close` finishes the file.
    #[cfg(feature = "record")]
    pub fn record(mut self, path: impl AsRef<std::path::Path>) -> Self {
        self.setup.record = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the options of the recording: redaction, what happens to an existing file.
    #[cfg(feature = "record")]
    pub fn record_options(mut self, options: crate::recording::RecorderOptions) -> Self {
        self.setup.record_options = options;
        self
    }

    /// Sets the options for joining a LiveKit room: certificates, limits.
    #[cfg(feature = "livekit")]
    pub fn connect_options(mut self, options: crate::livekit::ConnectOptions) -> Self {
        self.setup.room = options;
        self
    }

    /// Joins over a custom transport. A LiveKit room is joined by `join`, in which one task is enough.
    ///
    /// # Errors
    /// [`JoinError::Register`] if the participant's own tools cannot be offered, [`JoinError::Record`] if the recording
    /// cannot be created.
    ///
    /// # Cancel safety
    /// Dropping the future before it completes joins nothing.
    ///
    /// # Panics
    /// Outside a Tokio runtime, or in one without time.
    pub async fn join_over(self, transport: impl Transport) -> Result<P, JoinError> {
        let prepared = self.setup.prepare(self.role, transport.capabilities())?;
        Ok((self.joined)(prepared.join(transport, None)?))
    }

    /// Joins a LiveKit room: `url` as `wss://…`, with a token for that room. The tools, the token's role and the file of a recording
    /// are checked before the server is contacted, so that a participant that cannot join disturbs nobody in the room.
    ///
    /// # Errors
    /// [`JoinError::Register`] if the participant's own tools cannot be offered, [`JoinError::WrongToken`] if the token
    /// has another role, or if it has no role and is a client's of the kind `AGENT`; otherwise the reason of the failure and advice.
    /// A token without a role is not an error; a log entry states what will not work with it.
    ///
    /// # Cancel safety
    /// Dropping the future before it completes leaves the room again.
    ///
    /// # Panics
    /// Outside a Tokio runtime, or in one without time and I/O.
    #[cfg(feature = "livekit")]
    pub async fn join(self, url: &str, token: &str) -> Result<P, JoinError> {
        self.setup.check_token(token, self.role)?;
        crate::livekit::check_url(url)?;
        let config = &self.setup.config;
        let named = config.assistant.iter().chain(config.pins.values()).chain(config.described.keys());
        let named = named.chain(&config.admitted).chain(&config.rpc_callers);
        let mut options = self.setup.room.clone().know_first(named.map(ToString::to_string));
        if config.answer_rpc || !config.described.is_empty() {
            options = options.announce_rpc(true);
        }
        let prepared = self.setup.prepare(self.role, options.capabilities())?;
        let (transport, work) = options.connect(url, token).await?;
        let sending = Some((transport.send_queue(), work));
        Ok((self.joined)(prepared.join(transport, sending)?))
    }
}

impl<P> fmt::Debug for Builder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("role", &self.role)
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}
