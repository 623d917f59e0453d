//! The tools of a RAP toolset as a source, over HTTP on this machine: what a toolset may send, and what it learns.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use toolbridge::{
    CancellationToken, ErrorCode, Outcome, ToolContext, ToolError, ToolName, ToolResult, ToolSource as _,
    Value,
    adapter::rap::{self, RapTools},
    prompt::{Prompt, PromptAnswer},
};

use crate::rap_toolset::{NO_ANSWER, Received, Toolset, post, request, tool};

const JSON: &str = "content-type: application/json\r\n";

fn context() -> ToolContext {
    ToolContext::new("caller", Duration::from_secs(60))
}

fn name(name: &str) -> ToolName {
    name.parse().unwrap()
}

async fn run(tools: &RapTools, tool: &str, arguments: Value, context: ToolContext) -> Outcome {
    tools.execute(&name(tool), arguments, context).await
}

/// Calls the tool, while the toolset does something about the invocation.
async fn call_with<T>(
    tools: &RapTools,
    toolset: &Toolset,
    context: ToolContext,
    about: impl AsyncFnOnce(Received) -> T,
) -> (Outcome, T) {
    let call = run(tools, "t", Value::empty(), context);
    tokio::join!(call, async { about(toolset.invocation().await).await })
}

/// Returns what the model reads of an outcome.
fn model(outcome: &Outcome) -> String {
    let result = match outcome {
        Ok(value) => ToolResult::of(value),
        Err(error) => ToolResult::of_error(error),
    };
    result.for_model(100_000).text.clone().into_owned()
}

#[tokio::test]
async fn call_is_invoked_and_answered() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().user_id("ada").await.unwrap();
    let context = context().with_call_id("c-1".parse().unwrap());
    let call = run(&tools, "t", Value::from(json!({"n": 5, "deep": {"x": [1.5, null]}})), context);
    let (outcome, invocation) = tokio::join!(call, async {
        let invocation = toolset.invocation().await;
        assert_eq!(invocation.answer("Deployed i-1.").await, 200);
        invocation
    });
    assert_eq!(model(&outcome), "Deployed i-1.");
    let body = &invocation.body;
    let token = body["callback_url"].as_str().unwrap().rsplit('/').next().unwrap();
    assert_eq!(token.len(), 22);
    assert!(body["callback_url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let group = body["group_id"].as_str().unwrap();
    assert_eq!(group.len(), 22);
    let expected = json!({
        "operation": "t", "arguments": {"n": 5, "deep": {"x": [1.5, null]}}, "id": "c-1", "call_id": null,
        "callback_url": body["callback_url"], "group_id": group, "user_id": "ada",
    });
    assert_eq!(*body, expected, "nothing else of the room goes out");
    assert!(invocation.head.contains("content-type: application/json"));
    let other = toolset.source().await.unwrap();
    let (_, other) = call_with(&other, &toolset, self::context(), async |invocation| {
        invocation.answer("done").await;
        invocation
    })
    .await;
    assert_ne!(other.body["group_id"], body["group_id"], "each join has its own");
    assert_eq!(other.body.get("user_id"), None);
}

#[tokio::test]
async fn rap_r1_callback_must_be_a_post_of_a_json_message() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (outcome, ()) = call_with(&tools, &toolset, context(), async |invocation| {
        let url = invocation.callback();
        let result = invocation.message("tool_result", &json!({"text": "done"})).to_string();
        for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(request(method, &url, JSON, &result).await, 405, "{method}");
        }
        for kind in ["", "content-type: text/plain\r\n", "content-type: application/jsonp\r\n"] {
            assert_eq!(request("POST", &url, kind, &result).await, 415, "{kind}");
        }
        for bad in ["", "{", "[]", "null", "{\"type\": \"tool_result\"}", "\u{0}"] {
            assert_eq!(request("POST", &url, JSON, bad).await, 400, "{bad}");
        }
        for kind in ["tool_results", "", "ping"] {
            let message =
                json!({"type": kind, "group_id": invocation.body["group_id"], "id": invocation.body["id"]});
            assert_eq!(post(&url, &message).await, 400, "{kind}");
        }
        let huge = format!("{{\"text\": \"{}\"}}", "x".repeat(16 << 20));
        assert_eq!(request("POST", &url, JSON, &huge).await, 413);
        assert_eq!(invocation.answer("done").await, 200);
    })
    .await;
    assert_eq!(model(&outcome), "done");
    assert_eq!(tools.counts().accepted, 1);
    assert_eq!(tools.counts().malformed, 9);
}

