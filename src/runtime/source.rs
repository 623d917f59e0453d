//! Defines [`ToolSource`], which offers tools and executes their calls.
//!
//! Functions ([`Tools`](crate::Tools)), programs ([`ProgramTools`](crate::programs::ProgramTools)) and an
//! [`Assistant`](crate::Assistant) are sources. Any other type becomes one by implementing two methods.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    runtime::{reporter::Reporter, stop_signal::StopSignal},
    tool::{
        CallId, ErrorCode, InvalidToolName, Outcome, Progress, Prompt, PromptAnswer, RegisterError,
        SourceHealth, StopReason, Tool, ToolError, ToolName, TraceContext,
    },
    transport::Identity,
    value::Value,
};

/// The longest time that closing a source may take.
pub const SOURCE_CLOSE: Duration = Duration::from_secs(5);

/// The longest warning, in bytes.
const MAX_WARNING: usize = 1_024;

/// The deadline of a context without a limit, thirty years from now, which every clock can represent.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// Returns the note about a tool of a server that is not offered.
#[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
pub(crate) fn left_out_note(tool: &str, reason: &str) -> String {
    format!("{tool} is not offered: {reason}")
}

/// Returns the note about a tool of a server whose name the room does not allow.
#[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
pub(crate) fn renamed_note(tool: &str, offered_as: &ToolName) -> String {
    format!("{tool} is offered as {offered_as}: the room allows no such name")
}

/// Offers tools and executes their calls.
pub trait ToolSource: Send + Sync + 'static {
    /// Returns the tools that are currently offered.
    fn list(&self) -> Vec<Tool>;

    /// Runs one call. The arguments have been checked against the schema in [`list`](ToolSource::list), unless the
    /// source [validates](ToolSource::validates_arguments) them itself.
    ///
    /// # Errors
    /// The tool's failure, which is sent to the caller. A panic counts as a failure, and its text stays in this process.
    ///
    /// # Cancel safety
    /// The future is dropped when the call is cancelled or its time is over, after the grace period if the tool
    /// [uses](ToolSource::uses_cancel_grace) one.
    fn execute(
        &self,
        tool: &ToolName,
        arguments: Value,
        context: ToolContext,
    ) -> impl Future<Output = Outcome> + Send;

    /// Resolves when the return value of [`list`](ToolSource::list) has changed. Default: never.
    ///
    /// # Cancel safety
    /// The future may be dropped and requested again at any time; a change must not be lost by that.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Returns whether a cancelled call of this tool continues for its grace period before its future is dropped.
    ///
    /// Default: yes, because a source gets a context and may need to clean up.
    fn uses_cancel_grace(&self, _tool: &ToolName) -> bool {
        true
    }

    /// Returns whether the source validates arguments itself; toolbridge then offers its schemas without compiling
    /// them.
    ///
    /// Such a source must send [`progress`](ToolContext::progress) when execution starts; an error before that proves
    /// that nothing ran. This is for a source whose schemas come from elsewhere. Default: no.
    fn validates_arguments(&self) -> bool {
        false
    }

    /// Returns what a person should know about tools that the source does not offer as they are: those that it leaves out,
    /// each with the reason, and those that have another name in the room. Read after [`list`](ToolSource::list); only the
    /// first 64 are reported. Default: nothing.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the source's name, for people. Default: none; then its health is not reported.
    fn name(&self) -> Option<String> {
        None
    }

    /// Returns whether the source can run calls. [`changed`](ToolSource::changed) reports changes of it too. Default: yes.
    ///
    /// As long as it cannot, the names of its last list stay reserved: no other source offers a tool under them.
    fn health(&self) -> SourceHealth {
        SourceHealth::Up
    }

    /// Closes the source: ends its processes and connections. Called once, after the participant has left the room and
    /// its calls have ended. It may take [`SOURCE_CLOSE`](crate::tools::SOURCE_CLOSE). Default: does nothing.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is over. Whatever still runs then must end when the source is dropped.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Checks whether the source can be offered. Called once, at `join`. Default: `Ok`.
    ///
    /// # Errors
    /// The reason why it cannot be offered; `join` returns this error.
    fn check(&self) -> Result<(), RegisterError> {
        Ok(())
    }

    /// Returns the same tools with `prefix` and a dot before each name, for two sources with equal names.
    fn prefixed(self, prefix: &str) -> Prefixed<Self>
    where
        Self: Sized,
    {
        Prefixed { source: self, prefix: format!("{prefix}.") }
    }
}

