//! Shows the calls of an agent: in the room as reported calls, or as the progress of the agent's own call.

use std::{path::Path, sync::Arc};

use serde_json::{Value as Json, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::{
    Outcome, Progress, ToolContext, ToolError,
    adapter::acp::ToolCall,
    prompt::{MAX_PROMPT_TEXT, Prompt, PromptAnswer},
    tools::{NameMap, NameRules, Reported},
    value::prefix,
};

/// The longest name of an agent in the name of a view, in bytes.
const MAX_AGENT: usize = 64;

/// The longest kind of a call, in bytes: those of the protocol have at most 7.
const MAX_KIND: usize = 64;

/// The most locations that the request of a reported call names, in bytes of JSON.
const MAX_LOCATIONS: usize = 4 << 10;

/// The most steps of a plan that are shown.
const MAX_STEPS: usize = 32;

/// The longest step of a plan that is shown, in bytes.
const MAX_STEP: usize = 256;

/// The longest plan in a progress update, in bytes.
const MAX_PLAN: usize = 2 << 10;

/// The call of the room that runs the agent's turn.
#[derive(Clone)]
pub(super) struct TurnContext {
    context: ToolContext,
    /// The turn has ended or was cancelled.
    over: CancellationToken,
    /// Held by the question that is open.
    asking: Arc<Mutex<()>>,
}

/// The right to ask the person: a turn has one question open at a time, because clients refuse more than a few.
pub(super) struct Question<'a> {
    place: &'a TurnContext,
    _asking: MutexGuard<'a, ()>,
}

/// A call of the agent that is shown. Without a report, the progress of the agent's own call shows it.
pub(super) struct Shown(Option<Reported>);

impl TurnContext {
    pub(super) fn new(context: ToolContext) -> Self {
        Self { context, over: CancellationToken::new(), asking: Arc::default() }
    }

    /// Ends the turn: its open questions are withdrawn.
    pub(super) fn end(&self) {
        self.over.cancel();
    }

    /// Returns whether the turn has ended. What a person answers then has no effect.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled() || self.context.is_cancelled()
    }

    /// Waits until no other question of the turn is open.
    ///
    /// # Errors
    /// `cancelled`: the turn ends before.
    pub(super) async fn question(&self) -> Result<Question<'_>, ToolError> {
        let asking = self.while_open(async |_| Ok(self.asking.lock().await)).await?;
        Ok(Question { place: self, _asking: asking })
    }

    async fn while_open<T>(
        &self,
        asked: impl AsyncFnOnce(&ToolContext) -> Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        let answer = tokio::select! {
            biased;
            () = self.over.cancelled() => return Err(ToolError::cancelled()),
            answer = asked(&self.context) => answer,
        };
        if self.is_over() { Err(ToolError::cancelled()) } else { answer }
    }

    /// Shows a call whose input is known.
    pub(super) fn show(&self, call: &ToolCall) -> Shown {
        let Some(reporter) = self.context.reporter() else { return Shown(None) };
        let name = call.name().or_else(|| call.title()).unwrap_or_else(|| call.kind());
        let input = match call.field("rawInput") {
            None | Some(Json::Null) => json!({}),
            Some(map @ Json::Object(_)) => map,
            Some(other) => json!({ "value": other }),
        };
        let mut report = reporter.report(&in_room(&name), input);
        report = report.meta("bridge.acp.kind", prefix(&call.kind(), MAX_KIND));
        if let Some(title) = call.title() {
            report = report.meta("bridge.acp.title", prefix(&title, MAX_PROMPT_TEXT));
        }
        let locations = call.field("locations").filter(|it| it.as_array().is_some_and(|it| !it.is_empty()));
        // Values of `meta` are texts.
        if let Some(locations) = locations.map(|it| it.to_string()).filter(|it| it.len() <= MAX_LOCATIONS) {
            report = report.meta("bridge.acp.locations", locations);
        }
        let reported = report.start();
        if let Err(error) = &reported {
            tracing::debug!(%error, "a call of an agent is not reported");
        }
        Shown(reported.ok())
    }

    /// Reports progress of the agent's own call.
    pub(super) fn progress(&self, progress: Progress) {
        self.context.progress(progress);
    }

    /// Shows the plan of the agent: as a view of an assistant, and as progress.
    pub(super) fn plan(&self, agent: &str, entries: &Json) {
        let steps = entries.as_array().into_iter().flatten();
        let mark = |step: &Json| match step["status"].as_str() {
            Some("completed") => "✓",
            Some("in_progress") => "→",
            _ => "·",
        };
        let lines = steps.take(MAX_STEPS).map(|step| {
            format!("{} {}", mark(step), prefix(step["content"].as_str().unwrap_or_default(), MAX_STEP))
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        self.context.progress(prefix(&text, MAX_PLAN));
        self.view(agent, json!({ "entries": entries }), Some(&text));
    }

    /// Ends the view of the plan.
    pub(super) fn end_plan(&self, agent: &str) {
        self.view(agent, Json::Null, None);
    }

    fn view(&self, agent: &str, content: Json, text: Option<&str>) {
        let Some(reporter) = self.context.reporter() else { return };
        // Each agent has its own: the author and other agents show plans, too.
        let view = format!("{}/plan", prefix(agent, MAX_AGENT));
        if let Err(error) = reporter.show_view(&view, content, text) {
            tracing::debug!(%error, "the plan of an agent is not shown");
        }
    }

    /// Reports something odd.
    pub(super) fn warn(&self, text: &str) {
        self.context.warn(text);
    }

    /// Returns whether all paths of a call are absolute, as the protocol demands.
    pub(super) fn has_absolute(&self, call: &ToolCall) -> bool {
        let locations = call.field("locations");
        let content = call.field("content");
        let items = [&locations, &content].into_iter().flatten().filter_map(Json::as_array).flatten();
        items.filter_map(|item| item["path"].as_str()).all(|path| Path::new(path).is_absolute())
    }
}

impl Question<'_> {
    /// Asks the person. The question ends with the turn.
    pub(super) async fn ask(&self, prompt: impl Into<Prompt>) -> Result<PromptAnswer, ToolError> {
        self.while_open(async |context| context.ask(prompt).await).await
    }

    /// Does something that a person decides about, unless the turn ends before.
    pub(super) async fn while_open<T>(
        &self,
        asked: impl AsyncFnOnce(&ToolContext) -> Result<T, ToolError>,
    ) -> Result<T, ToolError> {
        self.place.while_open(asked).await
    }
}

/// Returns a name of an agent's tool, or its title, in the form that names of tools allow.
fn in_room(name: &str) -> String {
    let names = NameMap::new(NameRules::Tool, [name]);
    names.converted(name).unwrap_or("step").to_owned()
}

impl Shown {
    pub(super) fn progress(&self, progress: Progress) {
        if let Some(reported) = &self.0 {
            reported.progress(progress);
        }
    }

    pub(super) fn finish(self, outcome: Outcome) {
        if let Some(reported) = self.0 {
            reported.finish(outcome);
        }
    }
}