/// Opens connections to the host of a URL that send nothing.
pub(crate) async fn silent(url: &str) -> Vec<TcpStream> {
    let host = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut silent = Vec::new();
    for _ in 0..256 {
        silent.push(TcpStream::connect(host).await.unwrap());
    }
    silent
}

#[tokio::test]
async fn silent_connections_keep_no_result_out() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (outcome, ()) = call_with(&tools, &toolset, context(), async |invocation| {
        let mut silent = silent(&invocation.callback()).await;
        assert_eq!(invocation.answer("done").await, 200);
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0, "the oldest one gave way");
    })
    .await;
    assert_eq!(model(&outcome), "done");
}

#[tokio::test]
async fn result_that_cannot_be_read_fails_its_call_with_the_reason() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    for more in [json!({}), json!({"text": 5}), json!({"content": [{"type": "hologram"}]})] {
        let (outcome, ()) = call_with(&tools, &toolset, context(), async |invocation| {
            assert_eq!(invocation.say("tool_result", more.clone()).await, 400, "{more}");
            // The call is over, so that a second result has no effect.
            assert_ne!(invocation.answer("done").await, 400, "{more}");
        })
        .await;
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
        assert!(error.message().contains("cannot be read"), "{error:?}");
        assert!(error.message().contains("neither `text` nor `content`"), "{error:?}");
    }
    assert_eq!((tools.counts().accepted, tools.counts().malformed), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn call_whose_messages_were_refused_fails_before_its_time_with_the_reason() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let result = |invocation: &Received| invocation.message("tool_result", &json!({"text": "done"}));
    let without = |invocation: &Received, key: &str| {
        let mut message = result(invocation);
        message.as_object_mut().unwrap().remove(key);
        message.to_string()
    };
    type Body<'a> = &'a dyn Fn(&Received) -> String;
    let bodies: [(&str, Body<'_>, &str); 8] = [
        (JSON, &|it| without(it, "group_id"), "`group_id` is missing or has the wrong type"),
        (JSON, &|it| without(it, "type"), "`type` is not one of tool_result"),
        (JSON, &|it| without(it, "id"), "`id` is missing or has the wrong type"),
        (
            JSON,
            &|it| it.message("tool_result", &json!({"text": "x", "id": "other"})).to_string(),
            "it names another call",
        ),
        (
            JSON,
            &|it| it.message("tool_result", &json!({"text": "x", "call_id": "other"})).to_string(),
            "`call_id` is not that",
        ),
        (
            "content-type: text/plain\r\n",
            &|it| result(it).to_string(),
            "the content type must be application/json",
        ),
        (JSON, &|_| "{\"type\":".to_owned(), "the document is not JSON"),
        (JSON, &|_| format!("\"{}\"", "x".repeat(16 << 20)), "the body exceeds 16777216 bytes"),
    ];
    for (kind, body, says) in bodies {
        let context = ToolContext::new("caller", Duration::from_secs(60));
        let begun = tokio::time::Instant::now();
        let (outcome, status) = call_with(&tools, &toolset, context, async |invocation| {
            request("POST", &invocation.callback(), kind, &body(&invocation)).await
        })
        .await;
        let error = outcome.unwrap_err();
        assert!(status >= 400 && error.code() == ErrorCode::EXECUTION_ERROR, "{says}: {status} {error:?}");
        assert!(
            error.message().contains("a message of it was refused: ") && error.message().contains(says),
            "{error}"
        );
        let took = begun.elapsed();
        assert!((Duration::from_secs(50)..Duration::from_secs(60)).contains(&took), "{took:?}");
    }
}

#[tokio::test]
async fn rap_r2_result_of_another_group_or_call_is_refused() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let first = run(&tools, "t", Value::empty(), context());
    let second = run(&tools, "t", Value::empty(), context());
    let (first, second, ()) = tokio::join!(first, second, async {
        let (one, two) = (toolset.invocation().await, toolset.invocation().await);
        let forged = |key: &str, value: &str| {
            let mut message = one.message("tool_result", &json!({"text": "forged"}));
            message[key] = value.into();
            message
        };
        for message in [forged("group_id", "another"), forged("id", "another"), forged("id", "")] {
            assert_eq!(post(&one.callback(), &message).await, 404);
        }
        // The token of one call does not open another.
        let foreign = two.message("tool_result", &json!({"text": "foreign"}));
        assert_eq!(post(&one.callback(), &foreign).await, 404);
        let (base, token) =
            one.callback().rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let guessed =
            [format!("{base}/{}", &token[1..]), format!("{base}/{token}x"), format!("{base}/"), base];
        for url in guessed {
            assert_eq!(post(&url, &forged("more", "")).await, 404, "{url}");
        }
        assert_eq!(one.answer("one").await, 200);
        assert_eq!(two.answer("two").await, 200);
    });
    let mut texts = [model(&first), model(&second)];
    texts.sort();
    assert_eq!(texts, ["one", "two"]);
    assert_eq!((tools.counts().accepted, tools.counts().unknown), (2, 6));
}

