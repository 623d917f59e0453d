//! LiveKit's own RPC over its Python SDK, calling and answering at the same time.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use toolbridge::livekit::AccessKey;

use super::{Call, Shared, listen, near};

/// Starts both ends of this many pairs; they end when the return value is dropped. Without the SDK there are none.
pub(super) fn start(key: &AccessKey, pairs: usize, limit: Duration, log: &Shared) -> Vec<Child> {
    let found = Command::new("scripts/parts").args(["peers", "find"]).output().expect("scripts/parts");
    let folder = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    if folder.is_empty() {
        eprintln!("skipped: peers (run scripts/parts peers)");
        return Vec::new();
    }
    let rooms: Vec<_> = (0..pairs).map(|pair| format!("rpc-{pair}")).collect();
    let tokens =
        |who: &str| -> Vec<_> { rooms.iter().map(|room| key.client(room, who).sign().unwrap()).collect() };
    let python = format!("{folder}/venv/bin/python");
    let program = "tests/peers/rpc.py";
    let answering = near(&[&python, program, "answer"], &tokens("phone"), hear(log.clone()));
    let mut asking = Command::new(&python)
        .args([program, "ask", "phone", &limit.as_secs().to_string()])
        .env("TOKENS", tokens("assistant").join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    listen(&mut asking, hear(log.clone()));
    vec![answering, asking]
}

fn hear(log: Shared) -> impl Fn(&str) + Send + 'static {
    move |line| {
        let Ok(said) = serde_json::from_str::<Value>(line) else { return };
        let room = said["room"].as_str().unwrap_or_default();
        let Some(pair) = room.strip_prefix("rpc-").and_then(|pair| pair.parse().ok()) else { return };
        let mut log = log.lock().unwrap();
        match said["event"].as_str() {
            Some("ran") => log.ran(pair, said["number"].as_u64().unwrap()),
            Some("asked") => log.calls.push(Call {
                pair,
                began: said["began"].as_f64().unwrap(),
                ended: said["ended"].as_f64().unwrap(),
                error: said["error"].as_str().map(ToOwned::to_owned),
            }),
            _ => {}
        }
    }
}
