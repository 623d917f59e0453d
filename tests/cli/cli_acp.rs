//! `--acp` of the command line, and `toolbridge acp`.

use crate::{
    acp_script::AgentScript,
    cli::{complaint, feed, run, toolbridge},
};

#[test]
fn wrong_agent_is_named_before_anything_is_joined() {
    let there = ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--acp"];
    for (wrong, why) in [
        ("name=", "a command or a URL is missing"),
        ("no-such-program-here", "there is no program no-such-program-here"),
        ("'unbalanced", "a quote that is not closed"),
    ] {
        let refused = complaint(&run(&[&there[..], &[wrong]].concat()), 2);
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn unreachable_server_of_a_conversation_is_a_failure_with_advice() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("ws://127.0.0.1:{port}");
    let script = AgentScript::new("acp-unreachable");
    drop(script.agent("", ""));
    let command = script.command();
    let (program, file) = command.split_once(' ').unwrap();
    let key = ["--api-key", "key", "--api-secret", "a secret of at least 32 characters"];
    let arguments = [&["acp", "--room", "r", "--url", &url], &key[..], &["--", program, file]].concat();
    let refused = complaint(&run(&arguments), 1);
    assert!(refused.contains(&format!("127.0.0.1:{port} cannot be reached")), "{refused}");
    assert!(refused.contains("check the host name, the port") && refused.lines().count() == 1, "{refused}");
}

#[test]
fn log_of_the_command_line_has_no_message_of_an_agent() {
    let script = AgentScript::new("acp-cli-log");
    let more = r#"
        echo planted-stderr >&2
        initialize() { answer "$1" '{"protocolVersion":1,"_meta":{"key":"planted-message"}}'; }"#;
    drop(script.agent("", more));
    let command = script.command();
    let (program, file) = command.split_once(' ').unwrap();
    let key = ["--api-key", "key", "--api-secret", "planted-secret of at least 32 characters"];
    let arguments =
        [&["acp", "--room", "r", "--url", "ws://127.0.0.1:1"], &key[..], &["--", program, file]].concat();
    let output = toolbridge(&arguments).env("RUST_LOG", "trace").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("an agent is up") && !log.contains("planted"), "{log}");
}

#[test]
fn agent_needs_consent_or_a_yes() {
    let script = AgentScript::new("acp-cli");
    drop(script.agent("", ""));
    let agent = format!("coder={}", script.command());
    let there = ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--acp", &agent];
    let refused = complaint(&feed(&there, b""), 2);
    assert!(refused.contains("--yes coder"), "{refused}");
    let allowed = feed(&[&there[..], &["--yes", "coder"]].concat(), b"");
    assert!(!String::from_utf8_lossy(&allowed.stderr).contains("needs consent"), "{allowed:?}");
}
