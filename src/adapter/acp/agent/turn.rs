//! Runs one prompt of the person at an editor, and the calls that are made for it.

use std::{
    fmt,
    future::{Future, IntoFuture},
    path::Path,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{
    super::{
        document::KINDS,
        result::write::{self, Fields},
        text,
    },
    open_turn::Turn,
    question,
};
use crate::{
    Assistant, CallBuilder, CallError, Identity, Progress, Tool, ToolError, Value,
    prompt::{Prompt, PromptAnswer},
};

/// The turn of an agent: what it says, and the calls that it makes. It is a handle, and clones are the same turn.
///
/// When the turn is over, nothing more is sent to the editor, and its calls are cancelled.
#[derive(Clone)]
pub struct AgentTurn {
    pub(super) turn: Arc<Turn>,
    pub(super) assistant: Assistant,
}

impl AgentTurn {
    /// Says a part of the answer. It is Markdown, and parts are joined as they are.
    ///
    /// # Cancel safety
    /// Safe: it waits until the editor reads, and dropping the future before that says nothing.
    pub async fn say(&self, text: impl Into<String>) {
        self.chunk("agent_message_chunk", text.into()).await;
    }

    /// Says a part of what the model thinks, which editors show apart from the answer.
    ///
    /// # Cancel safety
    /// As [`say`](Self::say).
    pub async fn think(&self, text: impl Into<String>) {
        self.chunk("agent_thought_chunk", text.into()).await;
    }

    /// Creates a call of a tool in the room, to be awaited. The editor sees it with its progress and its result.
    pub fn call(&self, tool: &str, arguments: impl Serialize) -> AgentCall {
        let raw_input = Value::encode(&arguments).ok().filter(|it| !it.is_nil());
        AgentCall {
            turn: self.clone(),
            builder: self.assistant.call(tool, arguments),
            tool: tool.to_owned(),
            raw_input,
            title: None,
            kind: None,
            locations: Vec::new(),
        }
    }

    /// Asks the person at the editor: a permission as such, other questions as a form or an address, if the editor can show
    /// it. A choice is otherwise asked like a permission, with the choices as its options.
    ///
    /// # Errors
    /// The editor cannot ask this, or has refused to, or 8 questions are open already. A turn that is cancelled answers
    /// every question as dismissed.
    ///
    /// # Cancel safety
    /// Dropping the future dismisses the question.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<PromptAnswer, ToolError> {
        question::ask(&self.turn, None, &prompt.into()).await
    }

    /// Returns the folder of the session, an absolute path that the editor has given.
    pub fn folder(&self) -> &Path {
        &self.turn.folder
    }

    /// Returns whether the person has cancelled the turn. Its calls are cancelled with it.
    pub fn is_cancelled(&self) -> bool {
        self.turn.cancelled.is_cancelled()
    }

    /// Resolves when the person cancels the turn. The future of the turn has 5 s to end then.
    ///
    /// # Cancel safety
    /// Safe: dropping it loses nothing.
    pub async fn cancelled(&self) {
        self.turn.cancelled.cancelled().await;
    }

    async fn chunk(&self, kind: &str, text: String) {
        if !text.is_empty() {
            let content = json!({"type": "text", "text": text});
            self.turn.send(json!({"sessionUpdate": kind, "content": content})).await;
        }
    }
}

impl fmt::Debug for AgentTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentTurn")
            .field("session", &self.turn.session)
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// A call that has not begun: see [`AgentTurn::call`].
#[must_use = "a call is made when it is awaited"]
pub struct AgentCall {
    turn: AgentTurn,
    builder: CallBuilder,
    tool: String,
    raw_input: Option<Value>,
    title: Option<String>,
    kind: Option<String>,
    locations: Vec<(String, Option<u32>)>,
}

impl AgentCall {
    /// Sets what the call does, for the person. Default: the tool's title, otherwise its name.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the kind: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `switch_mode` or `other`.
    /// Default: `read` for a tool that only reads, otherwise `other`.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Adds a file that the call reads or changes. Lines count from 1.
    pub fn location(mut self, path: impl Into<String>, line: impl Into<Option<u32>>) -> Self {
        self.locations.push((path.into(), line.into()));
        self
    }