#[tokio::test]
async fn rap_r3_call_id_that_was_not_given_is_refused_and_an_absent_one_accepted() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    for (given, echoed, status) in [
        (Some("p-1"), Some(json!("p-1")), 200),
        (Some("p-1"), Some(json!("p-2")), 400),
        (Some("p-1"), Some(json!(null)), 200),
        (Some("p-1"), None, 200),
        (None, Some(json!(null)), 200),
        (None, None, 200),
        (None, Some(json!("p-1")), 400),
        (None, Some(json!(5)), 400),
    ] {
        let meta = given.map_or_else(|| json!({}), |given| json!({"bridge.rap.call_id": given}));
        let context = context().with_meta(Value::from(meta));
        let (outcome, ()) = call_with(&tools, &toolset, context, async |invocation| {
            assert_eq!(invocation.body["call_id"].as_str(), given);
            let mut more = json!({"text": "first"});
            if let Some(echoed) = &echoed {
                more["call_id"] = echoed.clone();
            }
            assert_eq!(invocation.say("tool_result", more).await, status, "{given:?} {echoed:?}");
            if status != 200 {
                assert_eq!(invocation.answer("second").await, 200);
            }
        })
        .await;
        assert_eq!(model(&outcome), if status == 200 { "first" } else { "second" });
    }
}

#[tokio::test]
async fn rap_r4_annotation_decides_whether_the_text_is_data() {
    let structured = json!({"annotations": {"x-structured": true}});
    let toolset = Toolset::of(json!([tool("t", structured), tool("plain", json!({}))])).await;
    let tools = toolset.source().await.unwrap();
    for (tool, text, data) in [
        ("t", "{\"count\": 1}", Some(json!({"count": 1}))),
        ("t", "not JSON", None),
        ("plain", "{\"count\": 1}", None),
    ] {
        let (outcome, status) = tokio::join!(run(&tools, tool, Value::empty(), context()), async {
            toolset.invocation().await.answer(text).await
        });
        assert_eq!((status, model(&outcome)), (200, text.to_owned()));
        let result = ToolResult::of(&outcome.unwrap());
        assert_eq!(result.structured().map(Value::to_json), data);
    }
}

#[tokio::test]
async fn rap_r8_callback_is_answered_200_whatever_the_outcome() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    for text in ["done", "", "Error: it broke"] {
        let (outcome, status) =
            call_with(&tools, &toolset, context(), async |it| it.answer(text).await).await;
        assert_eq!((status, outcome.is_err()), (200, text.starts_with("Error: ")));
        assert_eq!(model(&outcome), text);
    }
}

#[tokio::test]
async fn rap_r9_subscription_at_a_client_is_cancelled_at_once_and_the_result_says_so() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (outcome, invocation) = call_with(&tools, &toolset, context(), async |invocation| {
        assert_eq!(
            invocation.say("tool_result", json!({"text": "Subscribed.", "subscription": true})).await,
            200
        );
        invocation
    })
    .await;
    assert!(model(&outcome).starts_with("Subscribed.\n"), "{}", model(&outcome));
    assert!(model(&outcome).contains("was cancelled at once"), "{}", model(&outcome));
    let cancel = toolset.next_of("/cancel_tool_call").await;
    let expected = json!({"thread_id": invocation.body["group_id"], "tool_call_id": invocation.body["id"]});
    assert_eq!(cancel.body, expected);
    assert_eq!(invocation.say("subscription_event", json!({"text": "event"})).await, 200);
    assert_eq!(tools.counts().dropped, 1);
    assert_eq!(tools.list().len(), 1, "there is nothing to end");
    for more in [json!({"subscription": false}), json!({"subscription": null}), json!({})] {
        let (outcome, _) = call_with(&tools, &toolset, context(), async |invocation| {
            let mut more = more.clone();
            more["text"] = "done".into();
            invocation.say("tool_result", more).await
        })
        .await;
        assert_eq!(model(&outcome), "done");
    }
}

