//! Lays out the state of a view.

use serde_json::Value as Json;

use super::{
    json_section,
    lines::{Limits, Line, LineStyle, Page, Section},
};
use crate::value::Value;

/// Returns what a person sees of a view: the steps of a plan, otherwise its text, otherwise its content as JSON. A view that
/// has ended has no lines.
pub fn view(name: &str, content: &Value, text: Option<&str>, limits: Limits) -> Section {
    let mut page = Page::new(limits);
    if content.is_nil() {
        page.section(name, "ended");
    } else {
        let content = content.to_json();
        match (steps(&content), text.filter(|text| !text.trim().is_empty())) {
            (Some(steps), _) => {
                let done = steps.iter().filter(|step| step["status"] == "completed").count();
                let note = format!("plan, {done} of {} done", steps.len());
                page.section(name, &note).extend(steps.iter(), |step| Line::of(LineStyle::Plain, line(step)));
            }
            (None, Some(text)) => page.section(name, "").text(LineStyle::Plain, text),
            (None, None) => json_section(&mut page, name, &content.to_string()),
        }
    }
    let mut section = page.sections.pop().unwrap_or_default();
    if section.note.is_empty() {
        section.note = "view".to_owned();
    }
    section
}

/// Returns the steps of a plan, in the form that the Agent Client Protocol gives it.
fn steps(content: &Json) -> Option<&Vec<Json>> {
    let steps = content["entries"].as_array()?;
    let is_step = |step: &Json| step["content"].is_string() && step["status"].is_string();
    (!steps.is_empty() && steps.iter().all(is_step)).then_some(steps)
}

fn line(step: &Json) -> String {
    let mark = match step["status"].as_str() {
        Some("completed") => "✓",
        Some("in_progress") => "→",
        _ => "·",
    };
    format!("{mark} {}", step["content"].as_str().unwrap_or_default())
}
