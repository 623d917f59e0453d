//! Mutated frames, close enough to real ones to pass the first checks: nothing panics, and an accepted frame shows
//! the same JSON however often it is shown and read again.

#![expect(clippy::unwrap_used, reason = "the fixtures are part of the crate")]

use std::sync::LazyLock;

use proptest::{prelude::*, test_runner::RngSeed};
use toolbridge::{Value, frame::Frame};

/// The originals: every real frame of the fixtures.
static FRAMES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = crate::folder("fixtures/frames");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "msgpack"));
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
});

/// A mutation.
#[derive(Clone, Debug)]
enum Mutation {
    /// Replaces a byte, often by one that starts a value of another kind.
    Set(prop::sample::Index, u8),
    /// Truncates the frame.
    Cut(prop::sample::Index),
    /// Inserts these bytes.
    Insert(prop::sample::Index, Vec<u8>),
    /// Repeats a part of the frame elsewhere.
    Repeat(prop::sample::Index, prop::sample::Index, usize),
    /// Removes these bytes.
    Remove(prop::sample::Index, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let head = prop_oneof![any::<u8>(), 0x80_u8..=0xa4, 0xc0_u8..=0xdf];
    let place = any::<prop::sample::Index>;
    prop_oneof![
        4 => (place(), head).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => place().prop_map(Mutation::Cut),
        2 => (place(), prop::collection::vec(any::<u8>(), 1..6)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (place(), place(), 1_usize..40).prop_map(|(from, to, length)| Mutation::Repeat(from, to, length)),
        1 => (place(), 1_usize..8).prop_map(|(at, length)| Mutation::Remove(at, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, mutation: Mutation) {
    if bytes.is_empty() {
        return;
    }
    match mutation {
        Mutation::Set(at, byte) => *at.get_mut(bytes) = byte,
        Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Mutation::Insert(at, piece) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, piece);
        }
        Mutation::Repeat(from, to, length) => {
            let from = from.index(bytes.len());
            let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
            let to = to.index(bytes.len());
            bytes.splice(to..to, piece);
        }
        Mutation::Remove(at, length) => {
            let at = at.index(bytes.len());
            bytes.drain(at..(at + length).min(bytes.len()));
        }
    }
}

/// Calls every function that takes bytes from outside.
fn exercise(bytes: Vec<u8>) {
    let _ = Value::from_bytes(bytes.clone()).map(|body| {
        assert_eq!(Value::from_json(&body.to_json().to_string()).unwrap().to_json(), body.to_json());
        let _ = (body.decode::<Vec<u64>>(), body.get("body/result/0/x"), body.kind());
    });
    let Ok(frame) = Frame::decode(bytes) else { return };
    let _ =
        (frame.peek_id(), frame.meta_str("bridge.to"), frame.meta_bool("bridge.heard"), format!("{frame:?}"));
    let message = frame.message();
    let shown = frame.to_json();
    assert_eq!(message.is_ok(), shown.is_ok());
    let (Ok(message), Ok(shown)) = (message, shown) else { return };
    assert_eq!(message.kind(), frame.kind());
    let again = Frame::from_json(&shown.to_string()).unwrap();
    assert_eq!(again.to_json().unwrap().to_string(), shown.to_string());
    assert_eq!(again.message().unwrap().kind(), message.kind());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_frame_is_refused_or_read(
        start in any::<prop::sample::Index>(),
        spoils in prop::collection::vec(mutation(), 1..6),
    ) {
        let mut bytes = start.get(&FRAMES).clone();
        for mutation in spoils {
            apply(&mut bytes, mutation);
        }
        exercise(bytes);
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        exercise(bytes);
    }
}
