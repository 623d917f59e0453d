//! The tools of an MCP server as a source: what a server may send, how it ends, and what it learns. The servers here are
//! scripts that misbehave; `tests/e2e/mcp.rs` has real ones.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use toolbridge::{
    Assistant, Client, Consent, ErrorCode, Event, Outcome, Progress, ToolContext, ToolError, ToolResult,
    ToolSource as _, Value,
    adapter::mcp::{self, McpTools},
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer},
    tools::SourceHealth,
};

use crate::mcp_script::{MODERN, Script};

fn context() -> ToolContext {
    ToolContext::new("caller", Duration::from_secs(60))
}

async fn call(tools: &McpTools) -> Outcome {
    tools.execute(&"t".parse().unwrap(), Value::empty(), context()).await
}

async fn error(tools: &McpTools) -> (ErrorCode, String) {
    let error = call(tools).await.unwrap_err();
    (error.code(), error.message().to_owned())
}

async fn up(tools: &McpTools) {
    while tools.health() != SourceHealth::Up {
        tools.changed().await;
    }
}

#[tokio::test]
async fn document_is_kept_byte_for_byte() {
    let script = Script::new("mcp-document");
    for document in [
        r#"{"content":[{"type":"hologram","x": 1.50 }, {"type":"text","text":"hi","annotations":null}],"priority": 0.9}"#,
        r#"{"structuredContent":null}"#,
        r#"{"content":[{"type":"image","data":"%%%","mimeType":"image/png"}],"_meta":{"a":[]}}"#,
    ] {
        let tools = script.server(&format!("answer \"$1\" '{document}'"), "").await.unwrap();
        let result = ToolResult::of(&call(&tools).await.unwrap());
        assert_eq!(result.native().unwrap().json(), document);
        tools.close().await;
    }
}

#[tokio::test]
async fn junk_before_an_answer_is_skipped() {
    let script = Script::new("mcp-junk");
    let body = r#"
        echo 'Listening on stdio'; echo '{"half":'; echo '[]'; echo 'null'; echo '{"jsonrpc":"1.0","id":1}'; echo
        answer 4711 '{}'; answer '"text"' '{}'; answer "$1" '{"content":[]}'; answer "$1" '{"content":[{"type":"text","text":"second"}]}'
        printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":4711,"progress":1}}\n'
        printf '{"jsonrpc":"2.0","method":"notifications/unknown"}\n'"#;
    let tools = script.server(body, "").await.unwrap();
    for _ in 0..3 {
        let result = ToolResult::of(&call(&tools).await.unwrap());
        assert!(result.content().is_empty(), "a second answer replaced the first");
    }
}

#[tokio::test]
async fn server_that_writes_no_message_in_a_mebibyte_is_down_and_started_again() {
    let script = Script::new("mcp-flood");
    let body = r#"if [ -e "$0.flooded" ]; then text "$1" fine; else : > "$0.flooded"; yes 'this is no message' | head -c 2000000; fi"#;
    let tools = script.server(body, "").await.unwrap();
    let (code, message) = error(&tools).await;
    assert_eq!(code, ErrorCode::EXECUTION_ERROR);
    assert!(message.contains("fake"), "{message}");
    assert!(tools.list().is_empty(), "its tools are still offered");
    up(&tools).await;
    assert!(call(&tools).await.is_ok());
}

#[tokio::test]
async fn open_calls_fail_with_the_status_when_the_server_ends() {
    let script = Script::new("mcp-ends");
    let body = r#"if [ -e "$0.ended" ]; then text "$1" back; else : > "$0.ended"; exit 3; fi"#;
    let tools = script.server(body, "").await.unwrap();
    let (code, message) = error(&tools).await;
    assert_eq!(code, ErrorCode::EXECUTION_ERROR);
    assert_eq!(message, "the MCP server \"fake\" does not answer: it ended (exit status: 3)");
    let SourceHealth::Down { reason, .. } = tools.health() else { panic!("{:?}", tools.health()) };
    assert_eq!(&*reason, "it ended (exit status: 3)");
    assert_eq!(error(&tools).await.0, ErrorCode::UNKNOWN_TOOL);
    up(&tools).await;
    assert_eq!(tools.list().len(), 1);
    assert!(call(&tools).await.is_ok());
}

#[tokio::test]
async fn stop_tells_the_server_and_its_late_answer_has_no_effect() {
    let script = Script::new("mcp-stop");
    let tools = script
        .server(r#"case "$2" in *slow*) ;; *) answer "$slow" '{}'; text "$1" quick ;; esac; slow=$1"#, "")
        .await
        .unwrap();
    let token = toolbridge::CancellationToken::new();
    let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
    let slow =
        context().with_cancellation(token.clone()).with_progress(move |it: Progress| _ = started.send(it));
    let tool = "t".parse().unwrap();
    let slow = tools.execute(&tool, Value::encode(&json!({"how": "slow"})).unwrap(), slow);
    let stop = async {
        has_started.recv().await.unwrap(); // reported when the request is written
        token.cancel();
    };
    let (outcome, ()) = tokio::join!(slow, stop);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    // The late answer comes before that of the next call.
    let result = ToolResult::of(&call(&tools).await.unwrap());
    assert_eq!(result.for_model(100).text, "quick");
    let file = script.note("cancelled");
    // The script creates the file before it writes the line.
    while !fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
        call(&tools).await.unwrap();
    }
    let cancelled = fs::read_to_string(file).unwrap();
    assert_eq!(cancelled.lines().count(), 1);
    assert!(cancelled.contains("the caller no longer needs the call"), "{cancelled}");
}

