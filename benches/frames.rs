//! The cost of decoding and encoding frames, compared with the usual crates. `scripts/bench decode` prints a table.

#![expect(clippy::unwrap_used, reason = "the samples are valid")]

use bytes::Bytes;
use divan::{Bencher, black_box};
use serde::Serialize;
use toolbridge::{
    ToolResult,
    frame::{Frame, Kind, Message, Meta},
    result::{ContentBlock, Media, Native, ToolSystem},
};

mod samples;
#[path = "samples/typed.rs"]
mod typed;

use typed::{Answer, Envelope, Request};

/// With `TOOLBRIDGE_SAMPLES` set to a folder, only writes the samples there, for other languages to decode.
fn main() {
    let Some(folder) = std::env::var_os("TOOLBRIDGE_SAMPLES") else { return divan::main() };
    for name in SAMPLES {
        let path = std::path::Path::new(&folder).join(name).with_extension("msgpack");
        std::fs::write(path, sample(name)).unwrap();
    }
}

fn shared(bytes: Bytes) -> Bytes {
    drop(bytes.clone());
    bytes
}

fn sample(name: &str) -> Bytes {
    shared(if name == "request" { samples::request() } else { samples::result() })
}

const SAMPLES: [&str; 2] = ["request", "result"];

/// All checks, the envelope's fields, the body as a slice.
#[divan::bench(args = SAMPLES, sample_size = 200)]
fn decode_envelope(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = sample(name);
    bencher.bench(|| {
        let frame = Frame::decode(black_box(&bytes).clone()).unwrap();
        black_box((frame.stanza_id(), frame.body()))
    });
}

/// As `decode_envelope`, and the typed message.
#[divan::bench(args = SAMPLES, sample_size = 200)]
fn decode_message(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = sample(name);
    bencher.bench(|| Frame::decode(black_box(&bytes).clone()).unwrap().message().unwrap());
}

#[divan::bench(args = SAMPLES, sample_size = 200)]
fn decode_rmp_serde_typed(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = sample(name);
    if name == "request" {
        bencher.bench(|| rmp_serde::from_slice::<Envelope<Request>>(black_box(&bytes)).unwrap());
    } else {
        bencher.bench(|| rmp_serde::from_slice::<Envelope<Answer>>(black_box(&bytes)).unwrap());
    }
}

#[divan::bench(args = SAMPLES, sample_size = 200)]
fn decode_rmpv(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = sample(name);
    bencher.bench(|| rmpv::decode::read_value(&mut black_box(bytes.as_ref())).unwrap());
}

/// A header and a copy of the finished body, into a reused buffer.
#[divan::bench(args = SAMPLES, sample_size = 200)]
fn encode_relay(bencher: Bencher<'_, '_>, name: &str) {
    let frame = Frame::decode(sample(name)).unwrap();
    let (mut out, meta) = (Vec::new(), Meta::new());
    bencher.bench_local(|| {
        let body = black_box(frame.body_bytes());
        Frame::relay(&mut out, -3, "conv_7Hq2", &meta, Kind::TOOL_USE_RESULT, body).unwrap();
        black_box(out.len())
    });
}

/// The live writer: a typed message, checked against the limits before it is sent.
#[divan::bench(args = SAMPLES, sample_size = 200)]
fn encode_message(bencher: Bencher<'_, '_>, name: &str) {
    let message: Message = Frame::decode(sample(name)).unwrap().message().unwrap();
    let meta = Meta::new();
    bencher.bench(|| Frame::write(-3, "conv_7Hq2", &meta, black_box(&message)).unwrap());
}

#[divan::bench(args = SAMPLES, sample_size = 200)]
fn encode_rmp_serde_typed(bencher: Bencher<'_, '_>, name: &str) {
    let bytes = sample(name);
    let mut out = Vec::new();
    if name == "request" {
        let value: Envelope<Request> = rmp_serde::from_slice(&bytes).unwrap();
        bencher.bench_local(|| write_named(&mut out, black_box(&value)));
    } else {
        let value: Envelope<Answer> = rmp_serde::from_slice(&bytes).unwrap();
        bencher.bench_local(|| write_named(&mut out, black_box(&value)));
    }
}

#[divan::bench(args = SAMPLES, sample_size = 200)]
fn encode_rmpv(bencher: Bencher<'_, '_>, name: &str) {
    let value = rmpv::decode::read_value(&mut sample(name).as_ref()).unwrap();
    let mut out = Vec::new();
    bencher.bench_local(|| {
        out.clear();
        rmpv::encode::write_value(&mut out, black_box(&value)).unwrap();
        black_box(out.len())
    });
}

/// A result whose document has 10 KB: as text and as structured data that say the same, or as data alone.
fn tool_result(name: &str) -> ToolResult {
    let records = samples::records();
    let structured = ToolResult::default().with_structured(&records);
    match name {
        "text" => ToolResult::text(records.to_string()),
        "said twice" => structured.with_text(serde_json::to_string_pretty(&records).unwrap()),
        _ => structured.with_text("50 records"),
    }
}

const RESULTS: [&str; 3] = ["text", "said twice", "structured"];

/// The model's view of a result that was read before.
#[divan::bench(args = RESULTS, sample_size = 20)]
fn result_for_model(bencher: Bencher<'_, '_>, name: &str) {
    let result = tool_result(name);
    bencher.bench(|| black_box(&result).for_model(ToolResult::MAX_TEXT).text.len());
}

/// Reading the same result from the value of a call.
#[divan::bench(args = RESULTS, sample_size = 20)]
fn result_read(bencher: Bencher<'_, '_>, name: &str) {
    let value = tool_result(name).to_value();
    bencher.bench(|| ToolResult::of(black_box(&value)));
}

/// An image of 1 MiB in a document: reading and writing it, where it stands once.
#[divan::bench(args = ["read", "write"])]
fn result_with_image(bencher: Bencher<'_, '_>, way: &str) {
    let image = Media::encode(&vec![0xa5; 1 << 20], "image/png");
    let document = serde_json::json!({"content": [{"type": "image", "data": image.data()}]}).to_string();
    let result = ToolResult::default()
        .with_block(ContentBlock::image(image))
        .with_native(Native::new(ToolSystem::MCP, document));
    let value = result.to_value();
    match way {
        "read" => bencher.bench(|| ToolResult::of(black_box(&value))),
        _ => bencher.bench(|| black_box(&result).to_value()),
    }
}

fn write_named(out: &mut Vec<u8>, value: &impl Serialize) -> usize {
    out.clear();
    rmp_serde::encode::write_named(out, value).unwrap();
    black_box(out.len())
}