#[tokio::test]
async fn rap_r12_repeated_result_is_accepted_without_effect() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (outcome, invocation) = call_with(&tools, &toolset, context(), async |invocation| {
        assert_eq!(invocation.answer("first").await, 200);
        invocation
    })
    .await;
    assert_eq!(model(&outcome), "first");
    for text in ["first", "second", "Error: third"] {
        assert_eq!(invocation.answer(text).await, 200);
    }
    assert_eq!((tools.counts().accepted, tools.counts().duplicates), (1, 3));
}

#[tokio::test]
async fn rap_r16_arguments_and_tool_are_checked_before_anything_is_sent() {
    let schema = json!({"inputSchema": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false,
    }});
    let toolset = Toolset::of(json!([tool("t", schema)])).await;
    let tools = toolset.source().await.unwrap();
    toolset.next_of("/.well-known/rap-toolset").await;
    for arguments in [json!({}), json!({"n": "five"}), json!({"n": 5, "m": 6})] {
        let error = run(&tools, "t", Value::from(arguments), context()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
        assert!(error.message().contains("the data does not fit"), "{error}");
    }
    let error = run(&tools, "other", Value::empty(), context()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::UNKNOWN_TOOL);
    assert!(toolset.others().await.is_empty());
}

#[tokio::test]
async fn rap_r16_status_other_than_success_is_the_failure_of_the_call() {
    for (status, said) in
        [(400, "HTTP 400"), (404, "HTTP 404"), (401, "requires authorization"), (302, "redirects")]
    {
        let toolset = Toolset::with(json!([tool("t", json!({}))]), move |_, _| status).await;
        let tools = toolset.source().await.unwrap();
        let error = run(&tools, "t", Value::empty(), context()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
        assert!(error.message().contains(said), "{error}");
        let invocation = toolset.invocation().await;
        assert_eq!(invocation.answer("too late").await, 410);
        assert!(toolset.others().await.is_empty(), "{status} is not sent again, and nothing is cancelled");
    }
}

#[tokio::test]
async fn rap_r17_invocation_is_sent_again_after_a_failure_of_the_server() {
    let toolset =
        Toolset::with(json!([tool("t", json!({}))]), |_, n| if n < 3 { 500 + n as u16 } else { 200 }).await;
    let tools = toolset.source().await.unwrap();
    let call = run(&tools, "t", Value::empty(), context());
    let (outcome, ()) = tokio::join!(call, async {
        let sent = [toolset.invocation().await, toolset.invocation().await, toolset.invocation().await];
        assert!(sent.iter().all(|it| it.body == sent[0].body), "it is the same message");
        assert_eq!(sent[0].answer("done").await, 200);
    });
    assert_eq!(model(&outcome), "done");
}

#[tokio::test]
async fn rap_r18_manifest_is_read_once_and_a_fault_refuses_all_of_it() {
    let toolset = Toolset::start().await;
    // Each session reads it, and reads it once.
    for _ in 0..2 {
        let tools = toolset.source().await.unwrap();
        assert_eq!(tools.list().len(), 1);
        let read = toolset.next().await;
        assert_eq!(
            (&*read.path, read.head.contains("accept: application/json")),
            ("/.well-known/rap-toolset", true)
        );
        for _ in 0..3 {
            let (outcome, ()) = tokio::join!(run(&tools, "t", Value::empty(), context()), async {
                let invocation = toolset.next().await;
                assert_eq!(invocation.path, "/invoke");
                assert_eq!(invocation.answer("done").await, 200);
            });
            assert!(outcome.is_ok());
        }
        assert!(toolset.others().await.is_empty());
    }

    let twice = Toolset::of(json!([tool("a", json!({})), tool("b", json!({})), tool("a", json!({}))])).await;
    let error = twice.source().await.unwrap_err().to_string();
    assert!(error.contains("refused as a whole: the tool \"a\" is there twice"), "{error}");
}

#[tokio::test]
async fn rap_r18_tool_of_two_toolsets_is_offered_by_neither() {
    let one = Toolset::of(json!([tool("shared", json!({})), tool("one", json!({}))])).await;
    let two = Toolset::of(json!([tool("shared", json!({})), tool("two", json!({}))])).await;
    let names = |tools: &RapTools| tools.list().iter().map(|it| it.name().to_string()).collect::<Vec<_>>();
    let started = rap::toolsets([one.source().name("a"), two.source().name("b")]).await.unwrap();
    assert_eq!(started.iter().map(names).collect::<Vec<_>>(), [["one"], ["two"]]);
    for tools in &started {
        let left_out = tools.left_out();
        assert_eq!(left_out[0].0, "shared");
        assert!(left_out[0].1.contains("another toolset offers shared"), "{left_out:?}");
    }
    let prefixed = rap::toolsets([one.source().name("a"), two.source().name("b").prefix("b")]).await.unwrap();
    assert_eq!(names(&prefixed[0]), ["one", "shared"]);
    assert_eq!(names(&prefixed[1]), ["b.shared", "b.two"]);
}

#[tokio::test]
async fn tools_beyond_the_limit_are_left_out_and_a_manifest_beyond_it_is_refused() {
    let many: Vec<Json> = (0..1_030).map(|n| tool(&format!("t{n}"), json!({}))).collect();
    let tools = Toolset::of(many.into()).await.source().await.unwrap();
    assert_eq!((tools.list().len(), tools.left_out().len()), (1_024, 6));
    assert!(tools.left_out()[0].1.contains("more than 1024 tools"), "{:?}", tools.left_out());
    let long = tool("t", json!({"description": "x".repeat(4 << 20)}));
    let error = Toolset::of(json!([long])).await.source().await.unwrap_err().to_string();
    assert!(error.contains("answered with more than 4194304 bytes"), "{error}");
}

#[tokio::test]
async fn two_toolsets_of_one_name_are_refused() {
    let (one, two) = (Toolset::start().await, Toolset::start().await);
    let error = rap::toolsets([one.source(), two.source()]).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "toolset \"builds\": another toolset has this name; give one of them a name of its own"
    );
}