#[tokio::test]
async fn dropped_call_tells_the_server() {
    let script = Script::new("mcp-drop");
    let tools = script.server(r#"case "$2" in *slow*) ;; *) text "$1" quick ;; esac"#, "").await.unwrap();
    let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
    let slow = context().with_progress(move |it: Progress| _ = started.send(it));
    let tool = "t".parse().unwrap();
    tokio::select! {
        _ = tools.execute(&tool, Value::encode(&json!({"how": "slow"})).unwrap(), slow) => panic!("it answered"),
        _ = has_started.recv() => {}
    }
    let file = script.note("cancelled");
    while !file.exists() {
        call(&tools).await.unwrap();
    }
}

#[tokio::test]
async fn progress_that_goes_back_is_ignored() {
    let script = Script::new("mcp-progress");
    let body = r#"
        token=${2#*'"progressToken":'}; token=${token%%\}*}; token=${token%%,*}
        for n in 1 3 2 4; do
          printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%s,"total":4,"message":"step %s"}}\n' "$token" $n $n
        done
        text "$1" done"#;
    let tools = script.server(body, "").await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&seen);
    let context =
        context().with_progress(move |it: Progress| report.lock().unwrap().push((it.done(), it.total())));
    tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
    let of = |done: f64| (Some(done), Some(4.0));
    assert_eq!(*seen.lock().unwrap(), [(None, None), of(1.0), of(3.0), of(4.0)]);
}

#[tokio::test]
async fn errors_have_the_code_of_their_cause() {
    let script = Script::new("mcp-errors");
    for (code, message, expected) in [
        (-32602, "Unknown tool: t", ErrorCode::UNKNOWN_TOOL),
        (-32602, "b is missing", ErrorCode::INVALID_PARAMETERS),
        (-32602, "User not found", ErrorCode::INVALID_PARAMETERS),
        (-32603, "broken", ErrorCode::EXECUTION_ERROR),
    ] {
        let tools = script.server(&format!("fail \"$1\" {code} '{message}'"), "").await.unwrap();
        assert_eq!(error(&tools).await, (expected, format!("{message} (MCP error {code})")));
        tools.close().await;
    }
    let failed = r#"answer "$1" '{"content":[{"type":"text","text":"no such city"}],"isError":true}'"#;
    let tools = script.server(failed, "").await.unwrap();
    let error = call(&tools).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, "no such city"));
    assert_eq!(ToolResult::of_error(&error).for_model(100).text, "no such city");
}

#[tokio::test]
async fn error_of_another_form_keeps_the_words_of_the_server() {
    let script = Script::new("mcp-words");
    for (error_of_server, says) in [
        (r#"{"code":"ENOENT","message":"no such file: /srv/a"}"#, "no such file: /srv/a (MCP error ENOENT)"),
        (
            r#"{"code":-32000,"message":"failed","data":{"reason":"no quota"}}"#,
            "failed: no quota (MCP error -32000)",
        ),
        (
            r#"{"code":-32000,"message":"failed","data":"\u001b[31mno quota"}"#,
            "failed: [31mno quota (MCP error -32000)",
        ),
        (r#"{"message":"half \ud83d"}"#, "half \u{fffd}"),
        (r#""no quota""#, "no quota"),
        (r#"{"code":-32601,"message":"tools/call"}"#, "unknown method: tools/call (MCP error -32601)"),
        ("null", "the MCP server gave no reason"),
    ] {
        let body = format!(r#"printf '%s\n' '{{"jsonrpc":"2.0","id":'"$1"',"error":{error_of_server}}}'"#);
        let tools = script.server(&body, "").await.unwrap();
        assert_eq!(error(&tools).await, (ErrorCode::EXECUTION_ERROR, says.to_owned()));
        tools.close().await;
    }
}

#[tokio::test]
async fn answer_with_its_id_as_a_text_and_null_as_its_error_is_read() {
    let script = Script::new("mcp-loose");
    let more = r#"answer() { printf '{"jsonrpc":"2.0","id":"%s","result":%s,"error":null}\n' "$1" "$2"; }"#;
    let tools = script.server(r#"text "$1" done"#, more).await.unwrap();
    let result = ToolResult::of(&call(&tools).await.unwrap());
    assert_eq!(result.for_model(100).text, "done");
}

#[tokio::test]
async fn answer_and_progress_whose_ids_are_floats_are_read() {
    let script = Script::new("mcp-floats");
    let more = r#"answer() { printf '{"jsonrpc":"2.0","id":%s.0,"result":%s}\n' "$1" "$2"; }"#;
    let body = r#"printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s.0,"progress":1,"message":"half"}}\n' "$1"
        printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"%s","progress":2,"message":"most"}}\n' "$1"
        text "$1" done"#;
    let tools = script.server(body, more).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&seen);
    let context = context().with_progress(move |it: Progress| report.lock().unwrap().extend(it.message));
    let outcome = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
    assert_eq!(ToolResult::of(&outcome).for_model(100).text, "done");
    assert_eq!(*seen.lock().unwrap(), ["half", "most"]);
}

#[tokio::test]
async fn answer_to_a_request_with_a_huge_id_has_that_id() {
    let script = Script::new("mcp-huge-id");
    let body = r#"printf '{"jsonrpc":"2.0","id":1180591620717411303424,"method":"ping"}\n'; IFS= read -r pong
        case "$pong" in *'"id":1180591620717411303424,'*) text "$1" same ;; *) text "$1" other ;; esac"#;
    let tools = script.server(body, "").await.unwrap();
    assert_eq!(ToolResult::of(&call(&tools).await.unwrap()).for_model(100).text, "same");
}

#[tokio::test]
async fn answer_that_cannot_be_read_ends_its_call_with_the_reason() {
    let script = Script::new("mcp-unreadable");
    for (answer, says) in [
        (r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"a":"\377"}}\n' "$1""#, "it is not UTF-8"),
        (r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"a":tru}}\n' "$1""#, "it is not a JSON-RPC message"),
        (r#"printf '{"jsonrpc":"1.0","id":%s,"result":{}}\n' "$1""#, "not a message of JSON-RPC 2.0"),
    ] {
        let tools = script.server(answer, "").await.unwrap();
        let (code, message) = error(&tools).await;
        assert_eq!(code, ErrorCode::EXECUTION_ERROR);
        assert!(message.starts_with("the answer of the MCP server \"fake\" cannot be read"), "{message}");
        assert!(message.contains(says), "{message}");
        tools.close().await;
    }
}

