//! Writes results and failures as MCP documents (`CallToolResult`).

use serde_json::{Value as Json, json};

use super::conform::{Document, fit, fit_structured};
use crate::{
    ErrorCode, ToolError, ToolResult, Value,
    adapter::{json::object, mcp::CallToolResult},
    tool::model_text,
};

/// The error's code, in `_meta`.
const CODE: &str = "dev.toolbridge/errorCode";

/// Whether the tool may have run, in `_meta`.
const MAY_HAVE_RUN: &str = "dev.toolbridge/mayHaveRun";

/// What the model reads before a result that lacks the data that its tool declares.
const NO_DATA: &str =
    "The tool has run, and its result lacks the structured data that it declares. It returned:";

/// Returns the document of a call's value.
pub(super) fn of_value(value: &Value) -> Document {
    document(&ToolResult::of(value).into())
}

/// Returns the document of a value of a tool that declares the form of its data. Hosts refuse a result without the data as a
/// whole, so that their model would read nothing: it becomes an error with the same content.
pub(super) fn of_promised(value: &Value) -> Document {
    let mut document = of_value(value);
    let is_error = document.get("isError") == Some(&json!(true));
    if is_error || document.get("structuredContent").is_some_and(|data| !data.is_null()) {
        return document;
    }
    if let Some(Json::Array(content)) = document.get_mut("content") {
        content.insert(0, json!({"type": "text", "text": NO_DATA}));
    }
    mark(&mut document, &ErrorCode::EXECUTION_ERROR, true);
    document
}

/// Returns the document of a failure that has only a text.
pub(super) fn of_failure(text: &str, code: &ErrorCode, may_have_run: bool) -> Document {
    failed(ToolResult::text(text), code, may_have_run)
}

/// Returns the document of a tool's failure: its message and what to do, then its partial result.
pub(super) fn of_tool_error(error: &ToolError, may_have_run: bool) -> Document {
    let public = error.for_clients();
    let text = model_text::of_tool(&public);
    let Some(partial) = error.partial() else { return of_failure(&text, &error.code(), may_have_run) };
    let mut failed = failed(ToolResult::of(partial), &error.code(), may_have_run);
    if let Some(Json::Array(content)) = failed.get_mut("content") {
        let says_it = |block: &Json| block["text"].as_str().is_some_and(|it| it.contains(public.message()));
        if !content.iter().any(says_it) {
            content.insert(0, json!({"type": "text", "text": text}));
        }
    }
    failed
}

/// Makes the document a result of the protocol version: from 2026-07-28 on it names its type, and before that
/// `structuredContent` is an object.
pub(super) fn finished(mut document: Document, is_modern: bool) -> Document {
    document.shift_remove("resultType");
    if is_modern {
        document.insert("resultType".to_owned(), json!("complete"));
    } else {
        fit_structured(&mut document);
    }
    document
}

fn failed(result: ToolResult, code: &ErrorCode, may_have_run: bool) -> Document {
    let mut document = document(&CallToolResult::failed(result));
    mark(&mut document, code, may_have_run);
    document
}

/// Makes a document that of a failure.
fn mark(document: &mut Document, code: &ErrorCode, may_have_run: bool) {
    document.insert("isError".to_owned(), json!(true));
    let meta = document.entry("_meta").or_insert_with(|| json!({}));
    if !meta.is_object() {
        *meta = json!({});
    }
    meta[CODE] = json!(code.as_str());
    meta[MAY_HAVE_RUN] = json!(may_have_run);
}

/// Parses what was written, and makes it valid. A document of another program that is not an object is written as a
/// text.
fn document(written: &CallToolResult) -> Document {
    let text = written.write();
    let mut document = object(&text).unwrap_or_else(|_| {
        Document::from_iter([("content".to_owned(), json!([{"type": "text", "text": text}]))])
    });
    if !document.get("content").is_some_and(Json::is_array) {
        document.insert("content".to_owned(), content(written));
    }
    fit(&mut document);
    document
}

/// Returns the content of a result whose document has none: what the model reads.
fn content(written: &CallToolResult) -> Json {
    let result = CallToolResult::from(written.result.clone().without_native(&[""]));
    object(&result.write()).ok().and_then(|mut it| it.shift_remove("content")).unwrap_or_else(|| json!([]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_without_the_data_that_its_tool_declares_is_an_error_with_its_content() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let document = of_promised(
            &CallToolResult::read(&json!({"content": [text("21")]}).to_string())
                .unwrap()
                .into_outcome()
                .unwrap(),
        );
        assert_eq!(document["isError"], true);
        assert_eq!(document["content"], json!([text(NO_DATA), text("21")]));
        assert_eq!(document["_meta"], json!({(CODE): "execution_error", (MAY_HAVE_RUN): true}));
        let with_data = json!({"content": [text("21")], "structuredContent": {"n": 21}});
        let value = CallToolResult::read(&with_data.to_string()).unwrap().into_outcome().unwrap();
        assert_eq!(Json::Object(of_promised(&value)), with_data);
    }
}