impl<T: ToolSource> ToolSource for Arc<T> {
    fn list(&self) -> Vec<Tool> {
        (**self).list()
    }

    fn execute(
        &self,
        tool: &ToolName,
        arguments: Value,
        context: ToolContext,
    ) -> impl Future<Output = Outcome> + Send {
        (**self).execute(tool, arguments, context)
    }

    fn changed(&self) -> impl Future<Output = ()> + Send {
        (**self).changed()
    }

    fn uses_cancel_grace(&self, tool: &ToolName) -> bool {
        (**self).uses_cancel_grace(tool)
    }

    fn validates_arguments(&self) -> bool {
        (**self).validates_arguments()
    }

    fn notes(&self) -> Vec<String> {
        (**self).notes()
    }

    fn name(&self) -> Option<String> {
        (**self).name()
    }

    fn health(&self) -> SourceHealth {
        (**self).health()
    }

    fn close(&self) -> impl Future<Output = ()> + Send {
        (**self).close()
    }

    fn check(&self) -> Result<(), RegisterError> {
        (**self).check()
    }
}

/// A source whose tool names have a prefix: see [`ToolSource::prefixed`].
#[derive(Clone, Debug)]
pub struct Prefixed<T> {
    source: T,
    prefix: String,
}

impl<T> Prefixed<T> {
    fn inner(&self, tool: &ToolName) -> Result<ToolName, InvalidToolName> {
        tool.as_str().strip_prefix(&self.prefix).unwrap_or_default().parse()
    }
}

impl<T: ToolSource> ToolSource for Prefixed<T> {
    fn list(&self) -> Vec<Tool> {
        let rename = |tool: Tool| match format!("{}{}", self.prefix, tool.name()).parse() {
            Ok(name) => Some(tool.renamed(name)),
            Err(error) => {
                tracing::warn!(prefix = self.prefix, tool = %tool.name(), %error, "not offered under this prefix");
                None
            }
        };
        self.source.list().into_iter().filter_map(rename).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let tool = self.inner(tool).map_err(ToolError::internal)?;
        self.source.execute(&tool, arguments, context).await
    }

    fn changed(&self) -> impl Future<Output = ()> + Send {
        self.source.changed()
    }

    fn uses_cancel_grace(&self, tool: &ToolName) -> bool {
        self.inner(tool).is_ok_and(|tool| self.source.uses_cancel_grace(&tool))
    }

    fn validates_arguments(&self) -> bool {
        self.source.validates_arguments()
    }

    fn notes(&self) -> Vec<String> {
        self.source.notes()
    }

    fn name(&self) -> Option<String> {
        self.source.name()
    }

    fn health(&self) -> SourceHealth {
        self.source.health()
    }

    fn close(&self) -> impl Future<Output = ()> + Send {
        self.source.close()
    }

    fn check(&self) -> Result<(), RegisterError> {
        self.source.check()?;
        for tool in self.source.list() {
            format!("{}{}", self.prefix, tool.name()).parse::<ToolName>()?;
        }
        Ok(())
    }
}

/// The context of a running tool: describes its call, and reports progress to the caller.
///
/// ```
/// # async fn copy() {}
/// use toolbridge::{ToolContext, ToolError};
///
/// async fn export(context: ToolContext) -> Result<u32, ToolError> {
///     for n in 0..3 {
///         if context.is_cancelled() {
///             return Err(ToolError::cancelled()); // after tidying up
///         }
///         context.progress(format!("{n} of 3"));
///         copy().await;
///     }
///     Ok(3)
/// }
/// ```
#[derive(Clone)]
pub struct ToolContext {
    caller: Identity,
    call: CallId,
    deadline: std::time::Instant,
    stop: StopSignal,
    report: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    warning: Option<Arc<dyn Fn(String) + Send + Sync>>,
    trace: Option<TraceContext>,
    meta: Value,
    asker: Option<Asker>,
    reporter: Option<Reporter>,
}

/// Asks a person: it gets the reserved tool, its parameters, and the context of the question.
pub(crate) type Asker =
    Arc<dyn Fn(ToolName, Value, ToolContext) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

