//! Counts the instructions that decoding and encoding frames take, compared with the usual crates. The numbers do not
//! depend on how busy the machine is.

#![expect(clippy::unwrap_used, reason = "the samples are valid")]

use std::process::{Command, Stdio};

#[path = "../../samples/mod.rs"]
mod samples;
#[path = "../../samples/typed.rs"]
mod typed;

/// Skips the benchmark if one of the two programs that it needs is missing.
fn main() {
    // Valgrind runs this program again to measure it.
    let is_measured = std::env::args().any(|argument| argument == "--gungraun-run");
    if !is_measured {
        for tool in ["gungraun-runner", "valgrind"] {
            if !is_there(tool) {
                println!("skipped: {tool}");
                return;
            }
        }
    }
    counts::run();
}

fn is_there(tool: &str) -> bool {
    let started = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    started.is_ok_and(|mut child| child.wait().is_ok())
}

mod counts {
    use std::hint::black_box;

    use bytes::Bytes;
    use gungraun::{library_benchmark, library_benchmark_group};
    use serde::{Serialize, de::DeserializeOwned};
    use toolbridge::frame::{Frame, Kind, Message, Meta};

    use super::{
        samples,
        typed::{Answer, Envelope, Request},
    };

    pub(crate) fn run() {
        main();
    }

    /// Returns the bytes as a transport delivers them: shared, so that cloning them does not allocate.
    fn shared(bytes: Bytes) -> Bytes {
        drop(bytes.clone());
        bytes
    }

    fn request() -> Bytes {
        shared(samples::request())
    }

    fn result() -> Bytes {
        shared(samples::result())
    }

    fn message(bytes: Bytes) -> (Meta, Message) {
        (Meta::new(), Frame::decode(bytes).unwrap().message().unwrap())
    }

    fn relay(bytes: Bytes) -> (Vec<u8>, Meta, Frame) {
        (Vec::with_capacity(16 * 1024), Meta::new(), Frame::decode(bytes).unwrap())
    }

    fn typed<T: DeserializeOwned>(bytes: Bytes) -> (Vec<u8>, T) {
        (Vec::with_capacity(16 * 1024), rmp_serde::from_slice(&bytes).unwrap())
    }

    fn tree(bytes: Bytes) -> (Vec<u8>, rmpv::Value) {
        (Vec::with_capacity(16 * 1024), rmpv::decode::read_value(&mut bytes.as_ref()).unwrap())
    }

    // All checks, the envelope's fields, the body as a slice.
    #[library_benchmark]
    #[bench::request(request())]
    #[bench::result(result())]
    fn decode_envelope(bytes: Bytes) -> (Frame, Bytes) {
        let frame = Frame::decode(black_box(&bytes).clone()).unwrap();
        black_box((frame.stanza_id(), frame.body_bytes()));
        (frame, bytes)
    }

    // As `decode_envelope`, and the typed message.
    #[library_benchmark]
    #[bench::request(request())]
    #[bench::result(result())]
    fn decode_message(bytes: Bytes) -> (Message, Bytes) {
        (Frame::decode(black_box(&bytes).clone()).unwrap().message().unwrap(), bytes)
    }

    #[library_benchmark]
    #[bench::request(request())]
    fn decode_rmp_serde_request(bytes: Bytes) -> (Envelope<Request>, Bytes) {
        (rmp_serde::from_slice(black_box(&bytes)).unwrap(), bytes)
    }

    #[library_benchmark]
    #[bench::result(result())]
    fn decode_rmp_serde_result(bytes: Bytes) -> (Envelope<Answer>, Bytes) {
        (rmp_serde::from_slice(black_box(&bytes)).unwrap(), bytes)
    }

    #[library_benchmark]
    #[bench::request(request())]
    #[bench::result(result())]
    fn decode_rmpv(bytes: Bytes) -> (rmpv::Value, Bytes) {
        (rmpv::decode::read_value(&mut black_box(bytes.as_ref())).unwrap(), bytes)
    }

    // A header and a copy of the finished body, into a buffer with enough capacity.
    #[library_benchmark]
    #[bench::request(relay(request()))]
    #[bench::result(relay(result()))]
    fn encode_relay(it: (Vec<u8>, Meta, Frame)) -> (Vec<u8>, Meta, Frame) {
        let (mut out, meta, frame) = it;
        let body = black_box(frame.body_bytes());
        Frame::relay(&mut out, -3, "conv_7Hq2", &meta, Kind::TOOL_USE_RESULT, body).unwrap();
        (out, meta, frame)
    }

    // The live writer: a typed message, checked against the limits before it is sent.
    #[library_benchmark]
    #[bench::request(message(request()))]
    #[bench::result(message(result()))]
    fn encode_message(it: (Meta, Message)) -> (Bytes, Meta, Message) {
        let (meta, message) = it;
        (Frame::write(-3, "conv_7Hq2", &meta, black_box(&message)).unwrap(), meta, message)
    }

    #[library_benchmark]
    #[bench::request(typed::<Envelope<Request>>(request()))]
    fn encode_rmp_serde_request(it: (Vec<u8>, Envelope<Request>)) -> (Vec<u8>, Envelope<Request>) {
        write_named(it)
    }

    #[library_benchmark]
    #[bench::result(typed::<Envelope<Answer>>(result()))]
    fn encode_rmp_serde_result(it: (Vec<u8>, Envelope<Answer>)) -> (Vec<u8>, Envelope<Answer>) {
        write_named(it)
    }

    fn write_named<T: Serialize>((mut out, value): (Vec<u8>, T)) -> (Vec<u8>, T) {
        rmp_serde::encode::write_named(&mut out, black_box(&value)).unwrap();
        (out, value)
    }

    #[library_benchmark]
    #[bench::request(tree(request()))]
    #[bench::result(tree(result()))]
    fn encode_rmpv(it: (Vec<u8>, rmpv::Value)) -> (Vec<u8>, rmpv::Value) {
        let (mut out, value) = it;
        rmpv::encode::write_value(&mut out, black_box(&value)).unwrap();
        (out, value)
    }

    library_benchmark_group!(
        name = decode,
        benchmarks =
            [decode_envelope, decode_message, decode_rmp_serde_request, decode_rmp_serde_result, decode_rmpv]
    );

    library_benchmark_group!(
        name = encode,
        benchmarks =
            [encode_relay, encode_message, encode_rmp_serde_request, encode_rmp_serde_result, encode_rmpv]
    );

    gungraun::main!(library_benchmark_groups = decode, encode);
}
