//! Where the calls of an agent are seen: in the room, as calls that are reported, or as the progress of the agent's own
//! call.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::{
    NameMap, NameRules, Outcome, Progress, Reported, ToolContext, adapter::acp::ToolCall, value::prefix,
};

/// The most steps of a plan that are shown.
const MAX_STEPS: usize = 32;

/// The longest step of a plan that is shown, in bytes.
const MAX_STEP: usize = 256;

/// The longest plan in a progress update, in bytes.
const MAX_PLAN: usize = 2 << 10;

/// The call of the room that runs the agent's turn.
#[derive(Clone)]
pub(super) struct Place {
    context: ToolContext,
}

/// A call of the agent that is shown. Without a report, the progress of the agent's own call shows it.
pub(super) struct Shown(Option<Reported>);

impl Place {
    pub(super) fn new(context: ToolContext) -> Self {
        Self { context }
    }

    /// Returns the context of the agent's own call.
    pub(super) fn context(&self) -> &ToolContext {
        &self.context
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
        let mut report = reporter.report(&in_room(&name), input).meta("bridge.acp.kind", call.kind());
        if let Some(title) = call.title() {
            report = report.meta("bridge.acp.title", title);
        }
        if let Some(locations) =
            call.field("locations").filter(|it| it.as_array().is_some_and(|it| !it.is_empty()))
        {
            // Values of `meta` are texts.
            report = report.meta("bridge.acp.locations", locations.to_string());
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

    /// Shows the plan of the agent: as the view `plan` of an assistant, otherwise as progress.
    pub(super) fn plan(&self, entries: &Json) {
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
        if let Some(reporter) = self.context.reporter() {
            let shown = reporter.show_view("plan", json!({ "entries": entries }), Some(&text));
            if let Err(error) = shown {
                tracing::debug!(%error, "the plan of an agent is not shown");
            }
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
