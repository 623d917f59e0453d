//! `toolbridge replay` without a server: what it would send, and which files it rejects.

use std::{fs, net::TcpListener, process::Output};

use serde_json::{Value, json};
use toolbridge::recording::{Entry, Recorder, RecorderOptions};

use crate::{
    cassette::{answered, asked, beginning, offered},
    cli::{complaint, run, text, toolbridge},
    folder::Folder,
    recording_said::{closed, here, joined},
};

fn recording(folder: &Folder, entries: Vec<Entry>) -> String {
    let path = folder.file("session.mcap");
    let recorder = Recorder::create(&path, RecorderOptions::default().force(true)).unwrap();
    for entry in entries {
        recorder.record(entry);
    }
    recorder.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

/// Two calls of a lamp, one of a destructive door, one with a secret.
fn session() -> Vec<Entry> {
    let mut entries = beginning();
    let door = json!([
        {"name": "lamp", "description": "A lamp"},
        {"name": "door", "description": "A door", "annotations": {"destructive": true}},
    ]);
    entries.extend([
        offered(1_003, &door),
        asked(2_000, -1, "a", "lamp", &json!({"on": true})),
        answered(2_050, 2, "a", &json!({"ok": 1})),
        asked(2_100, -2, "b", "lamp", &json!({"text": "\u{1b}[31m\u{202e}red"})),
        answered(2_150, 3, "b", &json!({"ok": 2})),
        asked(2_200, -3, "c", "door", &json!({})),
        answered(2_250, 4, "c", &json!({})),
        asked(2_300, -4, "d", "lamp", &json!({"password": "hunter2"})),
        answered(2_350, 5, "d", &json!({})),
        closed(3_000),
    ]);
    entries
}

fn rows(output: &Output) -> Vec<&str> {
    text(&output.stdout).lines().collect()
}

/// A listener at the server's address sees no connection: nothing is even tried.
#[test]
fn sec_y2_replay_without_live_or_allow_sends_nothing_and_prints_its_plan() {
    let folder = Folder::new();
    let file = recording(&folder, session());
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let url = format!("ws://{}", server.local_addr().unwrap());
    let replay = |more: &[&str]| {
        let all = [&["replay", &file, "--as", "assistant", "--room", "r"], more].concat();
        let mut command = toolbridge(&all);
        command
            .env("LIVEKIT_URL", &url)
            .env("LIVEKIT_API_KEY", "devkey")
            .env("LIVEKIT_API_SECRET", "x".repeat(32));
        command.output().unwrap()
    };
    let cases: [(&[&str], [&str; 4]); 4] = [
        (&[], ["not allowed"; 4]),
        (&["--live"], ["not allowed"; 4]),
        (&["--allow", "lamp"], ["would call", "would call", "not allowed", "redacted parameters"]),
        (
            &["--allow", "lamp", "--allow", "door", "--destructive", "--speed", "max", "--to", "phone"],
            ["would call", "would call", "would call", "redacted parameters"],
        ),
    ];
    for (options, verdicts) in cases {
        let output = replay(options);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
        let rows = rows(&output);
        assert_eq!(rows.len(), 5, "{rows:?}");
        for (row, verdict) in rows.iter().zip(verdicts) {
            assert!(row.contains(verdict), "{options:?}: {row}");
        }
        assert!(text(&output.stderr).contains("nothing was sent"), "{output:?}");
        assert!(!text(&output.stdout).contains('\u{1b}') && !text(&output.stdout).contains("hunter2"));
    }
    // A destructive tool needs an option of its own; without other calls, nothing is sent.
    let output = replay(&["--live", "--allow", "door"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("and --destructive for tools marked destructive"), "{output:?}");
    assert!(rows(&output)[2].contains("destructive") && rows(&output)[4].starts_with("0 of 4"), "{output:?}");
    let output = replay(&["--json", "--allow", "lamp"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = &plan["calls"][0];
    assert_eq!((&first["tool"], &first["parameters"]), (&json!("lamp"), &json!({"on": true})));
    assert_eq!((&first["not_asked"], &first["limitMs"]), (&json!(null), &json!(5000.0)));
    assert_eq!((&first["outcome"], &first["owner"]), (&json!("ok"), &json!("phone")));
    assert_eq!(plan["calls"][3]["not_asked"], "redacted");
    let wrong = complaint(&replay(&["--live", "--allow", "fly"]), 2);
    assert!(wrong.contains(r#"--allow "fly": the recording has no call to this tool"#), "{wrong}");
    assert!(server.accept().is_err(), "something connected to the server");
}

#[test]
fn options_without_a_meaning_here_are_refused() {
    let folder = Folder::new();
    let file = recording(&folder, session());
    for (options, expected) in [
        (&["--loose"][..], "--loose requires --as client"),
        (&["--live"], "--live requires --as assistant"),
        (&["--room", "r"], "--room or --identity requires --as client or --as assistant"),
        (&["--record", "x.mcap"], "--record requires"),
        (&["--as", "client", "--record", &file, "--force"], "is the recording being replayed"),
        (&["--as", "client", "--allow", "lamp"], "--allow requires --as assistant"),
        (&["--as", "client", "--speed", "max"], "--speed requires --as assistant"),
        (&["--as", "assistant", "--timing", "fast"], "--timing requires --as client"),
        (&["--as", "observer"], "invalid value 'observer'"),
        (&["--as", "assistant", "--speed", "7"], "invalid value '7'"),
        (&["--as", "client"], "no server: set LIVEKIT_URL"),
        (&["--as", "assistant", "--live", "--allow", "lamp"], "no server: set LIVEKIT_URL"),
    ] {
        let message = complaint(&run(&[&["replay", &file], options].concat()), 2);
        assert!(message.contains(expected), "{options:?}: {message}");
    }
}

#[test]
fn file_without_a_recording_or_calls_cannot_be_replayed() {
    let folder = Folder::new();
    let other = folder.file("other.mcap").to_str().unwrap().to_owned();
    fs::write(&other, "no recording").unwrap();
    let empty = recording(
        &folder,
        vec![here(1_000, "observer"), joined(1_001, "phone", Some("client")), closed(2_000)],
    );
    for end in ["client", "assistant"] {
        let replay = |file: &str| run(&["replay", file, "--as", end, "--room", "r"]);
        assert!(complaint(&replay("none.mcap"), 2).contains("cannot read `none.mcap`"));
        assert!(complaint(&replay(&other), 1).contains("not an MCAP file"));
        assert!(complaint(&replay(&empty), 1).contains("no call to a client"));
    }
}

/// Wherever the file is cut, the damage is named, and not a consequence of it.
#[test]
fn truncated_file_is_reported_with_its_position() {
    let folder = Folder::new();
    let file = recording(&folder, session());
    let whole = fs::read(&file).unwrap();
    let cut = folder.file("cut.mcap").to_str().unwrap().to_owned();
    let (mut named, mut none) = (0, 0);
    for part in 1..24 {
        fs::write(&cut, &whole[..whole.len() * part / 24]).unwrap();
        for options in [&[][..], &["--as", "assistant"], &["--as", "client"]] {
            let output = run(&[&["replay", &cut], options].concat());
            let (message, status) = (text(&output.stderr), output.status.code());
            assert!(!message.contains("`here`") && !message.contains("no call"), "{part}: {message}");
            if message.contains("damaged at byte") {
                // With enough of the file left, the verb continues, and it got no other options here.
                assert!(matches!((options.len(), status), (_, Some(3)) | (2, Some(2))), "{part}: {output:?}");
                named += 1;
            } else {
                assert_eq!(status, Some(1), "{part}: {output:?}");
                none += 1;
            }
        }
    }
    assert!(named > 30 && none > 0, "{named} and {none}");
    // Before its first event, and after all of them.
    let start = whole.windows(4).position(|it| it == b"\x28\xb5\x2f\xfd").unwrap();
    for (at, options, status) in [(start + 8, "assistant", 3), (whole.len() - 20, "assistant", 2)] {
        fs::write(&cut, &whole[..at]).unwrap();
        let output = run(&["replay", &cut, "--as", options]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(text(&output.stderr).contains("damaged at byte"), "{output:?}");
    }
}