#[tokio::test]
async fn rap_r18_endpoint_at_another_origin_is_refused_unless_it_is_allowed() {
    let other = Toolset::start().await;
    let endpoint = format!("{}/invoke", other.url);
    let manifest =
        move |_: &str| json!({"name": "set", "endpoint": endpoint, "tools": [tool("t", json!({}))]});
    let toolset = Toolset::serving(manifest, |_, _| 200).await;
    let error = toolset.source().await.unwrap_err().to_string();
    assert!(error.contains("refused as a whole"), "{error}");
    assert!(error.contains("allow the host if that is meant"), "{error}");
    assert!(other.others().await.is_empty(), "a packet left");
    let host = other.url.strip_prefix("http://").unwrap();
    let tools = toolset.source().host(host).bearer_token("hunter2").await.unwrap();
    let call = run(&tools, "t", Value::empty(), context());
    let (outcome, invocation) = tokio::join!(call, async {
        let invocation = other.invocation().await;
        invocation.answer("done").await;
        invocation
    });
    assert_eq!(model(&outcome), "done");
    assert!(!invocation.head.contains("hunter2"), "the token is for the toolset's own origin");
}

#[tokio::test]
async fn rap_r19_cancelled_call_is_cancelled_at_its_server_and_a_late_result_ignored() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let stop = CancellationToken::new();
    let (outcome, invocation) =
        call_with(&tools, &toolset, context().with_cancellation(stop.clone()), async |invocation| {
            stop.cancel();
            invocation
        })
        .await;
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    let cancel = toolset.next_of("/cancel_tool_call").await;
    let expected = json!({"thread_id": invocation.body["group_id"], "tool_call_id": invocation.body["id"]});
    assert_eq!(cancel.body, expected);
    assert_eq!(invocation.answer("late").await, 410);

    // A call whose future is dropped.
    let mut call = Box::pin(run(&tools, "t", Value::empty(), context()));
    let dropped = tokio::select! {
        _ = &mut call => unreachable!(),
        invocation = toolset.invocation() => invocation,
    };
    drop(call);
    assert_eq!(toolset.next_of("/cancel_tool_call").await.body["tool_call_id"], dropped.body["id"]);
    assert_eq!(dropped.answer("late").await, 410);
    assert_eq!(tools.counts().over, 2);
}

