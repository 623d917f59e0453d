//! Decodes arbitrary bytes, and reads every part of a frame that is accepted: no panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolbridge::{Value, frame::Frame};

fuzz_target!(|data: &[u8]| {
    if let Ok(body) = Value::from_bytes(data.to_vec()) {
        let _ = (body.to_json(), body.decode::<Vec<u64>>(), body.decode::<Value>(), body.get("a/0/b"));
    }
    if let Ok(frame) = Frame::decode(data.to_vec()) {
        let _ = (frame.peek_id(), frame.meta_str("bridge.to"), frame.meta_bool("bridge.heard"));
        let _ = (frame.message(), frame.body(), frame.meta_body());
    }
});
