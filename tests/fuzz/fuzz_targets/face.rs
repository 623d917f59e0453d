//! Passes lines to the interface of the bindings: no text and no bytes make it panic, and what it writes is JSON.
//!
//! The input is a trace, as `scripts/bindings traces` writes them: a line `{"input":…}` is passed as it is there. Of the other lines, texts
//! are passed whole, and bytes are those of a packet. What the core does next is not compared.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use toolbridge_face::JsonSession;

/// Outputs that one input may cause.
const OUTPUTS: usize = 10_000;

/// The session of an input whose first line creates none.
const CREATE: &str = r#"{"type":"create","at":0,"role":"client","local":{"identity":"it","sid":"PA_1"},"seed":"0000000000000000000000000000000000000000000000000000000000000000","config":{"consent_available":true,"prompts":true,"lossy":true,"streams":true,"choose":"ask"}}"#;

const PACKET: &str =
    r#"{"type":"packet","at":1000,"from":{"identity":"model","sid":"PA_2"},"topic":"toolbridge"}"#;

fuzz_target!(|data: &[u8]| {
    let mut lines = data.split(|byte| *byte == b'\n').peekable();
    let first = lines.peek().and_then(|line| std::str::from_utf8(line).ok());
    let created = first.and_then(|text| JsonSession::create(input_of(text)).ok());
    let Some(mut session) = created.or_else(|| JsonSession::create(CREATE).ok()) else {
        panic!("the session of the target is malformed");
    };
    for line in lines {
        let reply = match std::str::from_utf8(line) {
            Ok(text) => session.handle(input_of(text), None),
            Err(_) => session.handle(PACKET, Some(line.to_vec())),
        };
        if let Ok(Some(reply)) = reply {
            check(&reply);
        }
        for count in 0.. {
            let Some(output) = session.next_output() else { break };
            check(&output);
            assert!(count < OUTPUTS, "its outputs have no end");
            session.take_bytes();
        }
        assert!(session.next_deadline().is_none_or(f64::is_finite));
    }
});

/// Returns the input in a line of a trace.
fn input_of(line: &str) -> &str {
    line.strip_prefix(r#"{"input":"#).and_then(|text| text.strip_suffix('}')).unwrap_or(line)
}

fn check(text: &str) {
    assert!(serde_json::from_str::<IgnoredAny>(text).is_ok(), "this is no JSON: {text}");
}
