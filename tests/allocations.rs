//! The allocations of decoding: none for the envelope, and few for a hostile frame.

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use toolbridge::{
    DecodeError, Value,
    frame::{Frame, Meta},
};

#[path = "../benches/samples/mod.rs"]
mod samples;

/// Returns the bytes as a transport delivers them: shared, so that cloning them does not allocate.
fn shared(bytes: impl Into<Bytes>) -> Bytes {
    let bytes = bytes.into();
    drop(bytes.clone());
    bytes
}

#[test]
fn envelope_is_read_without_allocation() {
    for bytes in [samples::request(), samples::result()] {
        let bytes = shared(bytes);
        let cost = measure(|| {
            let frame = Frame::decode(bytes.clone()).unwrap();
            assert_eq!(frame.conversation_id(), Some("conv_7Hq2"));
            assert_eq!(frame.meta_str("bridge.to"), None);
            assert_eq!(frame.peek_id(), Some("V1StGXR8_Z5jdHi6B-myT"));
            assert!(frame.stanza_id().is_some() && frame.body().is_map());
            assert!(frame.body().get("id").unwrap().as_str().is_some());
        });
        assert_eq!(cost.count_total, 0, "{cost:?}");
    }
}

#[test]
fn relayed_body_allocates_nothing_in_a_reused_buffer() {
    let frame = Frame::decode(shared(samples::result())).unwrap();
    let mut out = Vec::with_capacity(16 * 1024);
    let meta = Meta::new();
    let cost = measure(|| {
        Frame::relay(&mut out, 9, "conv_7Hq2", &meta, frame.kind(), frame.body_bytes()).unwrap();
    });
    assert_eq!(cost.count_total, 0, "{cost:?}");
}

/// Decodes the bytes; returns the cost, and the error if there is one.
fn cost_of(bytes: Vec<u8>) -> (AllocationInfo, Option<DecodeError>) {
    let bytes = shared(bytes);
    let mut error = None;
    let cost = measure(|| error = Frame::decode(bytes.clone()).and_then(|frame| frame.message()).err());
    (cost, error)
}

fn frame_with_body(kind: u8, body: &[u8]) -> Vec<u8> {
    [b"\x82\xa4type", [kind].as_slice(), b"\xa4body", body].concat()
}

#[test]
fn sec_c1_bombs_are_refused_before_they_allocate() {
    let nested = |levels| [vec![0x91; levels], vec![0xc0]].concat();
    let bombs = [
        ("array32 of 2^32-1", frame_with_body(7, b"\xdd\xff\xff\xff\xff")),
        ("map32 of 2^32-1", frame_with_body(7, b"\xdf\xff\xff\xff\xff")),
        ("200,000 nested arrays", frame_with_body(7, &nested(200_000))),
        (
            "16 MiB of nil",
            frame_with_body(7, &[b"\xdd\x00\xff\xff\xf0".as_slice(), &vec![0xc0; 0xff_fff0]].concat()),
        ),
        ("more than 16 MiB", vec![0xc0; 16 * 1024 * 1024 + 1]),
        ("ext32 of 4 GiB", frame_with_body(7, b"\xc9\xff\xff\xff\xff\x05")),
        ("str32 of 4 GiB", frame_with_body(7, b"\xdb\xff\xff\xff\xffx")),
        (
            "a list of a million empty tools",
            frame_with_body(70, &{
                let mut body = b"\x81\xa5tools\xdd\x00\x0f\x42\x00".to_vec();
                body.resize(body.len() + 0x0f_4200, 0x80);
                body
            }),
        ),
    ];
    for (name, bytes) in bombs {
        let size = bytes.len() as u64;
        let (cost, error) = cost_of(bytes);
        assert!(error.is_some(), "{name} was accepted");
        assert!(cost.bytes_max < 4 * size.min(100), "{name}: {cost:?}");
    }
}

#[test]
fn sec_c1_id_of_one_mebibyte_allocates_only_its_length() {
    let id = "x".repeat(1024 * 1024);
    let json = format!(r#"{{"stanzaId": 1, "type": 7, "body": {{"id": "{id}", "success": true}}}}"#);
    let bytes = Frame::from_json(&json).unwrap().as_bytes().to_vec();
    let size = bytes.len() as u64;
    let (cost, error) = cost_of(bytes);
    assert_eq!(error, None);
    assert!(cost.bytes_max < 4 * size, "{cost:?}");
}

#[test]
fn sec_c1_large_maps_are_checked_in_bounded_memory_and_time() {
    // Half a million keys, the most that a frame may hold. Keys are not hashed, so no keys are slower than others.
    let mut keys = vec![0xdf, 0x00, 0x07, 0x40, 0x00];
    for n in 0..0x7_4000_u32 {
        keys.push(0xce);
        keys.extend_from_slice(&n.to_be_bytes());
        keys.push(0xc0);
    }
    let size = keys.len() as u64;
    let bytes = shared(keys.clone());
    let mut taken = false;
    let cost = measure(|| taken = Value::from_bytes(bytes.clone()).is_ok());
    assert!(taken);
    assert!(cost.bytes_max < 4 * size && cost.count_total == 1, "{size}: {cost:?}");

    // The last key repeats the first one, in a wider encoding.
    let last = keys.len() - 6;
    keys.splice(last.., [0xcf, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0]);
    let error = Value::from_bytes(keys).unwrap_err();
    assert_eq!(error, DecodeError::DuplicateKey { offset: last, first: 5 });
}
