//! The forms in which models and programs write a call's arguments (`wire.md`, section 3.1): one table for the doors.

use serde_json::{Value as Json, json};
use toolbridge::{Assistant, CallError, Client, ErrorCode, ToolError, chat, memory::MemoryRoom};

/// Forms of no arguments.
pub(crate) const NONE: [&str; 9] =
    ["null", "[]", "{}", r#""""#, r#"" ""#, r#""null""#, r#""[]""#, r#""{}""#, r#""\"{}\"""#];

/// Forms of `{"on": true}`.
pub(crate) const SOME: [&str; 3] = [r#"{"on":true}"#, r#""{\"on\":true}""#, r#""\"{\\\"on\\\":true}\"""#];

/// Values that are no arguments.
pub(crate) const OTHERS: [&str; 6] = ["5", "true", "[1]", r#""on""#, r#""[1]""#, r#""{""#];

/// Returns each form with the arguments that it means.
pub(crate) fn forms() -> impl Iterator<Item = (Json, Json)> {
    let of = |meant: Json| move |written: &str| (serde_json::from_str(written).unwrap(), meant.clone());
    NONE.into_iter().map(of(json!({}))).chain(SOME.into_iter().map(of(json!({"on": true}))))
}

pub(crate) fn others() -> impl Iterator<Item = Json> {
    OTHERS.into_iter().map(|written| serde_json::from_str(written).unwrap())
}

async fn echo(given: serde_json::Map<String, Json>) -> Result<Json, ToolError> {
    Ok(given.into())
}

#[tokio::test(start_paused = true)]
async fn method_model_and_report_read_all_forms_in_one_way() {
    let room = MemoryRoom::new();
    let _phone = Client::builder().tool("echo", "", echo).join_over(room.client("phone")).await.unwrap();
    let brain = Assistant::builder().join_over(room.assistant("brain")).await.unwrap();
    let model = |written: &Json| json!({"id": "c", "function": {"name": "echo", "arguments": written}});
    for (written, meant) in forms() {
        assert_eq!(brain.call("echo", &written).await.unwrap().to_json(), meant, "{written}");
        let answer = chat::answer(&brain, &model(&written)).await.message;
        let content: Json = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
        assert_eq!(content["result"], meant, "{written}");
        assert!(brain.report("elsewhere", &written).start().is_ok(), "{written}");
    }
    for written in others() {
        let error = brain.call("echo", &written).await.unwrap_err();
        assert!(matches!(&error, CallError::Arguments(_)) && !error.may_have_run(), "{written}");
        assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
        let content = chat::answer(&brain, &model(&written)).await.message["content"].to_string();
        assert!(content.contains("invalid_parameters"), "{content}");
        assert!(brain.report("elsewhere", &written).start().is_err(), "{written}");
    }
}
