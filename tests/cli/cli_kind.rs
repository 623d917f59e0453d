//! Error messages of the built program for a new user: they state what to do.

use std::{fs, os::unix::fs::DirBuilderExt as _};

use serde_json::json;
use toolbridge::livekit::AccessKey;

use crate::cli::{complaint, feed, run, text, toolbridge};

const ROOM_VERBS: &[&[&str]] =
    &[&["call", "t"], &["client"], &["assistant"], &["tools"], &["watch"], &["ping"]];

#[test]
fn missing_options_are_reported_together() {
    for verb in ROOM_VERBS {
        let complaint = complaint(&run(verb), 2);
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        for word in
            ["LIVEKIT_URL", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET", "LIVEKIT_TOKEN", "--room", "--help"]
        {
            assert!(complaint.contains(word), "{verb:?} {word}: {complaint}");
        }
    }
    // A token cannot create a token.
    let output =
        toolbridge(&["token", "--room", "r", "--identity", "i"]).env("LIVEKIT_TOKEN", "t").output().unwrap();
    let complaint = complaint(&output, 2);
    assert!(complaint.contains("LIVEKIT_API_SECRET") && !complaint.contains("LIVEKIT_TOKEN"), "{complaint}");
}

#[test]
fn token_of_another_role_is_refused_before_joining() {
    let key = AccessKey::new("key", "a secret of at least 32 characters");
    let tokens = [
        ("client", key.client("r", "i").sign().unwrap()),
        ("assistant", key.assistant("r", "i").sign().unwrap()),
        ("observer", key.observer("r", "i").sign().unwrap()),
    ];
    for verb in ROOM_VERBS {
        let needed = match verb[0] {
            "client" => "client",
            "tools" | "watch" => "observer",
            _ => "assistant",
        };
        for (role, token) in &tokens {
            let arguments = [*verb, &["--url", "ws://127.0.0.1:1", "--token", token]].concat();
            let output = run(&arguments);
            if *role == needed {
                let status = if verb[0] == "call" { 4 } else { 1 };
                assert_eq!(output.status.code(), Some(status), "{verb:?}: {output:?}");
                assert!(text(&output.stderr).contains("cannot be reached"), "{verb:?} {role}");
            } else {
                let complaint = complaint(&output, 2);
                assert!(complaint.contains(&format!("needs the role {needed}")), "{verb:?}: {complaint}");
                assert!(!complaint.contains(token.as_str()), "a token is shown");
            }
        }
    }
    // Without a role, an observer of all tools would never receive anything.
    let plain = key.participant("r", "i").sign().unwrap();
    let output = run(&["tools", "--url", "ws://127.0.0.1:1", "--token", &plain]);
    assert!(complaint(&output, 2).contains("--role observer"), "{output:?}");
}

#[test]
fn method_that_cannot_be_called_by_rpc_is_a_usage_error() {
    let key = AccessKey::new("key", "a secret of at least 32 characters");
    let token = key.assistant("r", "i").sign().unwrap();
    let there = ["--url", "ws://127.0.0.1:1", "--token", &token];
    for (method, why) in [
        ("bridge.echo", "reserved for the protocol"),
        ("lk.chat", "reserved for methods of LiveKit"),
        (&*"x".repeat(513), "1 to 512 bytes"),
    ] {
        let output = run(&[&["call", method, "{}", "--to", "web", "--via", "rpc"][..], &there].concat());
        let complaint = complaint(&output, 2);
        assert!(complaint.contains(method) && complaint.contains(why), "{complaint}");
    }
    for arguments in [&["--via", "rpc"][..], &["--to", "web", "--via", "mail"]] {
        let output = run(&[&["call", "locate", "{}"], arguments, &there].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            text(&output.stderr).contains("--via") || text(&output.stderr).contains("--to"),
            "{output:?}"
        );
    }
}

#[test]
fn key_file_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let path = std::env::temp_dir().join(format!("toolbridge-key-{}", std::process::id()));
    fs::write(&path, "a shared key\n").unwrap();
    let token =
        AccessKey::new("key", "a secret of at least 32 characters").assistant("r", "i").sign().unwrap();
    for (mode, is_refused) in [(0o644, true), (0o660, true), (0o602, true), (0o600, false), (0o400, false)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let there = ["call", "t", "--url", "ws://127.0.0.1:1", "--token", &token, "--e2ee-key-file"];
        let output = run(&[&there[..], &[path.to_str().unwrap()]].concat());
        let said = text(&output.stderr);
        assert_eq!(said.contains("chmod 600"), is_refused, "{mode:o}: {said}");
        assert!(!said.contains("a shared key"), "{said}");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn error_in_a_tools_file_is_reported_with_the_file_name() {
    let folder = std::env::temp_dir().join(format!("toolbridge-it-kind-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tools.toml");
    for (wrong, says) in [("[[tools]]\nname = 5", "line "), ("\n\nwords", "line 3")] {
        fs::write(&file, wrong).unwrap();
        for verb in ["client", "assistant"] {
            let complaint = complaint(&run(&[verb, "--room", "r", "--tools", file.to_str().unwrap()]), 2);
            assert!(complaint.contains("tools.toml: ") && complaint.contains(says), "{complaint}");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn arguments_may_come_by_standard_input_and_hold_what_json_lacks() {
    let room = ["--room", "r", "--url", "ws://127.0.0.1:1", "--api-key", "k", "--api-secret", "s"];
    let arguments = [&["call", "t", "-"][..], &room].concat();
    let long = json!({"text": "x".repeat(300_000), "bytes": {"$bin": "AAEC"}}).to_string();
    assert!(complaint(&feed(&arguments, long.as_bytes()), 4).contains("cannot be reached"));
    for wrong in [&b"{"[..], b"", b"[1]", br#"{"a": {"$bin": 5}}"#] {
        assert!(complaint(&feed(&arguments, wrong), 2).contains("JSON"), "{wrong:?}");
    }
}

#[test]
fn invalid_log_filter_is_reported() {
    let output = toolbridge(&["demo"]).env("RUST_LOG", "toolbridge=loud").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("RUST_LOG is invalid"), "{output:?}");
}

#[test]
fn demo_that_cannot_start_prints_nothing() {
    complaint(&run(&["demo", "--url", "ws://127.0.0.1:1"]), 2);
}

#[test]
fn tool_that_needs_consent_is_reported_with_the_options_that_give_it() {
    let folder = std::env::temp_dir().join(format!("toolbridge-it-consent-{}", std::process::id()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).unwrap();
    let file = folder.join("tools.toml");
    let tool =
        "[[tools]]\nname = \"erase\"\ndescription = \"\"\ncommand = [\"/bin/true\"]\ndestructive = true\n";
    fs::write(&file, tool).unwrap();
    let file = file.to_str().unwrap();
    let key = AccessKey::new("key", "a secret of at least 32 characters");
    let client = key.client("r", "i").sign().unwrap();
    let there = ["--url", "ws://127.0.0.1:1", "--token", client.as_str(), "--tools", file];
    let run_with = |more: &[&str]| feed(&[&["client"], &there[..], more].concat(), b"");
    // Standard input is not a terminal here.
    let message = complaint(&run_with(&[]), 2);
    assert!(
        message.contains("\"erase\"") && message.contains("--yes erase") && message.contains("terminal"),
        "{message}"
    );
    assert!(complaint(&run_with(&["--yes", "eraze"]), 2).contains("no tool with this name"));
    assert!(complaint(&run_with(&["--yes", "erase"]), 1).contains("cannot be reached"));
    // An assistant's standard input belongs to its driver.
    let assistant = key.assistant("r", "i").sign().unwrap();
    let there = ["assistant", "--url", "ws://127.0.0.1:1", "--token", assistant.as_str(), "--tools", file];
    let message = complaint(&feed(&there, b""), 2);
    assert!(message.contains("--yes erase") && !message.contains("terminal"), "{message}");
    fs::remove_dir_all(&folder).unwrap();
}
