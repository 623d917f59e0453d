//! `--rap` of the command line: what is read, what is printed, and what is refused.

use std::{
    io::Write as _,
    process::{Child, Output, Stdio},
};

use serde_json::json;

use crate::{
    cli::{complaint, feed, run, text, toolbridge},
    cli_dev::dev,
    program_tools,
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
    let client = client.envs(settings.clone()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
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
    end([client, server]);
}

/// Ends the processes that still run.
fn end(processes: impl IntoIterator<Item = Child>) {
    for mut process in processes {
        let _ = process.kill(); // it may have ended
        process.wait().unwrap();
    }
}

#[tokio::test]
async fn assistant_of_the_command_line_runs_the_tools_of_a_toolset() {
    let toolset = Toolset::start().await;
    let (server, settings) = dev();
    let url = format!("builds={}", toolset.url);
    let mut assistant = toolbridge(&["assistant", "--room", "r", "--rap", &url, "--yes", "builds.*"]);
    let assistant =
        assistant.envs(settings).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut assistant = assistant.spawn().unwrap();
    writeln!(assistant.stdin.take().unwrap(), r#"{{"type": "call", "id": 1, "tool": "t"}}"#).unwrap();
    assert_eq!(toolset.invocation().await.answer("Deployed.").await, 200);
    let ended = tokio::task::spawn_blocking(|| assistant.wait_with_output().unwrap()).await.unwrap();
    let printed = text(&ended.stdout);
    assert!(printed.contains("\"value\":") && printed.contains("Deployed."), "{ended:?}");
    end([server]);
}

#[tokio::test]
async fn keys_of_a_toolset_in_a_file_have_an_effect() {
    let tools = json!([tool("start", json!({})), tool("stop", json!({})), tool("wipe", json!({}))]);
    let toolset = Toolset::of(tools).await;
    let file = program_tools::file(
        &program_tools::folder("cli-rap-file"),
        &format!(
            "[[rap]]\nname = \"builds\"\nurl = {:?}\ncallback = \"127.0.0.1:0\"\ncallback_url = \"https://me.example.com/\"\n\
             bearer_env = \"BUILDS_TOKEN\"\nuser_id = \"ada\"\nprefix = \"ci\"\nallow = [\"st*\"]\ndeny = [\"stop\"]\n\
             consent = \"never\"\ntimeout = \"2m\"\n",
            toolset.url
        ),
    );
    let (server, settings) = dev();
    let mut client = toolbridge(&["client", "--room", "r", "--tools", file.to_str().unwrap()]);
    let client = client.envs(settings.clone()).env("BUILDS_TOKEN", "planted-token");
    let client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut call = toolbridge(&["call", "--room", "r", "ci.start"]);
    let call = call.envs(settings.clone()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let manifest = toolset.next().await;
    let invocation = toolset.invocation().await;
    for request in [&manifest, &invocation] {
        assert!(request.head.contains("authorization: bearer planted-token"), "{}", request.path);
    }
    assert_eq!(
        (&invocation.body["operation"], &invocation.body["user_id"]),
        (&json!("start"), &json!("ada"))
    );
    assert!(invocation.callback().starts_with("https://me.example.com/rap/cb/"), "{}", invocation.callback());
    let mut listed = toolbridge(&["tools", "--room", "r", "--json"]);
    let listed = listed.envs(settings);
    let listed = text(&listed.output().unwrap().stdout).to_owned();
    assert!(listed.contains("ci.start") && !listed.contains("stop") && !listed.contains("wipe"), "{listed}");
    assert!(listed.contains("120000"), "its time limit: {listed}");
    end([call, client, server]);
}