#[tokio::test]
async fn rap_r19_cancellations_are_sent_to_all_servers_at_once_and_not_awaited() {
    let deaf = |request: &Received, _| if request.path == "/cancel_tool_call" { NO_ANSWER } else { 200 };
    let slow = Toolset::with(json!([tool("t", json!({}))]), deaf).await;
    let quick = Toolset::start().await;
    let sources = [slow.source().await.unwrap(), quick.source().name("other").await.unwrap()];
    // The second time, the slow server has not answered the first cancellation.
    for _ in 0..2 {
        let stop = CancellationToken::new();
        let [first, second] = sources
            .each_ref()
            .map(|it| run(it, "t", Value::empty(), context().with_cancellation(stop.clone())));
        let (first, second, ()) = tokio::join!(first, second, async {
            slow.invocation().await;
            quick.invocation().await;
            stop.cancel();
        });
        for outcome in [first, second] {
            assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
        }
        slow.next_of("/cancel_tool_call").await;
        quick.next_of("/cancel_tool_call").await;
    }
}

#[tokio::test]
async fn rap_r19_closed_source_closes_its_thread_after_the_cancellations() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().bearer_token("hunter2").await.unwrap();
    let mut call = Box::pin(run(&tools, "t", Value::empty(), context()));
    let open = tokio::select! {
        _ = &mut call => unreachable!(),
        invocation = toolset.invocation() => invocation,
    };
    drop(call);
    tools.close().await;
    let (cancel, close) = (toolset.next().await, toolset.next().await);
    assert_eq!((&*cancel.path, &*close.path), ("/cancel_tool_call", "/close_thread"));
    assert_eq!(close.body, json!({"thread_id": open.body["group_id"]}));
    for request in [&open, &cancel, &close] {
        assert!(request.head.contains("authorization: bearer hunter2"), "{}", request.path);
    }
    let host = open.callback().split('/').nth(2).unwrap().to_owned();
    assert!(TcpStream::connect(host).await.is_err(), "it still listens");
}

#[tokio::test]
async fn closed_source_closes_its_thread_at_a_server_that_answers_no_cancellation() {
    let deaf = |request: &Received, _| if request.path == "/cancel_tool_call" { NO_ANSWER } else { 200 };
    let toolset = Toolset::with(json!([tool("t", json!({}))]), deaf).await;
    let tools = toolset.source().await.unwrap();
    let mut call = Box::pin(run(&tools, "t", Value::empty(), context()));
    tokio::select! {
        _ = &mut call => unreachable!(),
        _ = toolset.invocation() => {}
    }
    drop(call);
    tools.close().await;
    let paths = [toolset.next().await.path, toolset.next().await.path];
    assert_eq!(paths, ["/cancel_tool_call", "/close_thread"]);
}

#[tokio::test]
async fn rap_r29_callback_address_in_a_text_gives_no_access() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (outcome, token) = call_with(&tools, &toolset, context(), async |invocation| {
        let url = invocation.callback();
        let echoed = json!({"text": format!("I answer to {url}."), "own": url});
        assert_eq!(invocation.say("tool_result", echoed).await, 200);
        url.rsplit('/').next().unwrap().to_owned()
    })
    .await;
    let value = outcome.unwrap();
    assert!(!value.to_json().to_string().contains(&token), "{value:?}");
    assert!(model(&Ok(value)).ends_with("/rap/cb/[callback]."));
}

/// Answers the questions of a call by a function, and collects them.
fn answering(
    answer: impl Fn(&Prompt) -> Result<PromptAnswer, ToolError> + Send + Sync + 'static,
) -> (ToolContext, Arc<Mutex<Vec<Prompt>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, answer) = (Arc::clone(&asked), Arc::new(answer));
    let context = context().with_answers(move |prompt| {
        seen.lock().unwrap().push(prompt.clone());
        let answered = answer(&prompt);
        async move { answered }
    });
    (context, asked)
}

