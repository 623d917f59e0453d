//! The verbs that read recordings: their output and their exit status.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use toolbridge::recording::{Entry, Recorder, RecorderOptions, Recording, RoomEvent};

use crate::{
    cli::{complaint, run, text, toolbridge},
    cli_dev::dev,
    recording_said::{closed, event, failed, heard, here, joined, left, ok, raw, request, sent, stop},
};

/// A temporary folder.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("toolbridge-read-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a finished recording of these entries.
    fn recording(&self, entries: Vec<Entry>) -> String {
        let path = self.path("session.mcap");
        let recorder = Recorder::create(&path, RecorderOptions::default()).unwrap();
        for entry in entries {
            recorder.record(entry);
        }
        recorder.finish().unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An identity with control, bidi and invisible characters.
const TV: &str = "tv\u{1b}[31m\u{202e}\u{9b}2J\u{7f}\u{200b}\u{feff}\u{2028}";

/// An assistant calls a phone and a lamp: one call succeeds, one fails, one is stopped.
fn session() -> Vec<Entry> {
    let lamp = request(-3, "c", "client").replace("lamp", "picture");
    vec![
        here(1_000, "assistant"),
        joined(1_001, "phone", Some("client")),
        joined(1_002, TV, Some("client")),
        sent(1_010, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(1_050, "phone", &ok(1, "a")),
        sent(2_000, "assistant", &["phone"], &request(-2, "b", "client")),
        heard(2_500, "phone", &failed(2, "b", "execution_error")),
        sent(3_000, "assistant", &[TV], &lamp),
        sent(4_000, "assistant", &[TV], &stop(-4, "c")),
        closed(5_000),
    ]
}

fn json(arguments: &[&str], status: i32) -> Value {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn shown(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn info_prints_participants_times_and_outcomes() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let info = json(&["info", &file, "--json"], 0);
    assert_eq!((&info["room"], &info["identity"]), (&"r".into(), &"assistant".into()));
    assert_eq!((&info["calls"], &info["entries"], &info["finished"]), (&3.into(), &10.into(), &true.into()));
    assert_eq!(info["outcomes"].to_string(), r#"{"execution_error":1,"ok":1,"stopped":1}"#);
    let lamp = &info["tools"][0];
    assert_eq!((&lamp["name"], &lamp["calls"]), (&"lamp".into(), &2.into()));
    assert_eq!(lamp["latency"].to_string(), r#"{"p50Ms":40.0,"p90Ms":500.0,"p99Ms":500.0,"maxMs":500.0}"#);
    let phone = info["peers"].as_array().unwrap().iter().find(|it| it["identity"] == "phone").unwrap();
    assert_eq!((&phone["role"], &phone["sids"][0]), (&"client".into(), &"PA_phone".into()));
    assert_eq!((&phone["sent"]["packets"], &phone["heard"]["packets"]), (&2.into(), &2.into()));
    assert_eq!(info["frames"]["ToolUseRequest"], 3);
    assert_eq!(info["problems"].to_string(), "{}");
    let printed = shown(&["info", &file]);
    assert!(
        printed.contains("execution_error 1, ok 1, stopped 1") && printed.contains("PA_").eq(&false),
        "{printed}"
    );
    assert!(printed.contains("lamp") && printed.contains("500.000"), "{printed}");
}

#[test]
fn calls_prints_one_row_per_call() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let calls = json(&["calls", &file, "--json"], 0);
    let printed: Vec<_> = calls.as_array().unwrap().iter().map(|it| (&it["id"], &it["outcome"])).collect();
    let [a, b, c] = ["a", "b", "c"].map(Value::from);
    let [ok, error, stopped] = ["ok", "execution_error", "stopped"].map(Value::from);
    assert_eq!(printed, [(&a, &ok), (&b, &error), (&c, &stopped)]);
    let table = shown(&["calls", &file]);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.lines().nth(1).unwrap().contains("40.000") && table.contains("\\u{1b}[31m"), "{table}");
}

#[test]
fn sec_c3_recording_cannot_control_the_terminal_whatever_the_verb() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let verbs: [&[&str]; 12] = [
        &["info"],
        &["info", "--json"],
        &["calls"],
        &["calls", "--json"],
        &["cat"],
        &["cat", "--clock"],
        &["cat", "--format", "ndjson"],
        &["check"],
        &["check", "--json"],
        &["report", "-o", "-"],
        &["replay"],
        &["replay", "--json"],
    ];
    for verb in verbs {
        let output = run(&[verb, &[file.as_str()]].concat());
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        let is_bad = |it: char| {
            let is_unseen = matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
            it.is_control() && it != '\n' || is_unseen
        };
        assert!(!printed.is_empty() && !printed.contains(is_bad), "{verb:?}: {printed:?}");
    }
}

#[test]
fn cat_shows_entries_as_text_and_as_json() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let printed = shown(&["cat", &file]);
    assert_eq!(printed.lines().count(), 10);
    let line = printed.lines().nth(4).unwrap();
    assert!(line.contains("← phone") && line.contains("ToolUseResult") && line.ends_with("a ok"), "{line}");
    let array = json(&["cat", &file, "--format", "json"], 0);
    let lines: Vec<Value> = shown(&["cat", &file, "--format", "ndjson"])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(array, Value::from(lines));
    assert_eq!(array[3]["frame"]["body"]["toolName"], "lamp");
    assert_eq!((&array[3]["entry"], &array[3]["direction"]), (&3.into(), &"sent".into()));
    assert_eq!(array[9]["event"], "closed");
    let nothing = json(&["cat", &file, "--format", "json", "--from", "1h"], 0);
    assert_eq!(nothing.to_string(), "[]");
}

#[test]
fn cat_prints_only_the_selected_entries() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let places = |filter: &[&str]| -> Vec<u64> {
        let printed = shown(&[&["cat", &file, "--format", "ndjson"], filter].concat());
        let entry = |line: &str| serde_json::from_str::<Value>(line).unwrap()["entry"].as_u64().unwrap();
        printed.lines().map(entry).collect()
    };
    assert_eq!(places(&["--call", "a"]), [3, 4]);
    assert_eq!(places(&["--tool", "lamp"]), [3, 4, 5, 6]);
    assert_eq!(places(&["--outcome", "execution_error"]), [5, 6]);
    assert!(places(&["--outcome", "ok", "--call", "b"]).is_empty());
    assert_eq!(places(&["--peer", "phone"]), [1, 3, 4, 5, 6]);
    assert_eq!(places(&["--from", "1970-01-01T00:00:03Z"]), [7, 8, 9]);
    assert_eq!(places(&["--to", "1970-01-01T00:00:01.001Z"]), [0, 1]);
}