#[tokio::test]
async fn error_without_an_id_and_batch_end_the_only_call_at_once() {
    let script = Script::new("mcp-no-id");
    for (answer, says) in [
        (
            r#"printf '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no parse"}}\n'"#,
            "no parse (MCP error -32700)",
        ),
        (
            r#"printf '[{"jsonrpc":"2.0","id":%s,"result":{}}]\n' "$1""#,
            "cannot be read: batches are not supported",
        ),
    ] {
        let tools = script.server(answer, MODERN).await.unwrap();
        let (code, message) = error(&tools).await;
        assert_eq!(code, ErrorCode::EXECUTION_ERROR);
        assert!(message.contains(says), "{message}");
        tools.close().await;
    }
}

#[tokio::test]
async fn error_without_an_id_at_the_start_is_its_reason() {
    let script = Script::new("mcp-no-id-start");
    let more = r#"answer() { printf '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no license"}}\n'; }"#;
    let error = script.server(":", more).await.unwrap_err().to_string();
    assert!(error.contains("it refuses `initialize`: no license (MCP error -32600)"), "{error}");
}

#[tokio::test]
async fn error_without_an_id_is_a_warning_to_several_calls_and_ends_none() {
    let script = Script::new("mcp-no-id-several");
    let body = r#"if [ -z "$first" ]; then first=$1; else
        printf '{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no parse"}}\n'
        text "$first" a; text "$1" b; fi"#;
    let tools = script.server(body, "").await.unwrap();
    let warned = Arc::new(Mutex::new(Vec::new()));
    let watched = || {
        let report = Arc::clone(&warned);
        context().with_warnings(move |text| report.lock().unwrap().push(text))
    };
    let tool = "t".parse().unwrap();
    let call = || tools.execute(&tool, Value::empty(), watched());
    let (first, second) = tokio::join!(call(), call());
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let warned = warned.lock().unwrap();
    assert!(warned.len() == 2 && warned.iter().all(|it| it.contains("no parse")), "{warned:?}");
}

#[tokio::test]
async fn server_that_ends_before_it_has_listed_its_tools_is_noticed_at_once() {
    let script = Script::new("mcp-ends-listing");
    let after_initialize = r#"answer() {
        printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; echo 'no such file' >&2; exit 4; }"#;
    let error = script.server(":", after_initialize).await.unwrap_err().to_string();
    assert_eq!(error, "MCP server \"fake\" ended (exit status: 4); it wrote: no such file");
    let error =
        script.server(":", "list() { echo 'no such table' >&2; exit 3; }").await.unwrap_err().to_string();
    assert_eq!(error, "MCP server \"fake\" ended (exit status: 3); it wrote: no such table");
}

#[tokio::test]
async fn request_of_a_server_is_answered_with_its_id() {
    let script = Script::new("mcp-odd-id");
    let body = r#"case "$2" in
        *'"tools/call"'*) mine=$1; printf '{"jsonrpc":"2.0","\\u0069d":1.5,"method":"roots/list"}\n' ;;
        *) text "$mine" "$1" ;;
        esac"#;
    let tools = script.server(body, "").await.unwrap();
    assert_eq!(ToolResult::of(&call(&tools).await.unwrap()).for_model(100).text, "1.5");
}

