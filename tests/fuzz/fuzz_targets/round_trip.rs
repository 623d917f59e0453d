//! A frame that is accepted keeps its content through JSON and through encoding, however often.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolbridge::frame::{Frame, Message, Meta};

fuzz_target!(|data: &[u8]| {
    let Ok(frame) = Frame::decode(data.to_vec()) else { return };
    let (Ok(message), Ok(shown)) = (frame.message(), frame.to_json()) else { return };
    let again = Frame::from_json(&shown.to_string()).expect("canonical JSON can be read");
    assert_eq!(again.to_json().expect("it was valid").to_string(), shown.to_string());

    // Encoding a message may drop unknown fields; encoding it again drops nothing.
    let Ok(bytes) = Frame::write(-7, "room", &Meta::new(), &message) else { return };
    let first = Frame::decode(bytes.clone())
        .and_then(|frame| frame.message())
        .expect("an encoded frame can be decoded");
    let second = Frame::write(-7, "room", &Meta::new(), &first).expect("it was written before");
    if !matches!(message, Message::Other(..)) {
        assert_eq!(bytes, second);
    }
});