    /// Sends the call to this participant, whichever others offer the tool.
    pub fn to(mut self, owner: impl Into<Identity>) -> Self {
        self.builder = self.builder.to(owner);
        self
    }

    /// Sets the total time limit: see [`CallBuilder::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.builder = self.builder.timeout(limit);
        self
    }

    async fn run(self) -> Result<Value, CallError> {
        let turn = Arc::clone(&self.turn.turn);
        let begun = self.begun();
        let Some(room) = turn.connection.room().await else { return Err(CallError::Cancelled) };
        if turn.over.is_cancelled() || turn.cancelled.is_cancelled() {
            return Err(CallError::Cancelled);
        }
        let (mut call, id) = turn.begin_call(room, begun, || {
            let call = self.builder.start();
            let id = call.id().map(ToString::to_string);
            (call, id.unwrap_or_else(|| format!("refused-{}", nanoid::nanoid!(10))))
        });
        let reporting = async {
            while let Some(step) = call.progress().await {
                turn.change_call(&id, progress(&step, &turn.folder), false).await;
            }
        };
        let is_stopped = tokio::select! {
            biased;
            () = turn.cancelled.cancelled() => true,
            () = turn.over.cancelled() => true,
            () = reporting => false,
        };
        if is_stopped {
            call.cancel();
        }
        let outcome = call.await;
        let fields = match &outcome {
            Ok(value) => write::completed(value, &turn.folder),
            Err(error) => write::failed(error, &turn.folder),
        };
        turn.change_call(&id, fields, true).await;
        outcome
    }

    /// Returns what the editor learns of the call when it begins.
    fn begun(&self) -> Fields {
        let offers = self.turn.assistant.tools();
        let tool = offers.iter().map(|it| &it.tool).find(|it| it.name().as_str() == self.tool);
        let title = self.title.as_deref().or_else(|| tool?.title()).unwrap_or_default();
        let kind = self.kind.as_deref().filter(|it| KINDS.contains(it)).unwrap_or_else(|| kind_of(tool));
        let folder = &self.turn.turn.folder;
        let places = self.locations.iter();
        let places: Vec<Json> =
            places.filter_map(|(path, line)| write::location(path, line.map(u64::from), folder)).collect();
        let mut fields = Fields::from_iter([
            ("title".to_owned(), json!(text::title(title, &self.tool))),
            ("kind".to_owned(), json!(kind)),
            ("status".to_owned(), json!("pending")),
        ]);
        if let Some(input) = &self.raw_input {
            fields.insert("rawInput".to_owned(), input.to_json());
        }
        if !places.is_empty() {
            fields.insert("locations".to_owned(), places.into());
        }
        fields
    }
}

impl IntoFuture for AgentCall {
    type Output = Result<Value, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Makes the call.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call. The editor learns that when the turn is over.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for AgentCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentCall").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// Returns what a step of a call changes. Its content may name files: `{"locations": [{"path", "line"?}]}`.
fn progress(step: &Progress, folder: &Path) -> Fields {
    let mut fields = Fields::from_iter([("status".to_owned(), json!("in_progress"))]);
    let text = match (&step.message, step.done(), step.total()) {
        (Some(message), _, _) => Some(message.clone()),
        (None, Some(done), Some(total)) => Some(format!("{done} of {total}")),
        (None, Some(done), None) => Some(done.to_string()),
        _ => None,
    };
    if let Some(text) = text {
        fields.insert("content".to_owned(), write::message(&text));
    }
    if let Some(places) = step.content.as_ref().and_then(|it| it.get("locations")) {
        fields.insert("locations".to_owned(), write::locations(&places.to_json(), folder));
    }
    fields
}

fn kind_of(tool: Option<&Tool>) -> &'static str {
    match tool.map(Tool::tool_options) {
        Some(options) if options.read_only && !options.destructive => "read",
        _ => "other",
    }
}