#[tokio::test]
async fn result_that_is_no_object_is_a_text_and_reported() {
    let script = Script::new("mcp-no-object");
    for (result, says) in [("[1,{}]", "[1,{}]"), ("7", "7"), ("\"done\"", "done")] {
        let tools = script.server(&format!("answer \"$1\" '{result}'"), "").await.unwrap();
        let warned = Arc::new(Mutex::new(0));
        let report = Arc::clone(&warned);
        let context = context().with_warnings(move |_| *report.lock().unwrap() += 1);
        let value = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
        assert_eq!((&*ToolResult::of(&value).for_model(100).text, *warned.lock().unwrap()), (says, 1));
        tools.close().await;
    }
}

#[tokio::test]
async fn error_with_structured_data_alone_says_the_data() {
    let script = Script::new("mcp-data-error");
    let body = r#"answer "$1" '{"content":[],"structuredContent":{"reason":"no quota"},"isError":true}'"#;
    let tools = script.server(body, "").await.unwrap();
    assert_eq!(error(&tools).await, (ErrorCode::EXECUTION_ERROR, r#"{"reason":"no quota"}"#.to_owned()));
}

#[tokio::test]
async fn structured_data_that_is_too_deep_for_a_frame_is_a_text() {
    let script = Script::new("mcp-deep-data");
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(80), "]".repeat(80));
    let body = format!("answer \"$1\" '{{\"structuredContent\":{deep}}}'");
    let tools = script.server(&body, "").await.unwrap();
    assert_eq!(ToolResult::of(&call(&tools).await.unwrap()).for_model(1_000).text, deep);
}

#[tokio::test]
async fn plain_object_as_a_result_is_a_text_and_reported() {
    let script = Script::new("mcp-bare");
    let tools = script.server(r#"answer "$1" '{"temperature":21,"_meta":{"a":1}}'"#, "").await.unwrap();
    let warned = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&warned);
    let context = context().with_warnings(move |text| report.lock().unwrap().push(text));
    let result = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
    assert_eq!(ToolResult::of(&result).for_model(100).text, r#"{"temperature":21}"#);
    let warned = warned.lock().unwrap();
    assert!(
        warned.len() == 1 && warned[0].contains("neither `content` nor `structuredContent`"),
        "{warned:?}"
    );
}

#[tokio::test]
async fn wrong_answer_to_initialize_is_named() {
    let script = Script::new("mcp-initialize");
    let answering = |result: &str| {
        format!(
            r#"answer() {{ case "$2" in *serverInfo*) printf '{{"jsonrpc":"2.0","id":%s,"result":%s}}\n' "$1" '{result}' ;; esac; }}"#
        )
    };
    for (more, says) in [
        (
            answering(r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"fake"}}"#),
            "its answer to `initialize` lacks `serverInfo.version`",
        ),
        (
            answering(r#"{"protocolVersion":7,"capabilities":{},"serverInfo":{"name":"fake","version":"1"}}"#),
            "its answer to `initialize` has another type of `protocolVersion`",
        ),
        (
            r#"fail() { :; }; discover() { printf '{"jsonrpc":"2.0","id":99,"result":{}}\n'; }; answer() { printf '{"jsonrpc":"2.0","id":"x","result":{}}\n'; }"#.to_owned(),
            "it answers with ids that were not asked (\"x\" for ",
        ),
        (
            r#"answer() { fail "$1" -32603 'no license'; }"#.to_owned(),
            "it refuses `initialize`: no license (MCP error -32603)",
        ),
    ] {
        let error = script.server(":", &more).await.unwrap_err().to_string();
        assert!(error.starts_with("MCP server \"fake\": ") && error.contains(says), "{error}");
    }
}

#[tokio::test]
async fn server_that_does_not_start_is_started_again_if_nobody_waits_for_it() {
    let script = Script::new("mcp-begin");
    script.write("echo 'no such module' >&2; exit 7");
    let tools = script.started().begin().unwrap();
    assert!(tools.list().is_empty());
    while !matches!(tools.health(), SourceHealth::Down { .. }) {
        tools.changed().await;
    }
    let failure = tools.last_failure().unwrap();
    assert!(failure.contains("ended (exit status: 7); it wrote: no such module"), "{failure}");
    script.serve(r#"text "$1" done"#, "");
    up(&tools).await;
    assert_eq!(tools.last_failure(), None);
    call(&tools).await.unwrap();
    assert!(mcp::http("ftp://example.com").begin().is_err());
}

#[tokio::test]
async fn result_over_the_limit_is_refused_with_both_numbers() {
    let script = Script::new("mcp-large");
    // A line of 17 MiB is read; one of 25 MiB is not, and its call is known by the id at either end.
    for (size, ends) in [(17 << 20, ""), (25 << 20, ""), (25 << 20, "last")] {
        let body = match ends {
            "" => format!(
                "printf '{{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{{\"x\":\"' \"$1\"; head -c {size} /dev/zero | tr '\\0' x; printf '\"}}}}\\n'"
            ),
            _ => format!(
                "printf '{{\"result\":{{\"x\":\"'; head -c {size} /dev/zero | tr '\\0' x; printf '\"}},\"jsonrpc\":\"2.0\",\"id\":%s}}\\n' \"$1\""
            ),
        };
        let tools = script.server(&body, "").await.unwrap();
        let (code, message) = error(&tools).await;
        assert_eq!(code, ErrorCode::RESULT_TOO_LARGE);
        assert!(message.ends_with("the limit is 16777216"), "{message}");
        assert_eq!(tools.health(), SourceHealth::Up, "{message}");
        tools.close().await;
    }
}

#[tokio::test]
async fn list_is_read_in_pages_and_again_when_it_changes() {
    let script = Script::new("mcp-list");
    let list = r#"list() {
        case "$line" in
          *'"cursor":"2"'*) answer "$1" '{"tools":[{"name":"t"},{"name":"größe"},{"name":"later","execution":{"taskSupport":"required"}},{"x":1}]}' ;;
          *) if [ -e "$0.changed" ]; then answer "$1" '{"tools":[{"name":"new"}]}'
             else answer "$1" '{"tools":[{"name":"a","annotations":{"destructiveHint":true}},{"name":"b","inputSchema":7}],"nextCursor":"2"}'; fi ;;
        esac
    }"#;
    let body = r#": > "$0.changed"; printf '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'; text "$1" ok"#;
    let tools = script.server(body, list).prefix("p").await.unwrap();
    let names = |tools: &McpTools| tools.list().iter().map(|it| it.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(&tools), ["p.a", "p.gr__e", "p.t"]);
    assert_eq!(tools.list()[0].tool_options().consent, Some(Consent::Always));
    // What a person should know of the others reaches the participant that offers the tools.
    let notes = tools.notes();
    let about = |start: &str| notes.iter().filter(|it| it.starts_with(start)).count();
    assert_eq!((about("b is not offered: "), about("later is not offered: ")), (1, 1), "{notes:?}");
    assert_eq!(
        (about("a tool is not offered: "), about("größe is offered as p.gr__e: "), notes.len()),
        (1, 1, 4),
        "{notes:?}"
    );
    tools.execute(&"p.t".parse().unwrap(), Value::empty(), context()).await.unwrap();
    while names(&tools) != ["p.new"] {
        tools.changed().await;
    }
}

