//! Writes a result with parts, as a person sees and hears it, and the document that it comes from.

use serde_json::{Value, json};

use super::super::{
    super::decoded::can_be_shown,
    text::{MAX_TEXT, json_text, shown},
};
use crate::{
    protocol::frame::{Frame, Message},
    tool::{
        ToolResult,
        render::{self, Limits, Line, Section, SpanStyle},
    },
};

/// How much of a result is shown.
const LIMITS: Limits = Limits { lines: 200, line: 1_000, text: 16 << 10 };
/// How much of a view is shown.
pub(super) const VIEW: Limits = Limits { lines: 64, line: 400, text: 4 << 10 };
/// The longest native document, in bytes.
const MAX_NATIVE: usize = 16 << 10;

/// Returns a row about the result in a frame: its sections, the text that is spoken exactly, whether the model runs, and
/// the native document. A plain value has none, because the frame's body shows it.
pub(super) fn row(frame: &Frame) -> Option<Value> {
    if !can_be_shown(frame.as_bytes()) {
        return None;
    }
    let Ok(Message::ToolUseResult(message)) = frame.message() else { return None };
    let all = ToolResult::of(&message.result?);
    let result = all.for_clients();
    if all.is_plain_value() {
        return None;
    }
    let sections: Vec<Value> = render::result(&result, LIMITS).iter().map(section).collect();
    let spoken = result.spoken().map(|text| shown(&text, 4 * MAX_TEXT));
    let native = result.native().map(|native| {
        let (text, length) = json_text(native.json(), MAX_NATIVE);
        json!([shown(native.system().as_str(), MAX_TEXT), text, length])
    });
    Some(json!([sections, spoken, all.needs_model(), native]))
}

/// A section is its title, its note, whether it is collapsed, its lines, and how many are left out.
pub(super) fn section(section: &Section) -> Value {
    let lines: Vec<Value> = section.lines.iter().map(line).collect();
    json!([section.title, section.note, section.is_collapsed, lines, section.omitted])
}

/// A line is its style and its texts; a text with an style is a pair.
fn line(line: &Line) -> Value {
    let texts = line.spans.iter().map(|span| match span.style {
        SpanStyle::Plain => json!(span.text),
        style => json!([style as usize, span.text]),
    });
    std::iter::once(json!(line.style as usize)).chain(texts).collect()
}
