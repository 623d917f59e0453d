//! Reports what a tool sends without being asked: events of subscriptions, late results, and views. Only an
//! assistant can show them to its model and to the room.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::{
    Outcome, ToolContext, ToolName,
    adapter::rap::{RapResult, document::Event},
    tools::{ReportError, Reporter},
    value::prefix,
};

/// The longest name of a toolset in the name of a view, in bytes.
const MAX_SOURCE: usize = 64;

/// Reports on behalf of a call, also after its end.
#[derive(Clone)]
pub(super) struct Reports {
    /// The name of the toolset.
    source: Arc<str>,
    reporter: Option<Reporter>,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The room has it.
    Now,
    /// The room has too many reports now, and may take it later.
    NotNow,
    /// The room never gets it.
    Never,
}

impl Told {
    fn of(what: &str, done: &Result<(), ReportError>) -> Self {
        let Err(error) = done else { return Self::Now };
        tracing::debug!(%error, "{what}");
        match error {
            ReportError::TooOften { .. } | ReportError::TooMany { .. } => Self::NotNow,
            _ => Self::Never,
        }
    }
}

/// The call that a report belongs to.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) id: String,
    pub(super) tool: ToolName,
}

impl Reports {
    pub(super) fn of(context: &ToolContext, source: &Arc<str>) -> Self {
        Self { source: Arc::clone(source), reporter: context.reporter().cloned() }
    }

    pub(super) fn can_report(&self) -> bool {
        self.reporter.is_some()
    }

    /// Reports an event of a subscription.
    pub(super) fn event(&self, origin: &Origin, event: &Event, json: &str) -> Told {
        let Ok(result) = RapResult::of_event(json) else { return Told::Never };
        let about = json!({
            "call": origin.id,
            "tool": origin.tool.as_str(),
            "event": "subscription",
            "associative": event.is_associative,
            "final": event.is_final,
        });
        self.report(&about, Ok(result.to_value()))
    }

    /// Reports a result that came after the time of its call.
    pub(super) fn late(&self, origin: &Origin, result: RapResult) -> Told {
        let about = json!({"call": origin.id, "tool": origin.tool.as_str(), "event": "late_result"});
        self.report(&about, result.into_outcome())
    }

    /// Shows a view of this toolset. Empty content ends it. Returns whether the room got it.
    pub(super) fn view(&self, view: &str, content: &Json) -> bool {
        let Some(reporter) = &self.reporter else { return false };
        let is_empty = content.as_object().is_some_and(serde_json::Map::is_empty);
        let content = if is_empty { &Json::Null } else { content };
        let view = format!("{}/{view}", prefix(&self.source, MAX_SOURCE));
        Told::of("a view was not shown", &reporter.show_view(&view, content, None)) == Told::Now
    }

    fn report(&self, about: &Json, outcome: Outcome) -> Told {
        let Some(reporter) = &self.reporter else { return Told::Never };
        let reported = reporter.report(ToolName::EVENT, about).start();
        Told::of("an event was not reported", &reported.map(|reported| reported.finish(outcome)))
    }
}