#[test]
fn cat_prints_the_bytes_of_a_packet_that_is_not_a_frame() {
    let folder = Folder::new();
    let broken = raw(2, toolbridge::recording::Direction::Heard, "phone", &[], vec![0x81, 0xc1]);
    let file = folder.recording(vec![here(1, "assistant"), broken, closed(3)]);
    let entry: Value =
        serde_json::from_str(shown(&["cat", &file, "--format", "ndjson", "--peer", "phone"]).trim()).unwrap();
    assert_eq!(entry["raw"], "gcE=");
    assert!(entry["refused"].as_str().unwrap().contains("byte 0") && entry.get("frame").is_none(), "{entry}");
    assert!(shown(&["cat", &file]).contains("malformed: "));
    let checked = json(&["check", &file, "--json"], 3);
    assert_eq!((&checked["errors"], &checked["findings"][0]["rule"]), (&1.into(), &"malformed".into()));
}

#[test]
fn check_exits_with_status_3_and_lists_the_findings() {
    let folder = Folder::new();
    let good = folder.recording(session());
    assert_eq!(shown(&["check", &good]), "0 errors, 0 notes\n");
    let other = Folder::new();
    let bad = [session(), vec![heard(4_500, "stranger", &ok(9, "c"))]].concat();
    let bad = other.recording(bad);
    let output = run(&["check", &bad]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let printed = text(&output.stdout);
    assert!(printed.contains("error wrong-sender") && printed.ends_with("1 errors, 0 notes\n"), "{printed}");
    assert_eq!(json(&["info", &bad, "--json"], 0)["problems"]["wrong-sender"], 1);
}

#[test]
fn damaged_file_is_printed_up_to_the_damage_with_status_3_and_repaired() {
    let folder = Folder::new();
    let path = folder.path("live.mcap");
    let recorder = Recorder::create(&path, RecorderOptions::default()).unwrap();
    for entry in session() {
        recorder.record(entry);
    }
    recorder.finish().unwrap();
    let whole = fs::read(&path).unwrap();
    let cut = folder.path("cut.mcap");
    // The end of the data, and with it the index, is missing.
    fs::write(&cut, &whole[..whole.len() - 60]).unwrap();
    for verb in ["info", "cat", "calls", "check"] {
        let output = run(&[verb, &cut]);
        assert_eq!(output.status.code(), Some(3), "{verb}: {output:?}");
        assert!(text(&output.stderr).contains("damaged at byte"), "{verb}: {output:?}");
        assert!(!output.stdout.is_empty(), "{verb}");
    }
    let repaired = folder.path("repaired.mcap");
    let output = run(&["repair", &cut, &repaired]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "10 entries\n"), "{output:?}");
    assert_eq!(shown(&["cat", &repaired]), shown(&["cat", &path]));
    assert_eq!(run(&["repair", &cut, &repaired]).status.code(), Some(2));
    assert_eq!(run(&["repair", &cut, &repaired, "--force"]).status.code(), Some(0));
}