#[tokio::test]
async fn rap_r21_sign_in_is_asked_of_the_person_while_the_call_waits() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (context, asked) = answering(|_| Ok(PromptAnswer::done()));
    let url = "https://login.example/authorize?state=hunter2";
    let (outcome, ()) = call_with(&tools, &toolset, context, async |invocation| {
        for bad in ["http://login.example/", "javascript:alert(1)", ""] {
            assert_eq!(invocation.say("oauth", json!({"auth_url": bad})).await, 400, "{bad}");
        }
        assert_eq!(invocation.say("oauth", json!({"auth_url": url, "call_id": null})).await, 200);
        while asked.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(invocation.answer("signed in").await, 200);
        assert_eq!(invocation.say("oauth", json!({"auth_url": url})).await, 200);
    })
    .await;
    assert_eq!(model(&outcome), "signed in");
    assert_eq!(tools.counts().dropped, 1, "the second one came after the result");
    assert!(toolset.others().await.is_empty(), "the invocation was repeated");
    let asked = asked.lock().unwrap();
    let [Prompt::Authorize(prompt)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((&*prompt.url, prompt.service.as_deref()), (url, Some("builds")));
    assert!(prompt.text.as_ref().unwrap().starts_with("builds "));
}

#[tokio::test]
async fn rap_r21_declined_sign_in_ends_the_call() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    for (answer, code) in [
        (Ok(PromptAnswer::declined()), ErrorCode::PERMISSION_DENIED),
        (Err(ToolError::new(ErrorCode::EXECUTION_ERROR, "nobody is there")), ErrorCode::EXECUTION_ERROR),
    ] {
        let answer = Mutex::new(Some(answer));
        let (context, asked) = answering(move |_| answer.lock().unwrap().take().unwrap());
        let (outcome, _) = call_with(&tools, &toolset, context, async |invocation| {
            invocation.say("oauth", json!({"auth_url": "https://login.example/?state=hunter2"})).await
        })
        .await;
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), code);
        assert!(
            error.message().contains("\"builds\"") && !format!("{error:?}").contains("hunter2"),
            "{error}"
        );
        let asked = asked.lock().unwrap().remove(0);
        assert!(matches!(asked, Prompt::Authorize(prompt) if prompt.service.as_deref() == Some("builds")));
        toolset.next_of("/cancel_tool_call").await;
    }
}

/// Asks a choice of three, and returns what the tool gets.
async fn chosen(toolset: &Toolset, tools: &RapTools, context: ToolContext) -> Json {
    let (outcome, answer) = call_with(tools, toolset, context, async |invocation| {
        let choice = json!({
            "prompt": "Which size?", "choices": ["small", "medium", "large"], "default": 1,
            "response_url": format!("{}/answer/hunter2", toolset.url),
        });
        assert_eq!(invocation.say("user_choice", choice).await, 200);
        let answer = toolset.next().await;
        assert_eq!(answer.path, "/answer/hunter2");
        assert!(!answer.head.contains("authorization"), "no credential is passed on");
        assert_eq!(invocation.answer("ordered").await, 200);
        assert_eq!(answer.body["id"], invocation.body["id"]);
        answer.body["selected"].clone()
    })
    .await;
    assert_eq!(model(&outcome), "ordered");
    assert!(toolset.others().await.is_empty(), "it was answered twice");
    answer
}

#[tokio::test]
async fn rap_r22_choice_of_the_person_is_sent_once() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().bearer_token("hunter2").await.unwrap();
    let (context, asked) = answering(|_| Ok(PromptAnswer::choice(2)));
    assert_eq!(chosen(&toolset, &tools, context).await, 2);
    let Prompt::Choose(prompt) = &asked.lock().unwrap()[0] else { panic!() };
    assert_eq!(prompt.text, "builds asks: Which size?");
    assert_eq!((prompt.choices.len(), prompt.default), (3, Some(1)));
}

#[tokio::test]
async fn rap_r22_dismissed_or_impossible_choice_is_the_default() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    for answer in [
        Ok(PromptAnswer::cancelled()),
        Ok(PromptAnswer::choice(3)),
        Err(ToolError::new(ErrorCode::EXECUTION_ERROR, "nobody is there")),
    ] {
        let answer = Mutex::new(Some(answer));
        let (context, _) = answering(move |_| answer.lock().unwrap().take().unwrap());
        assert_eq!(chosen(&toolset, &tools, context).await, 1);
    }
    assert_eq!(chosen(&toolset, &tools, context()).await, 1, "nobody can be asked");
}

