//! Recordings with metadata only: what they hold, what they say of themselves, and what their readers do with them.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};
use toolbridge::{
    Assistant, CallError, Client, ToolContext, ToolError,
    memory::MemoryRoom,
    recording::{RecordedOutcome, RecorderOptions, Recording, calls, check, info, repair},
    replay::{Cassette, LiveError, Replay},
};

use crate::{
    cli::{run, text},
    folder::Folder,
    secrets::assert_free,
};

const SECRET: &str = "planted-hunter2";

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Note {
    #[expect(dead_code, reason = "only its transport matters")]
    note: String,
}

async fn remember(context: ToolContext, _: Note) -> Result<Value, ToolError> {
    context.progress(format!("progress {SECRET}"));
    Ok(json!({"kept": SECRET}))
}

async fn forget() -> Result<(), ToolError> {
    Err(ToolError::new("no_such_note", format!("no note {SECRET}")))
}

#[tokio::test]
async fn sec_p3_recording_with_metadata_only_has_no_argument_result_or_text_and_says_so() {
    let folder = Folder::new();
    let (file, mended) = (folder.file("phone.mcap"), folder.file("mended.mcap"));
    let room = MemoryRoom::new();
    let phone = Client::builder()
        .tool("remember", &format!("description {SECRET}"), remember)
        .tool("forget", "", forget)
        .record(&file)
        .record_options(RecorderOptions::default().metadata_only());
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    assistant.call("remember", json!({"note": SECRET})).await.unwrap();
    assert!(matches!(assistant.call("forget", ()).await, Err(CallError::Tool(_))));
    assistant.close().await;
    phone.close().await;

    assert_free("the live file", &fs::read(&file).unwrap(), &[SECRET]);
    repair(&file, &mended, false).unwrap();
    for file in [&file, &mended] {
        let recording = Recording::open(file).unwrap();
        assert!(recording.about().metadata_only && recording.about().finished);
        for entry in recording.entries() {
            assert_free("an entry", format!("{entry:?}").as_bytes(), &[SECRET]);
            if let toolbridge::recording::Happened::Packet(packet) = entry.what {
                assert_free("a packet", &packet.payload, &[SECRET]);
            }
        }
        let entries = || Recording::open(file).unwrap().entries();
        let found = calls(entries()).calls;
        let shown: Vec<_> = found.iter().map(|call| (call.tool.as_str(), call.outcome.as_str())).collect();
        assert_eq!((shown[0], shown[1].0), (("remember", "ok"), "forget"));
        // A code of the tool's own is a text.
        assert!(matches!(found[1].outcome, RecordedOutcome::Failed { .. }), "{:?}", found[1].outcome);
        assert!(found.iter().all(|call| call.requested.is_some() && call.settled.is_some()));
        assert_eq!(found[0].parameters, Some(6 + SECRET.len() + 1), "the size of the original");
        assert_eq!(info(entries()).identity, "phone");
        assert_eq!(check(entries()).errors, 0, "{:?}", check(entries()).findings);
        let report = Replay::dry(entries()).unwrap();
        assert!(report.is_same() && report.compared > 3, "{report}");
        let refused = Cassette::open(file).err();
        assert!(matches!(refused, Some(LiveError::MetadataOnly)), "{refused:?}");
    }
}

#[test]
fn verbs_say_that_a_recording_has_metadata_only_and_a_live_replay_refuses_it() {
    let folder = Folder::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/recordings/success.mcap");
    let copy = folder.file("copy.mcap").display().to_string();
    assert!(run(&["redact", source, &copy]).status.success());
    let says = |arguments: &[&str]| text(&run(arguments).stderr).contains("metadata only");
    for verb in [&["info"][..], &["calls"], &["cat"], &["check"], &["replay"]] {
        assert!(says(&[verb, &[&copy]].concat()), "{verb:?}");
        assert!(!says(&[verb, &[source]].concat()), "{verb:?}");
    }
    let info = run(&["info", &copy, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(text(&info.stdout)).unwrap()["metadataOnly"], true);
    assert_eq!(run(&["replay", &copy]).status.code(), Some(0));
    let page = run(&["report", &copy, "--output", "-"]);
    assert!(text(&page.stdout).contains("metadata only"), "{}", text(&page.stderr));
    for end in ["client", "assistant"] {
        let refused = run(&["replay", &copy, "--as", end]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(text(&refused.stderr).contains("no arguments to call with"), "{refused:?}");
    }
}

#[test]
fn sec_p3_recording_of_an_encrypted_room_in_clear_text_is_said_at_the_start() {
    let folder = Folder::new();
    let key = folder.file("key");
    fs::write(&key, "a shared key").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let [key, file] = [key, folder.file("out.mcap")].map(|path| path.display().to_string());
    // The port is closed: it is said before the room is joined.
    let room = ["--room", "r", "--url", "ws://127.0.0.1:1", "--api-key", "k", "--api-secret", "s"];
    let record = ["--record", &file];
    for verb in [
        [&["client"], &record[..]].concat(),
        [&["assistant"], &record[..]].concat(),
        [&["call", "nothing", "--wait", "0s"], &record[..]].concat(),
        [&["watch"], &record[..]].concat(),
        vec!["record", &file],
    ] {
        let stderr = |more: &[&str]| {
            let output = run(&[&verb[..], &room, more].concat());
            let _ = fs::remove_file(&file);
            text(&output.stderr).to_owned()
        };
        let said = stderr(&["--e2ee-key-file", &key]);
        let first = said.lines().next().unwrap_or_default();
        assert!(first.contains("in clear text") && first.contains(&file), "{verb:?}: {said}");
        assert!(!stderr(&[]).contains("in clear text"), "{verb:?}");
        let only = stderr(&["--e2ee-key-file", &key, "--record-metadata-only"]);
        assert!(!only.contains("in clear text") && !only.contains("error:"), "{verb:?}: {only}");
    }
}