#[test]
fn redact_removes_values_that_are_not_kept() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let out = folder.path("redacted.mcap");
    assert_eq!(shown(&["redact", &file, &out, "--keep", "lamp"]), "10 entries\n");
    let parameters = |entry: usize| {
        json(&["cat", &out, "--format", "json"], 0)[entry]["frame"]["body"]["parameters"].clone()
    };
    assert_eq!(parameters(3).to_string(), r#"{"on":true}"#);
    assert!(!parameters(7).to_string().contains("true"), "{}", parameters(7));
    assert_eq!(json(&["info", &out, "--json"], 0)["calls"], 3);
    assert_eq!(run(&["redact", &file, &out]).status.code(), Some(2));
    assert_eq!(shown(&["redact", &file, &out, "--force", "--keep-foreign"]), "10 entries\n");
}

#[test]
fn wrong_input_and_wrong_usage_have_different_statuses() {
    let folder = Folder::new();
    let text_file = folder.path("notes.txt");
    fs::write(&text_file, "no recording").unwrap();
    for verb in [&["info"][..], &["cat"], &["calls"], &["check"]] {
        let missing = complaint(&run(&[verb, &["/no/such/file"]].concat()), 2);
        assert!(missing.contains("/no/such/file"), "{missing}");
        let no_recording = complaint(&run(&[verb, &[text_file.as_str()]].concat()), 1);
        assert!(no_recording.contains("notes.txt"), "{no_recording}");
    }
    for wrong in [&["--from", "soon"][..], &["--format", "xml"], &["--follow", "--outcome", "ok"]] {
        assert_eq!(run(&[&["cat", &text_file][..], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn closed_output_pipe_of_a_recording_verb_is_not_an_error() {
    let folder = Folder::new();
    let entries = (0..5_000).map(|ms| left(ms, "phone")).collect::<Vec<_>>();
    let file = folder.recording([vec![here(0, "a")], entries].concat());
    for verb in [&["cat"][..], &["cat", "--format", "json"], &["info"]] {
        let mut child = toolbridge(&[verb, &[file.as_str()]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{verb:?}: {output:?}");
    }
}

/// Every verb that writes its result to standard output.
const TO_STANDARD_OUTPUT: [&[&str]; 9] = [
    &["info"],
    &["info", "--json"],
    &["cat"],
    &["calls"],
    &["calls", "--json"],
    &["check"],
    &["check", "--json"],
    &["report", "-o", "-"],
    &["replay"],
];

/// A recording of a real session without findings.
fn sound() -> String {
    format!("{}/fixtures/recordings/success.mcap", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn no_verb_fails_on_a_closed_output_pipe() {
    for verb in TO_STANDARD_OUTPUT {
        let mut child = toolbridge(&[verb, &[sound().as_str()]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{verb:?}: {output:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn every_verb_reports_that_its_output_could_not_be_written() {
    for verb in TO_STANDARD_OUTPUT {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = toolbridge(&[verb, &[sound().as_str()]].concat()).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {error}");
        assert!(error.contains("No space left"), "{verb:?}: {error}");
    }
}

#[test]
fn file_that_is_being_written_is_followed_to_its_end() {
    let folder = Folder::new();
    let path = folder.path("session.mcap");
    let recorder = Recorder::create(&path, RecorderOptions::default()).unwrap();
    recorder.record(here(0, "assistant"));
    // The first entry identifies the recorded participant; the reader waits for the test, never for time.
    let (more, wait) = std::sync::mpsc::channel::<()>();
    while Recording::open(&path).is_err() {
        std::thread::yield_now();
    }
    let mut entries = Recording::follow(&path, move || wait.recv().is_ok()).unwrap().entries();
    let first = entries.next().unwrap();
    assert!(matches!(first.what, toolbridge::recording::Happened::Event(RoomEvent::Here { .. })));
    let reader = std::thread::spawn(move || {
        let rest = entries.by_ref().count();
        (rest, entries.damage().cloned())
    });
    for ms in 1..=20 {
        recorder.record(event(ms, RoomEvent::Link { up: ms % 2 == 0 }));
        more.send(()).unwrap();
    }
    recorder.finish().unwrap();
    // The reader may have polled before the file was replaced, and waits at most once more.
    let _ = more.send(());
    let (rest, damage) = reader.join().unwrap();
    assert_eq!((rest, damage), (20, None));
    let output = run(&["cat", &path, "--follow"]);
    assert_eq!((output.status.code(), text(&output.stdout).lines().count()), (Some(0), 21), "{output:?}");
}

#[test]
fn recorded_demo_has_no_findings() {
    let folder = Folder::new();
    let file = folder.path("demo.mcap");
    let demo = run(&["demo", "--record", &file]);
    assert!(demo.status.success(), "{demo:?}");
    let again = run(&["demo", "--record", &file]);
    assert_eq!(again.status.code(), Some(2), "an existing file was overwritten: {again:?}");
    assert!(text(&again.stderr).contains("--force"), "{again:?}");
    let forced = run(&["demo", "--record", &file, "--force"]);
    assert!(forced.status.success(), "{forced:?}");
    let info = json(&["info", &file, "--json"], 0);
    assert_eq!((&info["identity"], &info["finished"]), (&"assistant".into(), &true.into()));
    assert_eq!(info["calls"], 9, "a call without an owner is counted too: {info}");
    let calls = json(&["calls", &file, "--json"], 0);
    let nobodys = calls.as_array().unwrap().iter().find(|call| call["tool"] == "open_garage").unwrap();
    assert_eq!((&nobodys["owner"], &nobodys["caller"]), (&Value::Null, &"assistant".into()));
    assert_eq!(nobodys["outcome"], "unknown_tool", "{nobodys}");
    assert!(nobodys["settledMs"].as_f64() >= nobodys["requestedMs"].as_f64(), "{nobodys}");
    let id = nobodys["id"].as_str().unwrap();
    let listed = run(&["cat", &file, "--call", id]);
    assert_eq!(text(&listed.stdout).lines().count(), 1, "{listed:?}");
    let checked = json(&["check", &file, "--json"], 0);
    assert_eq!(checked["errors"], 0, "{checked}");
    let replayed = json(&["replay", &file, "--json"], 0);
    assert!(replayed["compared"].as_u64().unwrap() > 10 && replayed["differences"] == serde_json::json!([]));
    assert!(shown(&["calls", &file]).contains("find_contact"));
    assert_eq!(run(&["replay", &folder.path("none.mcap")]).status.code(), Some(2));
}

#[test]
fn filters_that_name_nothing_in_the_recording_are_wrong_usage() {
    let folder = Folder::new();
    let file = folder.path("success.mcap");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/recordings/success.mcap");
    fs::copy(fixture, &file).unwrap();
    let bogus = run(&["cat", &file, "--outcome", "bogus"]);
    assert_eq!(bogus.status.code(), Some(2), "{bogus:?}");
    assert!(text(&bogus.stderr).contains("the outcomes are ok"), "{bogus:?}");
    let none = run(&["cat", &file, "--outcome", "timeout"]);
    assert_eq!(
        (none.status.code(), none.stdout.len()),
        (Some(0), 0),
        "an outcome that no call has is not an error: {none:?}"
    );
    for (option, listed) in [
        ("--tool", "no tool with this name; it has export_album, get_battery"),
        ("--peer", "no participant with this identity; it has assistant, phone"),
        ("--call", "no call with this id"),
    ] {
        let typo = complaint(&run(&["cat", &file, option, "no such name"]), 2);
        assert!(typo.contains("no such name") && typo.contains(listed), "{option}: {typo}");
    }
    let out = folder.path("out.mcap");
    let typo = run(&["redact", &file, &out, "--keep", "no_such_tool"]);
    assert_eq!(typo.status.code(), Some(2), "{typo:?}");
    assert!(text(&typo.stderr).contains("no tool with this name; its tools are"), "{typo:?}");
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn redacted_recording_shows_the_sizes_of_the_original() {
    let folder = Folder::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/recordings/success.mcap");
    let out = folder.path("out.mcap");
    assert!(run(&["redact", file, &out]).status.success());
    let sizes = |file: &str| {
        let calls = json(&["calls", file, "--json"], 0);
        let calls = calls.as_array().unwrap().iter();
        calls.map(|call| (call["parameters"].clone(), call["result"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&out), sizes(file));
    let traffic = |file: &str| json(&["info", file, "--json"], 0)["peers"].clone();
    assert_eq!(traffic(&out), traffic(file));
}

#[test]
fn times_in_json_are_milliseconds_and_named_so() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/recordings/success.mcap");
    let info = json(&["info", file, "--json"], 0);
    let begun = info["begunMs"].as_f64().unwrap();
    assert!((1.7e12..2e12).contains(&begun), "{begun}");
    assert!(info["durationMs"].as_f64().unwrap() > 1.0 && info["tools"][0]["latency"]["p50Ms"].is_number());
    let calls = json(&["calls", file, "--json"], 0);
    assert!(calls[0]["requestedMs"].as_f64().unwrap() >= begun && calls[0]["limitMs"].is_number());
    let entries = json(&["cat", file, "--format", "json"], 0);
    assert!((entries[0]["atMs"].as_f64().unwrap() - begun).abs() < 1e3);
    let micros = entries[0]["atMs"].as_f64().unwrap() * 1e3;
    assert!((micros - micros.round()).abs() < 0.3, "three decimals at most: {micros}");
}

/// The verbs that join a room and record it to this file.
fn recording_verbs(file: &str) -> [Vec<&str>; 5] {
    let room = ["--room", "r", "--record", file];
    [
        [&["client"], &room[..]].concat(),
        [&["assistant"], &room[..]].concat(),
        [&["call", "nothing", "--wait", "0s"], &room[..]].concat(),
        [&["watch"], &room[..]].concat(),
        vec!["record", file, "--room", "r"],
    ]
}

#[test]
fn existing_file_is_not_overwritten_without_force_whatever_the_verb() {
    let folder = Folder::new();
    let file = folder.path("old.mcap");
    fs::write(&file, "old").unwrap();
    for verb in recording_verbs(&file).into_iter().chain([vec!["demo", "--record", &file]]) {
        // The port is closed: the file is checked before joining.
        let server = ["--url", "ws://127.0.0.1:1", "--api-key", "k", "--api-secret", "s"];
        let complaint = complaint(&run(&[&verb[..], &server].concat()), 2);
        assert!(complaint.contains(&file) && complaint.contains("--force"), "{verb:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{verb:?}: {complaint}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old", "{verb:?}");
    }
    assert_eq!(
        run(&["call", "x", "--room", "r", "--force"]).status.code(),
        Some(2),
        "--force needs --record"
    );
}

#[test]
fn existing_file_is_replaced_with_force_whatever_the_verb() {
    let (mut server, settings) = dev();
    let folder = Folder::new();
    let file = folder.path("old.mcap");
    for verb in recording_verbs(&file) {
        fs::write(&file, "old").unwrap();
        let (output, write) = std::io::pipe().unwrap();
        let mut child = toolbridge(&[&verb[..], &["--force"]].concat())
            .envs(settings.clone())
            .stdout(write.try_clone().unwrap())
            .stderr(write)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(output).lines().map(Result::unwrap);
        let first = lines.next();
        // The first line appears after joining; a call has ended by then.
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        child.wait().unwrap();
        let info = json(&["info", &file, "--json"], 0);
        assert_eq!(info["finished"], true, "{verb:?}: {first:?}: {info}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Returns the program as a command for which no file may grow, as on a full disk.
fn on_full_disk(arguments: &[&str]) -> Command {
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(toolbridge(&[]).get_program()).args(arguments).stdin(Stdio::null());
    command
}

/// The lines on stderr about a recording that stopped.
fn stops(output: &Output) -> usize {
    text(&output.stderr).lines().filter(|line| line.contains("stopped early")).count()
}

#[test]
fn full_disk_while_recording_is_reported_once_and_a_failure() {
    let folder = Folder::new();
    let file = folder.path("full.mcap");
    let demo = on_full_disk(&["demo", "--record", &file]).output().unwrap();
    assert_eq!((demo.status.code(), stops(&demo)), (Some(1), 1), "{demo:?}");
    assert!(text(&demo.stderr).contains(&file) && text(&demo.stdout).contains("9 outcomes"), "{demo:?}");
    assert!(!text(&demo.stderr).contains("can be read"), "nothing was written: {demo:?}");
    let (mut server, settings) = dev();
    let room = ["--room", "r", "--record", &file, "--force"];
    let on_full_disk = |verb: &[&str]| {
        let mut command = on_full_disk(&[verb, &room].concat());
        command.envs(settings.clone());
        command
    };
    // Standard input is at its end.
    let assistant = on_full_disk(&["assistant"]).output().unwrap();
    assert_eq!((assistant.status.code(), stops(&assistant)), (Some(1), 1), "{assistant:?}");
    let lines: Vec<Value> =
        text(&assistant.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_stop = |line: &&Value| line["event"] == "recording_stopped";
    assert_eq!(lines.iter().filter(is_stop).count(), 1, "{assistant:?}");
    assert_eq!(lines.last().unwrap()["event"], "closed", "{assistant:?}");
    // The call itself fails, and its status stays.
    let call = on_full_disk(&["call", "nothing", "--wait", "0s"]).output().unwrap();
    assert_eq!((call.status.code(), stops(&call)), (Some(4), 1), "{call:?}");
    let mut client = on_full_disk(&["client"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&client);
    let mut stderr = BufReader::new(client.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(stderr.any(|line| line.contains("stopped early")), "the client is silent");
    kill_process(pid, Signal::INT).unwrap();
    assert!(!stderr.any(|line| line.contains("stopped early")), "the client says it twice");
    assert_eq!(client.wait().unwrap().code(), Some(1));
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn address_in_use_is_found_before_the_room_is_joined() {
    let folder = Folder::new();
    let old = folder.recording(session());
    let before = fs::read(&old).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let key = ["--api-key", "devkey", "--api-secret", "some secret of 32 characters ...."];
    let room = [&["--room", "r", "--url", "ws://127.0.0.1:1"][..], &key].concat(); // nothing listens there
    for verb in [
        &["assistant", "--force", "--record", &old, "--mcp-listen", &address][..],
        &["assistant", "--force", "--record", &old, "--rap-listen", &address],
        &["mcp", "--listen", &address],
        &["rap", "--listen", &address],
    ] {
        let refused = run(&[verb, &room].concat());
        assert_eq!(refused.status.code(), Some(1), "{verb:?}: {refused:?}");
        assert!(text(&refused.stderr).contains("cannot listen at"), "{verb:?}: {refused:?}");
        assert!(fs::read(&old).unwrap() == before, "{verb:?}: the old recording has changed");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "{verb:?}: a file is left");
    }
}

#[test]
fn output_that_is_the_input_is_refused() {
    let folder = Folder::new();
    let file = folder.recording(session());
    let before = fs::read(&file).unwrap();
    let refused = run(&["report", &file, "--output", &file, "--force"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("would overwrite the recording"), "{refused:?}");
    assert!(fs::read(&file).unwrap() == before);
}

#[test]
fn full_disk_leaves_the_old_output_file_whatever_the_verb() {
    let folder = Folder::new();
    let (file, out) = (folder.recording(session()), folder.path("out"));
    for verb in
        [vec!["report", &file, "--output", &out], vec!["repair", &file, &out], vec!["redact", &file, &out]]
    {
        for old in [None, Some("old")] {
            let _ = fs::remove_file(&out);
            if let Some(old) = old {
                fs::write(&out, old).unwrap();
            }
            let complaint =
                complaint(&on_full_disk(&[&verb[..], &["--force"]].concat()).output().unwrap(), 1);
            assert!(complaint.contains(&format!("cannot write `{out}`")), "{verb:?}: {complaint}");
            assert_eq!(complaint.lines().count(), 1, "{verb:?}: {complaint}");
            assert_eq!(fs::read_to_string(&out).ok().as_deref(), old, "{verb:?}");
            let left = fs::read_dir(&folder.0).unwrap().count();
            assert_eq!(left, 1 + usize::from(old.is_some()), "{verb:?}: a temporary file is left");
        }
    }
}

#[test]
fn file_of_a_recording_is_checked_before_the_room_is_joined() {
    let folder = Folder::new();
    let fresh = folder.path("fresh.mcap");
    // Nothing listens there.
    let room = [
        "--room",
        "r",
        "--url",
        "ws://127.0.0.1:1",
        "--api-key",
        "devkey",
        "--api-secret",
        "some secret of 32 characters ....",
    ];
    for verb in [&["record"][..], &["watch", "--record"]] {
        let refused = run(&[verb, &["/nowhere/at/all.mcap"], &room[..]].concat());
        assert!(text(&refused.stderr).contains("cannot write `/nowhere/at/all.mcap`"), "{refused:?}");
        let refused = run(&[verb, &[&fresh], &room[..]].concat());
        assert!(!refused.status.success() && !text(&refused.stderr).contains("cannot write"), "{refused:?}");
        assert!(!fs::exists(&fresh).unwrap(), "{verb:?}: a file without a recording is left");
    }
}