#[tokio::test]
async fn rap_r22_choice_without_an_answer_in_time_is_the_default() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let silent = ToolContext::new("caller", Duration::from_secs(4))
        .with_answers(|_| std::future::pending::<Result<PromptAnswer, ToolError>>());
    assert_eq!(chosen(&toolset, &tools, silent).await, 1);
}

#[tokio::test]
async fn sec_a2_answer_to_a_choice_goes_to_no_private_address() {
    let toolset = Toolset::start().await;
    let private = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (context, asked) = answering(|_| Ok(PromptAnswer::choice(0)));
    let (outcome, ()) = call_with(&tools, &toolset, context, async |invocation| {
        for bad in [
            &*private.url,
            "http://169.254.169.254/latest",
            "https://[::ffff:169.254.169.254]/",
            "https://10.0.0.7/",
            "http://public.example/",
            "file:///etc/passwd",
            "",
        ] {
            let choice = json!({"prompt": "?", "choices": ["a"], "default": 0, "response_url": bad});
            assert_eq!(invocation.say("user_choice", choice).await, 400, "{bad}");
        }
        invocation.answer("done").await;
    })
    .await;
    assert_eq!(model(&outcome), "done");
    assert!(asked.lock().unwrap().is_empty());
    assert!(private.others().await.is_empty(), "a packet left");
}

#[tokio::test]
async fn rap_r23_view_of_an_unknown_thread_is_refused_and_at_a_client_dropped() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let (_, ()) = call_with(&tools, &toolset, context(), async |invocation| {
        let view = json!({"view_type": "diff", "content": {"patch": "@@"}});
        let mut foreign = invocation.message("view_update", &view);
        foreign["group_id"] = "another".into();
        assert_eq!(post(&invocation.callback(), &foreign).await, 404);
        assert_eq!(
            invocation.say("view_update", json!({"view_type": "diff", "content": "patch"})).await,
            400
        );
        assert_eq!(invocation.say("view_update", view).await, 200);
        invocation.answer("done").await;
    })
    .await;
    assert_eq!((tools.counts().dropped, tools.counts().unknown, tools.counts().malformed), (1, 1, 1));
}

#[tokio::test]
async fn rap_r24_concurrent_messages_of_a_group_are_processed_one_at_a_time() {
    let toolset = Toolset::start().await;
    let tools = Arc::new(toolset.source().await.unwrap());
    let (outcome, ()) = call_with(&tools, &toolset, context(), async |invocation| {
        let posts = (0..64).map(|n| {
            let invocation = invocation.clone();
            async move { invocation.answer(&format!("{n}")).await }
        });
        assert!(futures_util::future::join_all(posts).await.iter().all(|status| *status == 200));
    })
    .await;
    assert!(model(&outcome).parse::<u8>().is_ok(), "{}", model(&outcome));
    let counts = tools.counts();
    assert_eq!((counts.accepted, counts.duplicates), (1, 63), "{counts:?}");
}

#[tokio::test]
async fn flood_of_messages_is_refused_and_a_call_beside_it_ends() {
    let toolset = Toolset::start().await;
    let tools = toolset.source().await.unwrap();
    let first = run(&tools, "t", Value::empty(), context());
    let second = run(&tools, "t", Value::empty(), context());
    let refused = AtomicUsize::new(0);
    let (first, second, ()) = tokio::join!(first, second, async {
        let (flooding, other) = (toolset.invocation().await, toolset.invocation().await);
        let mut rounds = 0;
        while rounds < 25 || refused.load(Ordering::Relaxed) == 0 {
            rounds += 1;
            let posts =
                (0..32).map(|_| flooding.say("view_update", json!({"view_type": "v", "content": {}})));
            let statuses = futures_util::future::join_all(posts).await;
            refused.fetch_add(statuses.iter().filter(|it| **it == 429).count(), Ordering::Relaxed);
            // Unknown tokens have a limit of their own.
            let stranger = flooding.callback() + "x";
            assert!([404, 429].contains(&post(&stranger, &json!({})).await));
        }
        assert_eq!(other.answer("other").await, 200);
        // The flood keeps only its own call waiting.
        while flooding.answer("flooding").await == 429 {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!((model(&first).len() + model(&second).len()), "other".len() + "flooding".len());
    let counts = tools.counts();
    // The rate allows 400 at once and 200 each second.
    assert!(counts.too_many > 0, "{counts:?}");
    assert!(counts.dropped >= 400, "{counts:?}");
}
