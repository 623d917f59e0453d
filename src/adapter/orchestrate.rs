//! IBM watsonx Orchestrate: widgets and forms in results of MCP servers.

use serde_json::{Map, Value as Json};

use crate::Widget;

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

/// Returns the widget of a result. It has the same form in `_meta` as in its own key, except that IBM's class writes the
/// form as it was built to the latter.
pub(super) fn widget_of(document: &Map<String, Json>) -> Option<Widget> {
    let in_meta = document.get("_meta").and_then(|meta| meta.get(WIDGET));
    let widget =
        in_meta.filter(|it| !it.is_null()).or_else(|| document.get("widget").filter(|it| it.is_object()))?;
    let title =
        ["/json_schema/title", "/title", "/text"].iter().find_map(|place| widget.pointer(place)?.as_str());
    let built = Widget::new(widget);
    Some(match title {
        Some(title) => built.with_title(title),
        None => built,
    })
}
