//! Frames made by MessagePack libraries of other languages, and the JSON that they must decode to.
//! `fixtures/README.md` names their makers.

#![expect(clippy::unwrap_used, reason = "the fixtures are part of the crate")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use toolbridge::frame::Frame;

#[test]
fn frames_of_other_languages_decode_as_expected() {
    let mut makers = BTreeMap::<String, u32>::new();
    for path in fixtures("frames") {
        let (case, maker) = case_and_maker(&path);
        let expected: Value =
            read(&path.with_file_name(format!("{case}.json")), |text| serde_json::from_slice(text));
        let frame =
            Frame::decode(fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let shown = frame.to_json().unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(shown.to_string(), expected.to_string(), "{path:?}");

        let again = Frame::from_json(&shown.to_string()).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(again.to_json().unwrap().to_string(), shown.to_string(), "{path:?}");
        assert_eq!(again.kind(), frame.kind());
        *makers.entry(maker).or_default() += 1;
    }
    let names: Vec<_> = makers.keys().map(String::as_str).collect();
    assert_eq!(names, ["go", "msgpackjs", "msgpackr", "python"]);
    assert!(makers.values().all(|count| *count >= 50), "{makers:?}");
}

#[test]
fn malformed_frames_are_refused_for_the_expected_reason() {
    let mut count = 0;
    for path in fixtures("refused") {
        let (case, _) = case_and_maker(&path);
        let reason = fs::read_to_string(path.with_file_name(format!("{case}.txt"))).unwrap();
        let read = Frame::decode(fs::read(&path).unwrap()).and_then(|frame| frame.message());
        let Err(error) = read else { panic!("{path:?} was accepted") };
        assert!(error.to_string().contains(reason.trim()), "{path:?}: {error}");
        count += 1;
    }
    assert!(count >= 40, "{count}");
}

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = crate::folder("fixtures").join(folder);
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "msgpack")).collect();
    paths.sort();
    paths
}

/// Splits a file name: `request-snake.go.msgpack` is the case `request-snake`, made by `go`.
fn case_and_maker(path: &Path) -> (String, String) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let mut parts = name.split('.').map(str::to_owned);
    (parts.next().unwrap(), parts.next().unwrap())
}

fn read<T, E: std::fmt::Debug>(path: &Path, parse: impl Fn(&[u8]) -> Result<T, E>) -> T {
    parse(&fs::read(path).unwrap()).unwrap_or_else(|error| panic!("{path:?}: {error:?}"))
}
