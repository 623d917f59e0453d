//! Reads an agent's call as a result and an outcome of the room.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::{
    Outcome, ToolError, ToolResult, Value,
    adapter::acp::document::{CallStatus, ToolCall},
    result::{Audience, ContentBlock, Diff, Display, DisplayContent, Native, ToolSystem},
    tool::{PublicText, public::is_hidden},
};

/// What is known of a terminal that a call shows.
#[derive(Clone, Debug, Default)]
pub(in crate::adapter::acp) struct TerminalOutput {
    /// What its command has written.
    pub(in crate::adapter::acp) output: Option<String>,
    /// The exit code of its command, if it has ended.
    pub(in crate::adapter::acp) exit_code: Option<i32>,
}

impl ToolCall {
    /// Returns the result of the call: its content, `rawOutput` as [structured](ToolResult::structured) data, its diffs
    /// and terminals as [displays](ToolResult::display), and all of it as the [native](ToolResult::native) document.
    ///
    /// Without content and output the title is the text for the model. Content of unknown types is kept.
    pub fn result(&self) -> ToolResult {
        self.result_with(|_| TerminalOutput::default())
    }

    /// Returns the result, with the output of terminals.
    pub(in crate::adapter::acp) fn result_with(
        &self,
        terminal: impl Fn(&str) -> TerminalOutput,
    ) -> ToolResult {
        let mut result = ToolResult::default();
        let content = self.field("content");
        for (at, item) in content.iter().filter_map(Json::as_array).flatten().enumerate() {
            result = add(result, item, at, &terminal);
        }
        if let Some(output) = self.field("rawOutput") {
            result = result.with_structured(output);
        }
        if result.content().is_empty() && result.structured().is_none() {
            // Displays are for people: the model must read something, too.
            result = result.with_text(self.title().unwrap_or_else(|| "The call has ended.".to_owned()));
        }
        result.with_native(Native::new(ToolSystem::ACP, self.write()))
    }

    /// Returns the outcome of the call, or `None` if its status is not final. A failed call is `execution_error` with its
    /// first text as message, otherwise the JSON of its output, otherwise its title, and the result as partial result.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome_with(|_| TerminalOutput::default())
    }

    /// Returns the outcome, with the output of terminals.
    pub(in crate::adapter::acp) fn outcome_with(
        &self,
        terminal: impl Fn(&str) -> TerminalOutput,
    ) -> Option<Outcome> {
        match self.status() {
            CallStatus::Completed => Some(Ok(self.result_with(terminal).to_value())),
            CallStatus::Failed => {
                let result = self.result_with(terminal);
                let text = |public: &PublicText| {
                    public.first_text().map(str::to_owned).or_else(|| public.words()).or_else(|| self.title())
                };
                Some(Err(ToolError::of_result(&result, text, "the agent's tool failed")))
            }
            _ => None,
        }
    }
}

/// Adds an item of the content.
fn add(result: ToolResult, item: &Json, at: usize, terminal: &impl Fn(&str) -> TerminalOutput) -> ToolResult {
    let text = |key: &str| item[key].as_str();
    match text("type") {
        Some("content") => {
            let read = block(&item["content"], format!("/content/{at}/content"));
            result.with_block(if is_hidden(item) { read.with_audience(Audience::Model) } else { read })
        }
        Some("diff") if text("path").is_some() && text("newText").is_some() => {
            let path: Arc<str> = text("path").unwrap_or_default().into();
            let diff = Diff {
                path: Arc::clone(&path),
                patch: None,
                old_text: text("oldText").map(Into::into),
                new_text: text("newText").map(Into::into),
            };
            result.with_display(Display::new(DisplayContent::Diff(diff)).with_title(path))
        }
        Some("terminal") if text("terminalId").is_some() => {
            let id = text("terminalId").unwrap_or_default();
            let TerminalOutput { output, exit_code } = terminal(id);
            let output = output.map(Into::into);
            result.with_display(Display::new(DisplayContent::Terminal { id: id.into(), output, exit_code }))
        }
        _ => result.with_block(block(item, format!("/content/{at}"))),
    }
}

