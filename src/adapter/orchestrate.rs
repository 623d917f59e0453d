//! Supports IBM watsonx Orchestrate: widgets and forms in results of MCP servers.
//!
//! A result of such a server is read by [`CallToolResult`](crate::adapter::mcp::CallToolResult), which keeps its widget
//! as it is. [`Form::of`] reads a widget that asks a person for something: a form, or one of the five customer-care
//! widgets. It becomes a question for a screen ([`Form::prompt`]) or one that is spoken ([`Dialog`]), and the answer
//! becomes the call that the widget asks for ([`Form::submit`]).

mod check;
mod dialog;
mod form;
mod input;
mod read;
mod spoken;

use serde_json::{Map, Value as Json};

use crate::result::Widget;

pub use dialog::Dialog;
pub use form::{Form, FormError, Submission};
pub use input::{Choice, Input, InputKind};

/// The key of `_meta` that holds a widget.
pub(super) const WIDGET: &str = "com.ibm.orchestrate/widget";

/// The prefix of watsonx Orchestrate's keys in `_meta`.
const PREFIX: &str = "com.ibm.orchestrate/";

/// Returns whether a result has fields of watsonx Orchestrate.
pub(super) fn is_document(document: &Map<String, Json>) -> bool {
    let meta = document.get("_meta").and_then(Json::as_object);
    meta.is_some_and(|meta| meta.keys().any(|key| key.starts_with(PREFIX)))
        || document.contains_key("widget")
        || document.contains_key("context_updates")
}

/// Returns the widget of a result: that in `_meta`, otherwise that of its own key.
///
/// IBM's class writes both. The latter lacks what the inputs have beyond their names, so it does not count as a form.
pub(super) fn widget_of(document: &Map<String, Json>) -> Option<Widget> {
    let in_meta = document.get("_meta").and_then(|meta| meta.get(WIDGET)).filter(|it| !it.is_null());
    let widget = in_meta.or_else(|| document.get("widget").filter(|it| it.is_object()))?;
    let places = ["/json_schema/title", "/title"];
    let title = places.iter().find_map(|place| widget.pointer(place)?.as_str());
    let built = Widget::new(widget);
    Some(match title {
        Some(title) => built.with_title(title),
        None => built,
    })
}