impl ToolContext {
    /// Creates a context for calling a source directly. Its progress is discarded.
    pub fn new(caller: impl Into<Identity>, limit: Duration) -> Self {
        let now = tokio::time::Instant::now().into_std();
        Self {
            caller: caller.into(),
            call: CallId::known("local"),
            deadline: now.checked_add(limit).unwrap_or_else(|| now + FAR),
            stop: StopSignal::default(),
            report: None,
            warning: None,
            trace: None,
            meta: Value::empty(),
            asker: None,
            reporter: None,
        }
    }

    /// Sets the id of the call.
    #[must_use]
    pub fn with_call_id(mut self, call: CallId) -> Self {
        self.call = call;
        self
    }

    /// Sets the deadline, by the clock that tokio can pause.
    #[must_use]
    pub fn with_deadline(mut self, deadline: std::time::Instant) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets a token that cancels the call.
    #[must_use]
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.stop = StopSignal::of(token);
        self
    }

    pub(crate) fn with_stop(mut self, stop: StopSignal) -> Self {
        self.stop = stop;
        self
    }

    /// Sets a function that receives the progress.
    #[must_use]
    pub fn with_progress(mut self, report: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.report = Some(Arc::new(report));
        self
    }

    /// Sets a function that receives the warnings.
    #[must_use]
    pub fn with_warnings(mut self, report: impl Fn(String) + Send + Sync + 'static) -> Self {
        self.warning = Some(Arc::new(report));
        self
    }

    /// Sets the trace context.
    #[must_use]
    pub fn with_trace(mut self, context: impl Into<Option<TraceContext>>) -> Self {
        self.trace = context.into();
        self
    }

    /// Sets the metadata of the caller's request: a map.
    #[must_use]
    pub fn with_meta(mut self, meta: Value) -> Self {
        self.meta = meta;
        self
    }

    pub(crate) fn with_asker(mut self, asker: Option<Asker>) -> Self {
        self.asker = asker;
        self
    }

    /// Sets what [`reporter`](Self::reporter) returns.
    #[must_use]
    pub fn with_reporter(mut self, reporter: impl Into<Option<Reporter>>) -> Self {
        self.reporter = reporter.into();
        self
    }

    /// Sets a function that answers [`ask`](Self::ask), for calling a source directly.
    #[must_use]
    pub fn with_answers<F, Fut>(self, answer: F) -> Self
    where
        F: Fn(Prompt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<PromptAnswer, ToolError>> + Send + 'static,
    {
        let answer = Arc::new(answer);
        let asker: Asker = Arc::new(move |tool, parameters, _| {
            let answer = Arc::clone(&answer);
            Box::pin(async move {
                let prompt = Prompt::read(&tool, &parameters)?;
                let answered = answer(prompt.clone()).await?;
                prompt.answered(&answered)
            })
        });
        self.with_asker(Some(asker))
    }

    /// Returns what reports calls of another system and views to the room, at an assistant. A client cannot report.
    ///
    /// It may be kept after the call.
    pub fn reporter(&self) -> Option<&Reporter> {
        self.reporter.as_ref()
    }

    /// Reports something odd that does not affect the call, such as a result of an unexpected form. The first warning of a
    /// call becomes an [`Event::ToolWarning`](crate::Event::ToolWarning) of the local participant; nothing is sent. It is
    /// cut to 1 KiB.
    pub fn warn(&self, text: &str) {
        if let Some(report) = &self.warning {
            report(crate::value::prefix(text, MAX_WARNING).to_owned());
        }
    }

    /// Asks the person a question, within the remaining time of the call.
    ///
    /// At a client, its own [prompt function](crate::ClientBuilder::prompt) asks. At an assistant with a
    /// [prompt function](crate::AssistantBuilder::prompt) that function asks, otherwise a client: the only one that
    /// answers prompts, or the one that the [selection policy](crate::session::SelectionPolicy) gives.
    ///
    /// # Errors
    /// The question exceeds a limit, or nobody can be asked: the client has no prompt function, or no client answers
    /// prompts, or several do and no policy selects one. The message names them. A call that is stopped dismisses the
    /// question.
    ///
    /// # Cancel safety
    /// Dropping the future dismisses the question.
    ///
    /// ```
    /// use toolbridge::{prompt::ChoicePrompt, ToolContext, ToolError};
    ///
    /// async fn order(context: ToolContext) -> Result<String, ToolError> {
    ///     let ask = ChoicePrompt::new("Which size?", ["small", "large"]);
    ///     let answer = context.ask(ask.clone()).await?;
    ///     let size = ask.chosen(&answer).ok_or("the person chose no size")?;
    ///     Ok(format!("{size:?} is ordered"))
    /// }
    /// # let _ = order;
    /// ```
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<PromptAnswer, ToolError> {
        let prompt = prompt.into();
        let tool: ToolName = prompt.tool().parse().map_err(ToolError::internal)?;
        let parameters = prompt.parameters()?;
        Prompt::read(&tool, &parameters)?; // checks the limits
        let Some(asker) = &self.asker else {
            return Err(ToolError::new(
                ErrorCode::EXECUTION_ERROR,
                "the tool has a question for a person, and nobody can be asked here",
            ));
        };
        let context = Self { asker: None, report: None, ..self.clone() };
        tokio::select! {
            biased;
            answer = asker(tool, parameters, context) => Ok(answer?.decode()?),
            () = self.cancelled() => Err(ToolError::cancelled()),
        }
    }

    /// Returns a value of the metadata that the caller sent with its request
    /// ([`CallBuilder::meta`](crate::CallBuilder::meta)), by its key or by a path as in [`Value::get`].
    pub fn meta(&self, key: &str) -> Option<Value> {
        self.meta.get(key)
    }

    /// Returns the trace context that the caller sent: the caller's own span.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Returns the identity of the caller.
    pub fn caller(&self) -> &Identity {
        &self.caller
    }

    /// Returns the call's id.
    pub fn call_id(&self) -> &CallId {
        &self.call
    }

    /// Returns when the call ends as a timeout.
    pub fn deadline(&self) -> std::time::Instant {
        self.deadline
    }

    /// Returns the remaining time; zero after the deadline.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(tokio::time::Instant::now().into_std())
    }

    /// Returns whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Returns why the call was cancelled, or `None` if it was not.
    pub fn stopped(&self) -> Option<StopReason> {
        self.stop.reason()
    }

    /// Resolves when the call is cancelled.
    ///
    /// # Cancel safety
    /// Safe: dropping it loses nothing.
    pub async fn cancelled(&self) {
        self.stop.stopped().await;
    }

    /// Reports progress to the caller. At most ten reports a second are sent; the last one is never dropped.
    pub fn progress(&self, progress: impl Into<Progress>) {
        if let Some(report) = &self.report {
            report(progress.into());
        }
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("caller", &self.caller)
            .field("call", &self.call)
            .field("deadline", &self.deadline)
            .field("stopped", &self.stopped())
            .finish_non_exhaustive()
    }
}

