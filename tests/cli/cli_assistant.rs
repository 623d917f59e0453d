//! `toolbridge assistant` without a server: its output and its exit status.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::cli::{complaint, feed, run, text};

/// The options for an unreachable server and a key.
fn nowhere() -> Vec<String> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("ws://127.0.0.1:{port}");
    ["--room", "r", "--url", &url, "--api-key", "key", "--api-secret", "a secret of at least 32 characters"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn protocol_text_is_printed_and_help_names_the_option() {
    let output = run(&["assistant", "--protocol"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let contract = text(&output.stdout);
    for word in [
        "hello",
        "call",
        "cancel",
        "tools",
        "forget_permissions",
        "permissions_forgotten",
        "close",
        "result",
        "progress",
        "event",
        "error",
        "version 2",
        "ready",
        "join_failed",
        "bad_command",
    ] {
        assert!(contract.contains(word), "{word}");
    }
    let help = run(&["assistant", "--help"]);
    assert!(text(&help.stdout).contains("toolbridge assistant --protocol"), "{help:?}");
}

#[test]
fn failed_join_prints_one_line_and_wrong_usage_prints_none() {
    let (nowhere, line) = (nowhere(), b"{\"type\":\"call\",\"id\":1,\"tool\":\"t\"}\n");
    let arguments: Vec<_> = ["assistant"].into_iter().chain(nowhere.iter().map(String::as_str)).collect();
    let output = feed(&arguments, line);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&event["type"], &event["event"]), (&json!("event"), &json!("join_failed")), "{event}");
    let reason = event["reason"].as_str().unwrap();
    assert!(reason.contains("cannot be reached"), "{reason}");
    assert_eq!(text(&output.stderr), format!("toolbridge: {reason}\n"));
    assert!(complaint(&feed(&["assistant"], line), 2).contains("LIVEKIT_URL"));
    let missing = [&arguments[..], &["--tools", "/no/such/tools.toml"]].concat();
    assert!(complaint(&feed(&missing, line), 2).contains("/no/such/tools.toml"));
}

#[test]
fn sec_x3_tools_file_of_an_assistant_that_others_may_write_is_refused() {
    let folder = std::env::temp_dir().join(format!("toolbridge-it-assistant-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tools.toml");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let output = run(&["assistant", "--room", "r", "--tools", file.to_str().unwrap()]);
    let complaint = complaint(&output, 2);
    fs::remove_dir_all(&folder).unwrap();
    assert!(complaint.contains("tools.toml") && complaint.lines().count() == 1, "{complaint}");
}