fn block(item: &Json, place: String) -> ContentBlock {
    let read = ContentBlock::from_value(&Value::from(item.clone()));
    // Other values are carried without fields.
    if item.is_object() || item.is_string() { read.with_native_pointer(place) } else { read }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ErrorCode, result::BlockKind};

    fn call(json: &Json) -> ToolCall {
        ToolCall::read(&json.to_string()).unwrap()
    }

    #[test]
    fn acp_c5_items_keep_their_order_and_type() {
        let text = json!({"type": "content", "content": {"type": "text", "text": "done"}});
        let image =
            json!({"type": "content", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}});
        let link =
            json!({"type": "content", "content": {"type": "resource_link", "uri": "file:///x", "name": "x"}});
        let diff = json!({"type": "diff", "path": "/x", "oldText": null, "newText": "a"});
        let changed = json!({"type": "diff", "path": "/y", "oldText": "a\n", "newText": "b\n"});
        let terminal = json!({"type": "terminal", "terminalId": "t1"});
        let odd = json!({"type": "hologram", "beam": 1});
        let document =
            json!({"status": "completed", "content": [text, diff, image, terminal, link, changed, odd]});
        let call = call(&document);
        let result =
            call.result_with(|id| TerminalOutput { output: Some(format!("of {id}")), exit_code: Some(3) });
        let kinds: Vec<_> = result.content().iter().map(ContentBlock::kind).collect();
        assert!(
            matches!(
                kinds[..],
                [BlockKind::Text(_), BlockKind::Image(_), BlockKind::Link { .. }, BlockKind::Other]
            ),
            "{kinds:?}"
        );
        let [
            DisplayContent::Diff(new),
            DisplayContent::Terminal { id, output, exit_code },
            DisplayContent::Diff(old),
        ] = &result.display().iter().map(|it| it.content().clone()).collect::<Vec<_>>()[..]
        else {
            panic!("{result:?}")
        };
        assert_eq!((&*new.path, new.old_text.as_deref(), new.new_text.as_deref()), ("/x", None, Some("a")));
        assert_eq!((old.old_text.as_deref(), old.new_text.as_deref()), (Some("a\n"), Some("b\n")));
        assert_eq!((&**id, output.as_deref(), *exit_code), ("t1", Some("of t1"), Some(3)));
        assert_eq!(result.native().unwrap().json(), document.to_string());
        // The wire keeps all of it.
        let again = ToolResult::of(&result.to_value());
        assert_eq!(again.native().unwrap().json(), document.to_string());
        assert_eq!(again.for_model(100).text, result.for_model(100).text);
    }

    #[test]
    fn acp_c4_output_is_structured_data_also_null() {
        let structured = |document: Json| call(&document).result().structured().map(Value::to_json);
        assert_eq!(structured(json!({"rawOutput": null})), Some(Json::Null));
        assert_eq!(structured(json!({"rawOutput": [1, {"a": 2.5}]})), Some(json!([1, {"a": 2.5}])));
        assert_eq!(structured(json!({})), None);
    }

    #[test]
    fn acp_c7_final_status_is_the_outcome() {
        assert!(call(&json!({"status": "in_progress"})).outcome().is_none());
        let done = call(&json!({"status": "completed", "title": "Look"})).outcome().unwrap().unwrap();
        assert_eq!(ToolResult::of(&done).for_model(100).text, "Look");
        let text = json!([{"type": "content", "content": {"type": "text", "text": "no such file"}}]);
        let failed = call(&json!({"status": "failed", "title": "Look", "content": text}));
        let error = failed.outcome().unwrap().unwrap_err();
        assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, "no such file"));
        assert!(error.partial().is_some());
        let error = call(&json!({"status": "failed", "title": "Look"})).outcome().unwrap().unwrap_err();
        assert_eq!(error.message(), "Look");
    }
}
