//! Recordings of real sessions, in `fixtures/recordings`: every verb says the same of them as when they were made.

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
fn each_session_is_there_with_what_info_says_of_it_and_nothing_else() {
    let there = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let wanted =
        SESSIONS.iter().flat_map(|it| ["mcap", "json"].map(|ending| format!("{}.{ending}", it.name)));
    assert_eq!(there.collect::<BTreeSet<_>>(), wanted.collect());
}

#[test]
fn info_says_what_it_said() {
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
fn calls_ended_as_they_did_nothing_is_against_the_contract_and_a_replay_says_the_same_again() {
    for session in SESSIONS {
        let wrong = wrong(&path(session.name, "mcap"), session);
        assert!(wrong.is_empty(), "{}: {wrong:#?}", session.name);
    }
}

#[test]
fn they_are_small_whole_and_hold_nothing_of_the_machine_that_made_them() {
    for session in SESSIONS {
        let file = path(session.name, "mcap");
        let size = fs::metadata(&file).unwrap().len();
        assert!(size < LARGEST, "{}: {size} bytes", session.name);
        let recording = Recording::open(&file).unwrap();
        let about = recording.about();
        assert!(about.finished && about.room.starts_with("recorded-"), "{about:?}");
        let said: Vec<_> = recording.entries().map(|entry| words(&entry)).collect();
        for foreign in ["/home", "/root", "/tmp", "/work", "127.0.0.1", "localhost", "ws://", "eyJ", "secret"]
        {
            assert!(!said.iter().any(|it| it.contains(foreign)), "{}: {foreign}", session.name);
        }
    }
}

fn words(entry: &Entry) -> String {
    match &entry.what {
        Happened::Packet(packet) => String::from_utf8_lossy(&packet.payload).into_owned(),
        other => format!("{other:?}"),
    }
}
