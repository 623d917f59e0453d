//! `--rap` of the command line: what is read, what is printed, and what is refused.

use std::process::{Output, Stdio};

use serde_json::json;

use crate::{
    cli::{complaint, feed, run, text, toolbridge},
    cli_dev::dev,
    rap_toolset::{Toolset, tool},
};

/// Runs the command while the toolset answers.
async fn beside(arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
    let running = move || feed(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), b"");
    tokio::task::spawn_blocking(running).await.unwrap()
}

#[tokio::test]
async fn tools_of_a_toolset_are_listed_and_those_of_two_are_not() {
    let one = Toolset::of(json!([tool("deploy", json!({})), tool("shared", json!({}))])).await;
    let two = Toolset::of(json!([tool("shared", json!({})), tool("cancel_subscription", json!({}))])).await;
    let listed = beside(&["tools", "--rap", &format!("builds={}", one.url), "--rap", &two.url]).await;
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    let printed = text(&listed.stdout);
    assert!(
        printed.contains("builds") && printed.contains("deploy") && !printed.contains("shared"),
        "{printed}"
    );
    let warned = text(&listed.stderr);
    assert!(warned.contains("shared of builds is not offered: another toolset offers shared"), "{warned}");
}

#[tokio::test]
async fn tool_of_a_toolset_needs_consent_or_a_yes() {
    let toolset = Toolset::start().await;
    let url = format!("builds={}", toolset.url);
    let there = ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--rap", &url];
    let refused = complaint(&beside(&there).await, 2);
    assert!(refused.contains("--yes t") && refused.contains("--yes 'builds.*'"), "{refused}");
    let allowed = beside(&[&there[..], &["--yes", "builds.*"]].concat()).await;
    assert!(!text(&allowed.stderr).contains("needs consent"), "{allowed:?}");
}

#[test]
fn toolset_that_is_down_is_announced_and_all_its_tools_can_be_allowed() {
    let there =
        ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--rap", "builds=http://127.0.0.1:9"];
    let allowed = feed(&[&there[..], &["--yes", "builds.*"]].concat(), b"");
    let said = text(&allowed.stderr);
    assert!(said.contains("builds is down: 127.0.0.1:9 cannot be reached"), "{said}");
    assert!(said.contains("it is read again until it answers") && !said.contains("--yes"), "{said}");
    let unknown = complaint(&feed(&[&there[..], &["--yes", "start"]].concat(), b""), 2);
    assert!(unknown.contains("--yes \"start\": there is no tool with this name"), "{unknown}");
}

#[test]
fn toolset_that_cannot_be_used_is_refused_without_its_secrets() {
    for (wrong, why, status) in [
        ("", "a URL such as", 2),
        ("builds=", "a URL such as", 2),
        ("tools.example.com", "a URL such as", 2),
        ("http://tools.example.com/hunter2", "plain http", 2),
        ("https://me:hunter2@tools.example.com/", "without user", 2),
        ("https://tools.example.com/?key=hunter2", "query", 2),
        ("http://127.0.0.1:9/hunter2", "cannot be reached", 1),
    ] {
        let refused = complaint(&run(&["tools", "--rap", wrong]), status);
        assert!(refused.contains(why) && !refused.contains("hunter2"), "{wrong}: {refused}");
    }
}

#[tokio::test]
async fn call_from_the_command_line_reaches_a_tool_and_its_answer_returns() {
    let toolset = Toolset::start().await;
    let (server, settings) = dev();
    let url = format!("builds={}", toolset.url);
    let mut client = toolbridge(&["client", "--room", "r", "--rap", &url, "--yes", "builds.*"]);
    let mut client =
        client.envs(settings.clone()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut call = toolbridge(&["call", "--room", "r", "t", "{\"n\": 5}"]);
    let call = call.envs(settings).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let invocation = toolset.invocation().await;
    assert_eq!(invocation.body["arguments"], json!({"n": 5}));
    let display = json!([{"type": "text", "content": "Deployed i-1"}]);
    let result = json!({"text": "Deployed instance i-1 in 42 s.", "display_as": display});
    assert_eq!(invocation.say("tool_result", result).await, 200);
    let called = tokio::task::spawn_blocking(|| call.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(called.status.code(), Some(0), "{called:?}");
    assert!(text(&called.stdout).contains("Deployed"), "{called:?}");
    for mut process in
        [client.try_wait().unwrap().is_none().then_some(client), Some(server)].into_iter().flatten()
    {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