#[tokio::test]
async fn page_that_cannot_be_read_is_lost_alone_and_noted() {
    let script = Script::new("mcp-pages");
    for (pages, names, note) in [
        (r#"{"tools":[{"name":"a"}],"nextCursor":2} {"tools":[{"name":"b"}]}"#, &["a", "b"][..], None),
        (
            r#"{"tools":[{"name":"a"}],"nextCursor":2} {"tools":null}"#,
            &["a"],
            Some("page 2 of its tool list has no `tools`"),
        ),
        (
            r#"{"tools":[{"name":"a"}],"nextCursor":[2]} {}"#,
            &["a"],
            Some("its tool list goes on after page 1, but has no usable cursor"),
        ),
        (
            r#"{"tools":null,"nextCursor":"2"} {"tools":[{"name":"b"}]}"#,
            &["b"],
            Some("page 1 of its tool list has no `tools`"),
        ),
        (r#"{} {}"#, &[], Some("page 1 of its tool list has no `tools`")),
    ] {
        let (first, second) = pages.split_once(' ').unwrap();
        let list = format!(
            "list() {{ case \"$line\" in *'\"cursor\"'*) answer \"$1\" '{second}' ;; *) answer \"$1\" '{first}' ;; esac; }}"
        );
        let tools = script.server("text \"$1\" ok", &list).await.unwrap();
        let listed: Vec<_> = tools.list().iter().map(|it| it.name().to_string()).collect();
        assert_eq!(listed, names, "{pages}");
        assert_eq!(tools.notes(), note.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{pages}");
        tools.close().await;
    }
}

#[tokio::test]
async fn what_is_left_out_of_a_long_list_is_noted() {
    let script = Script::new("mcp-long-list");
    for (tools, note) in [
        (
            r#"{"name":"t"},{"name":"t","description":"other"}"#,
            "t is listed 2 times; the first one is offered",
        ),
        (
            &*(0..1_030).map(|n| format!(r#"{{"name":"t{n}"}}"#)).collect::<Vec<_>>().join(","),
            "6 tools of its list are not offered: the limit is 1024",
        ),
    ] {
        fs::write(script.note("tools"), format!(r#"{{"tools":[{tools}]}}"#)).unwrap();
        let list = r#"list() { answer "$1" "$(cat "$0.tools")"; }"#;
        let tools = script.server("text \"$1\" ok", list).await.unwrap();
        assert_eq!(tools.notes(), [note]);
        tools.close().await;
    }
    let list =
        r#"n=0; list() { n=$((n+1)); answer "$1" '{"tools":[{"name":"t'$n'"}],"nextCursor":"more"}'; }"#;
    let tools = script.server("text \"$1\" ok", list).await.unwrap();
    assert_eq!(tools.list().len(), 64);
    assert_eq!(tools.notes(), ["its tool list goes on after page 64, which is the last that is read"]);
}

/// Answers the questions of a server, and returns what the server got.
async fn asked(
    request: &str,
    answer: impl Fn(Prompt) -> Result<PromptAnswer, ToolError> + Send + Sync + 'static,
) -> String {
    let script = Script::new(&format!("mcp-ask-{}", request.len()));
    let body = format!(
        r#"case "$2" in
          *'"method":"tools/call"'*) mine=$1; printf '{{"jsonrpc":"2.0","id":"q","method":"{request}}}\n' ;;
          *) printf '%s\n' "$2" > "$0.answer"; text "$mine" asked ;;
        esac"#
    );
    let tools = script.server(&body, "").await.unwrap();
    let answer = Arc::new(answer);
    let context = context().with_answers(move |prompt| {
        let answer = Arc::clone(&answer);
        async move { answer(prompt) }
    });
    tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
    fs::read_to_string(script.note("answer")).unwrap()
}

#[tokio::test]
async fn elicitation_asks_the_person() {
    let form = r#"elicitation/create","params":{"message":"How many?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer","x-odd":[],"default":1},"unit":{"type":"string","default":"kg"}}}}"#;
    let answer = asked(form, |prompt| {
        let Prompt::Form(form) = prompt else { panic!("{prompt:?}") };
        assert_eq!(form.text.as_deref(), Some("fake asks: How many?"));
        assert_eq!(form.schema.to_json()["properties"]["n"]["x-odd"], json!([]));
        Ok(PromptAnswer::submitted(&json!({"n": 3})).unwrap())
    });
    let filled = r#""result":{"action":"accept","content":{"n":3,"unit":"kg"}}"#;
    assert!(answer.await.contains(filled), "a field that the person left out has its default");
    let url = r#"elicitation/create","params":{"mode":"url","message":"Sign in","url":"https://example.com/in","elicitationId":"1"}"#;
    let answer = asked(url, |prompt| {
        let Prompt::Authorize(address) = prompt else { panic!("{prompt:?}") };
        assert_eq!(
            (address.service.as_deref(), address.text.as_deref()),
            (Some("fake"), Some("fake asks: Sign in"))
        );
        Ok(PromptAnswer::declined())
    });
    assert!(answer.await.contains(r#""result":{"action":"decline"}"#));
}

#[tokio::test]
async fn question_is_withdrawn_when_the_calls_have_ended_that_it_may_belong_to() {
    let script = Script::new("mcp-ask-over");
    let body = r#"case "$2" in
        *asks*) mine=$1
          printf '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"Go on?","requestedSchema":{"type":"object"}}}\n' ;;
        *ends*) text "$mine" asked; text "$1" ended ;;
        *'"id":"q"'*) printf '%s\n' "$2" > "$0.answer" ;;
        *) text "$1" quick ;;
        esac"#;
    let tools = script.server(body, "").await.unwrap();
    let (shown, mut is_shown) = tokio::sync::mpsc::unbounded_channel();
    let asking = context().with_answers(move |_| {
        let (open, closed) = tokio::sync::oneshot::channel::<()>();
        shown.send(closed).unwrap();
        async move {
            let _open = open;
            std::future::pending().await
        }
    });
    let how = |how: &str| Value::encode(&json!({"how": how})).unwrap();
    let tool = "t".parse().unwrap();
    let ending = async {
        let closed = is_shown.recv().await.unwrap();
        tools.execute(&tool, how("ends"), context()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), closed).await
    };
    let (asked, closed) = tokio::join!(tools.execute(&tool, how("asks"), asking), ending);
    assert_eq!(ToolResult::of(&asked.unwrap()).for_model(100).text, "asked");
    assert!(closed.expect("the person is still asked").is_err());
    // The script creates the file before it writes the line.
    while !fs::read_to_string(script.note("answer")).is_ok_and(|text| text.ends_with('\n')) {
        call(&tools).await.unwrap();
    }
    let answer = fs::read_to_string(script.note("answer")).unwrap();
    assert!(answer.contains(r#""result":{"action":"cancel"}"#), "{answer}");
    tools.close().await;
}

#[tokio::test]
async fn request_that_is_not_offered_is_refused() {
    for method in ["sampling/createMessage", "roots/list", "x/y"] {
        let answer = asked(&format!(r#"{method}","params":{{"a":1}}"#), |_| panic!("nobody is asked")).await;
        assert!(answer.contains("-32601") && answer.contains(method), "{answer}");
    }
}

#[tokio::test]
async fn wxo_w17_input_that_a_result_requires_is_asked_and_sent_with_its_state() {
    let script = Script::new("mcp-rounds");
    let body = r#"case "$2" in
        *'"requestState":"s t\/1"'*|*'"requestState":"s t/1"'*) printf '%s\n' "$1" "$2" > "$0.second"; text "$1" done ;;
        *) printf '%s\n' "$1" > "$0.first"
           answer "$1" '{"resultType":"input_required","requestState":"s t/1","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object"}}}}}' ;;
        esac"#;
    let tools = script.server(body, "").await.unwrap();
    let context =
        context().with_answers(|_| async { Ok(PromptAnswer::submitted(&json!({"name": "Ada"})).unwrap()) });
    let result = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
    assert_eq!(ToolResult::of(&result).for_model(100).text, "done");
    let second = fs::read_to_string(script.note("second")).unwrap();
    let first = fs::read_to_string(script.note("first")).unwrap();
    assert_ne!(second.lines().next(), first.lines().next(), "the request has the id of the first one");
    assert!(
        second.contains(r#""inputResponses":{"who":{"action":"accept","content":{"name":"Ada"}}}"#),
        "{second}"
    );
}

#[tokio::test]
async fn result_that_is_not_complete_and_cannot_be_handled_is_an_error() {
    let script = Script::new("mcp-kinds");
    for (kind, expected) in [
        (r#""complete""#, None),
        (r#""later""#, Some("unknown type")),
        ("7", Some("unknown type")),
        (r#""task""#, Some("task")),
        (r#""input_required","inputRequests":[]"#, Some("unknown form")),
    ] {
        let body = format!(r#"answer "$1" '{{"resultType":{kind},"content":[]}}'"#);
        let tools = script.server(&body, MODERN).await.unwrap();
        let outcome = call(&tools).await;
        match (expected, &outcome) {
            (None, Ok(_)) => {}
            (Some(text), Err(error)) => assert!(error.message().contains(text), "{kind}: {error:?}"),
            _ => panic!("{kind}: {outcome:?}"),
        }
        tools.close().await;
    }
}

#[tokio::test]
async fn call_that_needs_an_address_to_be_opened_is_sent_again_when_it_was() {
    let script = Script::new("mcp-open-first");
    let body = r#"if [ -e "$0.asked" ]; then text "$1" done; else : > "$0.asked"
        printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"open first","data":{"elicitations":[{"mode":"url","elicitationId":"1","url":"https://example.com/in","message":"Sign in"}]}}}\n' "$1"
        fi"#;
    let tools = script.server(body, "").await.unwrap();
    let declining = context().with_answers(|_| async { Ok(PromptAnswer::declined()) });
    let declined = tools.execute(&"t".parse().unwrap(), Value::empty(), declining).await.unwrap_err();
    assert_eq!(declined.code(), ErrorCode::PERMISSION_DENIED);
    fs::remove_file(script.note("asked")).unwrap();
    let opening = context().with_answers(|prompt| async move {
        assert!(matches!(&prompt, Prompt::Authorize(it) if it.url == "https://example.com/in"), "{prompt:?}");
        Ok(PromptAnswer::done())
    });
    let result = tools.execute(&"t".parse().unwrap(), Value::empty(), opening).await.unwrap();
    assert_eq!(ToolResult::of(&result).for_model(100).text, "done");
}

#[tokio::test]
async fn subscription_that_ends_is_made_again_and_the_list_is_read() {
    let script = Script::new("mcp-listen");
    let body = r#"case "$2" in
        *subscriptions/listen*)
          printf '%s\n' "$1" >> "$0.listened"
          tools='{"resultType":"complete","tools":[{"name":"new"}],"ttlMs":0,"cacheScope":"private"}'
          printf '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"toolsListChanged":true}}}\n' "$1"
          answer "$1" '{"resultType":"complete"}' ;;
        esac"#;
    let tools = script.server(body, MODERN).await.unwrap();
    let is_new = |tools: &McpTools| tools.list().iter().any(|it| it.name().as_str() == "new");
    while !is_new(&tools) {
        tools.changed().await;
    }
    let times = || fs::read_to_string(script.note("listened")).unwrap().lines().count();
    while times() < 2 {
        tools.changed().await;
    }
}

#[tokio::test]
async fn sec_x2_server_gets_the_variables_of_the_user_and_none_of_livekit() {
    let script = Script::new("mcp-environment");
    let body = r#"env > "$0.env"; text "$1" ok"#;
    let server = script.server(body, "").env("OWN", "1");
    let tools = server.await.unwrap();
    call(&tools).await.unwrap();
    let variables = fs::read_to_string(script.note("env")).unwrap();
    let names: Vec<&str> =
        variables.lines().filter_map(|it| it.split_once('=')).map(|(name, _)| name).collect();
    assert!(names.contains(&"OWN") && names.contains(&"PATH"), "{names:?}");
    let known = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "OWN", "PWD", "OLDPWD", "SHLVL", "_"];
    assert!(names.iter().all(|it| known.contains(it)), "{names:?}");
    let refused = script.server(body, "").inherit("LIVEKIT_API_SECRET").await.unwrap_err().to_string();
    assert!(refused.contains("LIVEKIT_API_SECRET is not passed on"), "{refused}");
}

#[tokio::test]
async fn failed_start_names_the_status_and_the_end_of_stderr() {
    let script = Script::new("mcp-start");
    let started = |more: &str| {
        script.write(more);
        script.started()
    };
    let error = started("echo 'no such module' >&2; exit 7").await.unwrap_err().to_string();
    assert_eq!(error, "MCP server \"fake\" ended (exit status: 7); it wrote: no such module");
    let error = started("yes junk").await.unwrap_err().to_string();
    assert!(error.starts_with("MCP server \"fake\""), "{error}");
    let error = started("sleep 60").start_limit(Duration::from_millis(50)).await.unwrap_err().to_string();
    assert!(error.contains("did not answer within"), "{error}");
    let error = mcp::stdio(["no-such-program-here"]).await.unwrap_err().to_string();
    assert!(error.contains("no-such-program-here"), "{error}");
}

#[tokio::test]
async fn children_end_with_the_source() {
    let script = Script::new("mcp-group");
    // The server is a grandchild, as with `npx`.
    let more = r#"echo $$ > "$0.pid""#;
    let alive = |path: &Path| {
        let pid = fs::read_to_string(path).unwrap();
        Path::new(&format!("/proc/{}", pid.trim())).exists()
    };
    let pid = script.note("pid");
    let tools = script.server(r#"text "$1" ok"#, more).await.unwrap();
    assert!(alive(&pid));
    tools.close().await;
    assert!(!alive(&pid), "it runs after it was closed");
    assert!(matches!(tools.health(), SourceHealth::Down { .. }));
    assert!(tools.list().is_empty());
}

#[tokio::test]
async fn room_sees_tools_go_and_come_back() {
    let script = Script::new("mcp-room");
    let body = r#"if [ -e "$0.ended" ]; then text "$1" back; else : > "$0.ended"; exit 1; fi"#;
    let list = r#"tools='{"tools":[{"name":"t"},{"name":"größe"}]}'"#;
    let tools = script.server(body, list).await.unwrap();
    let room = MemoryRoom::new();
    let client = Client::builder().tools(tools).consent(|_| async { true });
    let client = client.join_over(room.client("phone")).await.unwrap();
    let is_note = |event: &Event| matches!(event, Event::SourceNote { source, text } if &**source == "fake" && text.starts_with("größe is offered as gr__e"));
    assert_eq!(client.tool_notes().iter().filter(|event| is_note(event)).count(), 1);
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut events = client.events();
    let error = assistant.call("t", ()).await.unwrap_err();
    assert!(error.to_string().contains("exit status: 1"), "{error}");
    assert!(error.may_have_run());
    let mut health = Vec::new();
    while health.last() != Some(&SourceHealth::Up) {
        if let Event::Source(status) = events.recv().await.unwrap() {
            assert_eq!(&*status.name, "fake");
            health.push(status.health);
        }
    }
    assert!(matches!(health[0], SourceHealth::Down { .. }), "{health:?}");
    let value = assistant.call("t", ()).await.unwrap();
    assert_eq!(ToolResult::of(&value).for_model(100).text, "back");
    client.close().await;
}

#[tokio::test]
async fn wxo_w16_result_that_violates_its_output_schema_is_delivered_and_reported() {
    let script = Script::new("mcp-output");
    let list = r#"tools='{"tools":[{"name":"t","outputSchema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}]}'"#;
    let body = r#"case "$2" in *one*) n=1 ;; *) n='"hunter2"' ;; esac; answer "$1" '{"content":[],"structuredContent":{"n":'"$n"'}}'"#;
    let tools = script.server(body, list).await.unwrap();
    let room = MemoryRoom::new();
    let client = Client::builder().consent(|_| async { true }).tools(tools);
    let client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("brain")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    let mut events = client.events();
    for (which, n) in [("one", json!(1)), ("other", json!("hunter2"))] {
        let value = assistant.call("t", json!({"which": which})).await.unwrap();
        assert_eq!(ToolResult::of(&value).structured().unwrap().to_json(), json!({"n": n}));
    }
    client.close().await;
    let mut warnings = Vec::new();
    while let Some(event) = events.recv().await {
        if let Event::ToolWarning { tool, text, .. } = event {
            assert_eq!(tool.as_str(), "t");
            warnings.push(text);
        }
    }
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("the result violates the tool's output schema: "), "{warnings:?}");
    assert!(!warnings[0].contains("hunter2"), "{warnings:?}");
}

#[tokio::test]
async fn output_schema_that_cannot_be_used_is_reported_once_and_results_are_delivered() {
    let script = Script::new("mcp-output-bounds");
    let list = r#"tools='{"tools":[{"name":"t","outputSchema":{"$ref":"https://example.com/other"}}]}'"#;
    let tools = script.server(r#"text "$1" fine"#, list).await.unwrap();
    let warnings = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let report = Arc::clone(&warnings);
        let context = context().with_warnings(move |text| report.lock().unwrap().push(text));
        let value = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
        assert_eq!(ToolResult::of(&value).for_model(100).text, "fine");
    }
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("the tool's output schema is not used: "), "{warnings:?}");
}