/// A source behind a pointer, as the executor holds it.
pub(crate) trait AnySource: Send + Sync + 'static {
    fn list(&self) -> Vec<Tool>;
    fn execute<'a>(
        &'a self,
        tool: &'a ToolName,
        arguments: Value,
        context: ToolContext,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    fn uses_cancel_grace(&self, tool: &ToolName) -> bool;
    fn validates_arguments(&self) -> bool;
    fn notes(&self) -> Vec<String>;
    fn name(&self) -> Option<String>;
    fn health(&self) -> SourceHealth;
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    fn check(&self) -> Result<(), RegisterError>;
}

impl<T: ToolSource> AnySource for T {
    fn list(&self) -> Vec<Tool> {
        ToolSource::list(self)
    }

    fn execute<'a>(
        &'a self,
        tool: &'a ToolName,
        arguments: Value,
        context: ToolContext,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>> {
        Box::pin(ToolSource::execute(self, tool, arguments, context))
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(ToolSource::changed(self))
    }

    fn uses_cancel_grace(&self, tool: &ToolName) -> bool {
        ToolSource::uses_cancel_grace(self, tool)
    }

    fn validates_arguments(&self) -> bool {
        ToolSource::validates_arguments(self)
    }

    fn notes(&self) -> Vec<String> {
        ToolSource::notes(self)
    }

    fn name(&self) -> Option<String> {
        ToolSource::name(self)
    }

    fn health(&self) -> SourceHealth {
        ToolSource::health(self)
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(ToolSource::close(self))
    }

    fn check(&self) -> Result<(), RegisterError> {
        ToolSource::check(self)
    }
}
