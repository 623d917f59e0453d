//! Recordings of real sessions, in `fixtures/recordings`: every verb prints the same as when they were made.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::Value;
use toolbridge::recording::{Entry, Happened, Recording};

use crate::{
    cli::run,
    recorded::{SESSIONS, wrong},
};

/// The largest file, in bytes.
const LARGEST: u64 = 30_000;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings")
}

fn path(name: &str, ending: &str) -> PathBuf {
    folder().join(format!("{name}.{ending}"))
}

#[test]
fn sessions_in_the_folder_match_their_info_files() {
    let there = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let wanted =
        SESSIONS.iter().flat_map(|it| ["mcap", "json"].map(|ending| format!("{}.{ending}", it.name)));
    assert_eq!(there.collect::<BTreeSet<_>>(), wanted.collect());
}

#[test]
fn info_output_is_unchanged() {
    for session in SESSIONS {
        let file = path(session.name, "mcap");
        let output = run(&["info", file.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{}: {output:?}", session.name);
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected: Value = serde_json::from_slice(&fs::read(path(session.name, "json")).unwrap()).unwrap();
        assert_eq!(info, expected, "{}: {info:#}", session.name);
    }
}

#[test]
fn recordings_have_the_same_outcomes_no_findings_and_equal_replays() {
    for session in SESSIONS {
        let wrong = wrong(&path(session.name, "mcap"), session);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", session.name);
    }
}

#[test]
fn recordings_are_small_complete_and_free_of_machine_data() {
    for session in SESSIONS {
        let file = path(session.name, "mcap");
        let size = fs::metadata(&file).unwrap().len();
        assert!(size < LARGEST, "{}: {size} bytes", session.name);
        let recording = Recording::open(&file).unwrap();
        let about = recording.about();
        assert!(about.finished && about.room.starts_with("recorded-"), "{about:?}");
        let texts: Vec<_> = recording.entries().map(|entry| words(&entry)).collect();
        for foreign in ["/home", "/root", "/tmp", "/work", "127.0.0.1", "localhost", "ws://", "eyJ", "secret"]
        {
            assert!(!texts.iter().any(|it| it.contains(foreign)), "{}: {foreign}", session.name);
        }
    }
}

fn words(entry: &Entry) -> String {
    match &entry.what {
        Happened::Packet(packet) => String::from_utf8_lossy(&packet.payload).into_owned(),
        other => format!("{other:?}"),
    }
}
