//! The time that redacting a recording takes: one of many small calls, and texts of 1 MiB in each form that is searched.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark owns its clock and may fail")]

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use toolbridge::{
    frame::Frame,
    recording::{Direction, Entry, Happened, Moment, Recorded, Recorder, RecorderOptions, Redact, redact},
    transport::Peer,
};

/// The calls in the recording of many calls.
const CALLS: usize = 50_000;

/// The size of a long text, in bytes.
const TEXT: usize = 1024 * 1024;

/// How often each is measured.
const RUNS: usize = 5;

/// What a long text consists of.
const FORMS: &[&str] = &[
    "A sentence without secrets, as a tool returns it. ",
    "key = value\n",
    r#"log: {"password":"hunter2"} done "#,
    "--b\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\nhunter2\r\n",
    r#"x["password"] = "hunter2"; "#,
    "password：hunter2\n",
    "p\u{200b}in: hunter2\n",
    "passwords:\n- hunter2\n- b\n",
    "password: |\n  hunter2\n\n",
    "name: password\nvalue: hunter2\n",
    "Bearer  hunter2 ",
    "https://ada:pa@hunter2@host/x ",
    "<a password=\"hunter2\"><password>hunter2</password>",
    "<password>",
    "<key>password</key><string>hunter2</string>",
    "[\"password\",\"hunter2\"] ",
];

mod short;

use short::scaled;

fn main() {
    let folder = env::temp_dir().join(format!("toolbridge-bench-redact-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    many_calls(&folder);
    FORMS.iter().for_each(|form| long_text(&folder, form));
    fs::remove_dir_all(&folder).unwrap();
}

fn many_calls(folder: &Path) {
    let calls = (0..scaled(CALLS)).map(|n| {
        let parameters = json!({"name": format!("Ada {n}"), "limit": n % 7, "fields": ["mobile", "mail"]});
        let text = format!("Ada {n}: mobile +39 06 {n:06}, https://example.com/people/{n}?view=full");
        (parameters, json!({"text": text, "level": n % 100, "password": "hunter2"}))
    });
    let raw = folder.join("calls.mcap");
    record(&raw, calls);
    for (what, rule) in [
        ("everything hidden", Redact::everything()),
        ("the tool is kept", Redact::everything().keep("find_contact")),
        ("nothing redacted", Redact::nothing()),
    ] {
        let took = measure(&raw, &rule);
        let frames = 2 * scaled(CALLS);
        println!("{frames} frames, {what}: {took:.2?}, {:.1?} for each", took / frames as u32);
    }
}

fn long_text(folder: &Path, form: &str) {
    let raw = folder.join("text.mcap");
    let text = form.repeat(scaled(TEXT) / form.len());
    record(&raw, [(json!({}), json!({"text": text}))]);
    let took = measure(&raw, &Redact::everything().keep("find_contact"));
    println!("1 MiB of {form:?}: {took:.1?}");
}

/// Records calls with these parameters and results.
fn record(path: &Path, calls: impl IntoIterator<Item = (Value, Value)>) {
    let options =
        RecorderOptions::default().redact(Redact::nothing()).queue(usize::MAX, usize::MAX).force(true);
    let recorder = Recorder::create(path, options).unwrap();
    for (n, (parameters, result)) in calls.into_iter().enumerate() {
        let id = format!("V1StGXR8_Z5jdHi{n:06}");
        let request =
            json!({"id": id, "toolName": "find_contact", "parameters": parameters, "execution": "client"});
        let result = json!({"id": id, "success": true, "result": result});
        for (who, kind, body) in [("assistant", 6, request), ("phone", 7, result)] {
            let frame =
                json!({"stanzaId": n + 1, "conversationId": "bench", "type": kind, "meta": {}, "body": body});
            let payload = Frame::from_json(&frame.to_string()).unwrap().into_bytes();
            let packet = Recorded::new(Direction::Heard, Peer::new(who, "PA_1"), payload);
            recorder.record(Entry::new(Moment(n as u64 * 1_000_000), Happened::Packet(packet)));
        }
    }
    recorder.finish().unwrap();
}

/// Returns the median of some runs.
fn measure(raw: &Path, rule: &Redact) -> Duration {
    let out = raw.with_extension("redacted");
    let mut times: Vec<_> = (0..scaled(RUNS))
        .map(|_| {
            let begun = Instant::now();
            redact(raw, &out, rule.clone(), true).unwrap();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
