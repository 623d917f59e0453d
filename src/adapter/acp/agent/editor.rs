//! Asks the person at an editor on behalf of the assistant.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::{
    open_turn::{Turn, Turns},
    question,
};
use crate::{
    CallId, ConsentRequest, ErrorCode, Tool, ToolError,
    prompt::{PermissionPrompt, PromptAnswer, PromptRequest, PromptedCall},
};

/// The person at the editor of an [`agent`](super::agent): asked before a tool of the assistant runs, and what such a tool asks.
///
/// It exists before the assistant joins, and has an editor once the agent serves one. Before that, and between turns, the
/// answer is no.
///
/// ```no_run
/// # async fn serve(transport: impl toolbridge::transport::Transport) -> Result<(), Box<dyn std::error::Error>> {
/// use toolbridge::{Assistant, adapter::acp};
///
/// let editor = acp::Editor::new();
/// let builder = Assistant::builder().consent(editor.consent()).prompt(editor.prompt());
/// let assistant = builder.join_over(transport).await?;
/// acp::agent(assistant, |prompt, turn| async move {
///     turn.say(format!("You said {}.", prompt.text())).await;
///     Ok(acp::TurnEnd::EndTurn)
/// })
/// .editor(editor)
/// .stdio()
/// .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Editor(Arc<Mutex<Weak<Turns>>>);

impl Editor {
    /// Creates a person without an editor.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the function for [`AssistantBuilder::consent`](crate::AssistantBuilder::consent). The question names the
    /// call and its arguments; only the option "Allow" is a yes.
    pub fn consent(
        &self,
    ) -> impl Fn(ConsentRequest) -> Pin<Box<dyn Future<Output = bool> + Send>>
    + Clone
    + Send
    + Sync
    + 'static
    + use<> {
        let editor = self.clone();
        move |request| {
            let editor = editor.clone();
            Box::pin(async move { editor.allows(&request).await })
        }
    }

    /// Returns the function for [`AssistantBuilder::prompt`](crate::AssistantBuilder::prompt).
    pub fn prompt(
        &self,
    ) -> impl Fn(PromptRequest) -> Pin<Box<dyn Future<Output = Result<PromptAnswer, ToolError>> + Send>>
    + Clone
    + Send
    + Sync
    + 'static
    + use<> {
        let editor = self.clone();
        move |request| {
            let editor = editor.clone();
            Box::pin(async move {
                let Some((turn, call)) = editor.turn_of(request.call_id()) else {
                    let text = "nobody can be asked: the editor has no open turn";
                    return Err(ToolError::new(ErrorCode::EXECUTION_ERROR, text));
                };
                question::ask(&turn, call.as_deref(), request.prompt()).await
            })
        }
    }

    pub(super) fn attach(&self, turns: &Arc<Turns>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(turns);
    }

    async fn allows(&self, request: &ConsentRequest) -> bool {
        let Some((turn, call)) = self.turn_of(request.call_id()) else { return false };
        let tool = request.tool();
        let mut about = PromptedCall::new(tool.name().as_str()).raw_input(request.arguments().clone());
        about.title = Some(question(tool));
        let ask = PermissionPrompt::new(about).option("allow", "Allow", "allow_once").option(
            "reject",
            "Reject",
            "reject_once",
        );
        let answer = question::ask(&turn, call.as_deref(), &ask.clone().into()).await;
        answer.is_ok_and(|answer| ask.chosen(&answer).is_some_and(|option| option.allows()))
    }

    /// Returns the turn that has made a call, and the call's id; otherwise the only open turn.
    fn turn_of(&self, call: &CallId) -> Option<(Arc<Turn>, Option<String>)> {
        let turns = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        let (turn, is_own) = turns.of_call(call.as_str())?;
        Some((turn, is_own.then(|| call.to_string())))
    }
}

/// Returns the question whether a tool may run. A title comes from the tool's source, so it does not stand for the name.
fn question(tool: &Tool) -> String {
    let name = tool.name().as_str();
    let source = tool.source().map(|source| format!("{source}: ")).unwrap_or_default();
    match tool.title().filter(|title| *title != name) {
        Some(title) => format!("{source}Run {name} ({title})?"),
        None => format!("{source}Run {name}?"),
    }
}

impl fmt::Debug for Editor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Editor").finish_non_exhaustive()
    }
}
