//! Builds intact, small recordings that cost their readers much time, memory, or both.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, Cursor, Seek, SeekFrom, Write},
    rc::Rc,
};

use mcap::{Compression, WriteOptions, Writer, records::MessageHeader, write::Metadata};
use toolbridge::frame::Frame;

/// The size of the largest file, in bytes: the size that readers promise to handle.
pub(crate) const LARGEST: usize = 16 * 1024 * 1024;

/// One kind of file. The argument of `make` is the number of costly parts in it.
pub(crate) struct Costly {
    pub(crate) name: &'static str,
    pub(crate) make: fn(usize) -> Vec<u8>,
    /// The number for a file that a test reads.
    pub(crate) few: usize,
    /// The number for a file of nearly 16 MiB, or one that unpacks to gigabytes.
    pub(crate) many: usize,
}

/// A file in memory that shares its size.
struct Memory(Cursor<Vec<u8>>, Rc<Cell<u64>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1.set(self.1.get().max(self.0.position()));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Memory {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Builds a recording. It adds nothing more once the file has its maximum size.
struct Maker {
    out: Writer<Memory>,
    size: Rc<Cell<u64>>,
    next: u16,
    at: u64,
    sequence: u32,
}

const EVENTS: u16 = 1;

impl Maker {
    /// Starts a file with zstd chunks of this size.
    fn packed(chunk: u64) -> Self {
        let options = WriteOptions::new().compression(Some(Compression::Zstd)).chunk_size(Some(chunk));
        Self::with(options.compression_threads(0).emit_summary_records(false).emit_message_indexes(false))
    }

    /// Starts a file without chunks, as a recorder writes it.
    fn plain() -> Self {
        Self::with(WriteOptions::new().compression(None).use_chunks(false))
    }

    fn with(options: WriteOptions) -> Self {
        let size = Rc::new(Cell::new(0));
        let mut out =
            options.library("costly").create(Memory(Cursor::new(Vec::new()), Rc::clone(&size))).unwrap();
        let texts =
            [("form", "1"), ("version", "0"), ("protocol", "1"), ("room", "r"), ("identity", "phone")];
        let more = [("sid", "PA_phone"), ("role", ""), ("begun", "1"), ("finished", "yes")];
        let texts = texts.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value.to_owned()));
        out.write_metadata(&Metadata { name: "toolbridge".to_owned(), metadata: texts.collect() }).unwrap();
        out.add_channel_with_id(EVENTS, 0, "room/events", "json", &BTreeMap::new()).unwrap();
        let mut maker = Self { out, size, next: EVENTS + 1, at: 1_000_000, sequence: 0 };
        maker.event(r#"{"event":"here","identity":"phone","sid":"PA_phone","room":"r"}"#);
        maker
    }

    /// A channel of frames from `who`: received, unless it is the phone.
    fn channel(&mut self, who: &str, to: &[&str]) -> u16 {
        let direction = if who == "phone" { "sent" } else { "heard" };
        let to = serde_json::to_string(to).unwrap();
        let sid = format!("PA_{who}");
        self.raw_channel(&[
            ("direction", direction),
            ("identity", who),
            ("sid", &sid),
            ("to", &to),
            ("topic", "toolbridge"),
            ("lane", "reliable"),
            ("stream", "no"),
        ])
    }

    /// A channel of messages of RPC.
    fn rpc_channel(&mut self, who: &str, to: &[&str]) -> u16 {
        let direction = if who == "phone" { "sent" } else { "heard" };
        let (to, sid) = (serde_json::to_string(to).unwrap(), format!("PA_{who}"));
        self.raw_channel(&[
            ("direction", direction),
            ("identity", who),
            ("sid", &sid),
            ("to", &to),
            ("topic", "lk.rpc"),
            ("lane", "reliable"),
            ("stream", "yes"),
        ])
    }

    fn raw_channel(&mut self, texts: &[(&str, &str)]) -> u16 {
        let id = self.next;
        self.next += 1;
        let texts = texts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.out.add_channel_with_id(id, 0, &format!("c{id}"), "msgpack", &texts).unwrap();
        id
    }

    fn say(&mut self, channel: u16, payload: &[u8]) {
        if self.size.get() > LARGEST as u64 * 7 / 8 {
            return;
        }
        self.at += 1_000;
        self.sequence += 1;
        let (log_time, sequence) = (self.at, self.sequence);
        let header = MessageHeader { channel_id: channel, sequence, log_time, publish_time: log_time };
        self.out.write_to_known_channel(&header, payload).unwrap();
    }

    fn frame(&mut self, channel: u16, json: &str) {
        let payload = Frame::from_json(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        self.say(channel, payload.as_bytes());
    }

    fn event(&mut self, json: &str) {
        self.say(EVENTS, json.as_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        self.event(r#"{"event":"closed","reason":"closed"}"#);
        self.out.finish().unwrap();
        let bytes = self.out.into_inner().0.into_inner();
        assert!(bytes.len() <= LARGEST + LARGEST / 16, "{} bytes", bytes.len());
        bytes
    }
}

/// The size of chunks that are filled with repetitive data.
const CHUNK: u64 = 4 << 20;

fn request(id: &str, tool: &str) -> String {
    format!(
        r#"{{"stanzaId":-1,"type":6,"body":{{"id":"{id}","toolName":"{tool}","parameters":{{}},"execution":"client"}}}}"#
    )
}

fn result(id: &str) -> String {
    format!(r#"{{"stanzaId":1,"type":7,"body":{{"id":"{id}","success":true}}}}"#)
}

fn callers_of_one_id(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let channels: Vec<_> = (0..n.min(60_000)).map(|n| maker.channel(&format!("c{n}"), &[])).collect();
    let answers = maker.channel("phone", &["c0"]);
    for channel in &channels {
        maker.frame(*channel, &request("same", "t"));
        maker.frame(answers, &result("same"));
        maker.frame(*channel, &result("same"));
    }
    maker.finish()
}

fn failures_with_long_messages(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, answers) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    let message = "ü".repeat(4_000);
    for n in 0..n {
        maker.frame(asks, &request(&n.to_string(), "t"));
        maker.frame(
            answers,
            &format!(
                r#"{{"stanzaId":1,"type":7,"body":{{"id":"{n}","success":false,"errorCode":"code{n}","errorMessage":"{message}"}}}}"#
            ),
        );
    }
    maker.finish()
}

fn channels_with_tiny_metadata(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let texts: Vec<_> = (0..1_000).map(|n| format!("{n:x}")).collect();
    let texts: Vec<_> = texts.iter().map(|key| (key.as_str(), "")).collect();
    for _ in 0..n {
        let channel = maker.raw_channel(&texts);
        maker.say(channel, b"");
    }
    maker.finish()
}

fn many_small_frames_of_one_call(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, answers) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    maker.frame(asks, &request("a", "t"));
    let step =
        Frame::from_json(r#"{"stanzaId":1,"type":1000,"body":{"id":"a","status":"in_progress"}}"#).unwrap();
    for _ in 0..n {
        maker.say(answers, step.as_bytes());
    }
    maker.finish()
}

/// Gigabytes of zeros in a few kilobytes.
fn frames_of_zeros(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let channel = maker.channel("assistant", &[]);
    let head = Frame::from_json(&request("a", "t")).unwrap();
    maker.say(channel, head.as_bytes());
    let mut zeros =
        b"\x82\xa4type\x07\xa4body\x83\xa2id\xa1a\xa7success\xc3\xa6result\xc6\x00\xe0\x00\x00".to_vec();
    zeros.resize(zeros.len() + 0xe0_0000, 0);
    for _ in 0..n {
        maker.say(channel, &zeros);
    }
    maker.finish()
}

/// A string that is six times as long as JSON.
fn frames_of_control_characters(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, channel) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    for n in 0..n {
        maker.frame(asks, &request(&format!("id{n:04}"), "t"));
        let mut frame = b"\x82\xa4type\x07\xa4body\x83\xa2id\xa6".to_vec();
        frame.extend_from_slice(format!("id{n:04}").as_bytes());
        frame.extend_from_slice(b"\xa7success\xc3\xa6result\xdb\x00\xe0\x00\x00");
        frame.resize(frame.len() + 0xe0_0000, 1);
        maker.say(channel, &frame);
    }
    maker.finish()
}

/// As many values as a frame may have, in pairs whose keys are not strings.
fn frames_of_many_values(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, channel) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    for n in 0..n {
        maker.frame(asks, &request(&format!("id{n:04}"), "t"));
        let mut frame = b"\x82\xa4type\x07\xa4body\x83\xa2id\xa6".to_vec();
        frame.extend_from_slice(format!("id{n:04}").as_bytes());
        frame.extend_from_slice(b"\xa7success\xc3\xa6result\xdf\x00\x07\x40\x00");
        for key in 0..0x7_4000_u32 {
            frame.push(0xce);
            frame.extend_from_slice(&key.to_be_bytes());
            frame.push(0xc0);
        }
        maker.say(channel, &frame);
    }
    maker.finish()
}

fn deep_values(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, channel) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    for n in 0..n {
        maker.frame(asks, &request(&format!("id{n:06}"), "t"));
        let mut frame = b"\x82\xa4type\x07\xa4body\x83\xa2id\xa8".to_vec();
        frame.extend_from_slice(format!("id{n:06}").as_bytes());
        frame.extend_from_slice(b"\xa7success\xc3\xa6result\x9f");
        for _ in 0..15 {
            frame.extend_from_slice(&[0x91; 60]);
            frame.push(0x90);
        }
        maker.say(channel, &frame);
    }
    maker.finish()
}

fn many_receivers(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let names: Vec<_> = (0..2_000).map(|n| n.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let channel = maker.channel("phone", &names);
    for n in 0..n {
        maker.frame(channel, &request(&n.to_string(), "t"));
    }
    maker.finish()
}

/// Open calls, and participants that join and leave all the time.
fn open_calls_and_leaves(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let channel = maker.channel("assistant", &[]);
    for n in 0..n {
        maker.frame(channel, &request(&n.to_string(), "t"));
    }
    for n in 0..n {
        maker.event(&format!(r#"{{"event":"joined","identity":"x{n}","sid":"PA_{n}","agent":false}}"#));
        maker.event(&format!(r#"{{"event":"left","identity":"x{n}","sid":"PA_{n}"}}"#));
    }
    maker.finish()
}

/// Calls of as many tools, each with its own outcome.
fn calls_of_many_tools(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, answers) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    for n in 0..n {
        maker.frame(asks, &request(&n.to_string(), &format!("tool{n}")));
        maker.frame(
            answers,
            &format!(
                r#"{{"stanzaId":1,"type":7,"body":{{"id":"{n}","success":false,"errorCode":"{n:0200}","errorMessage":"m"}}}}"#
            ),
        );
    }
    maker.finish()
}

/// Participants that register 128 tools each, again and again.
fn many_registrations(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let tools: Vec<_> = (0..128).map(|n| format!(r#"{{"name":"tool_{n}","description":"d"}}"#)).collect();
    let json = format!(r#"{{"stanzaId":1,"type":70,"body":{{"tools":[{}]}}}}"#, tools.join(","));
    let register = Frame::from_json(&json).unwrap();
    let channels: Vec<_> = (0..1_000).map(|n| maker.channel(&format!("c{n}"), &[])).collect();
    for n in 0..n {
        maker.say(channels[n % channels.len()], register.as_bytes());
    }
    maker.finish()
}

/// Registrations of a quarter of a million tools.
fn large_registrations(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let channel = maker.channel("desk", &[]);
    let tools = 250_000_u32;
    let mut frame = b"\x82\xa4type\x46\xa4body\x81\xa5tools\xdd".to_vec();
    frame.extend_from_slice(&tools.to_be_bytes());
    for n in 0..tools {
        frame.extend_from_slice(b"\x81\xa4name\xa8");
        frame.extend_from_slice(format!("t{n:07}").as_bytes());
    }
    for _ in 0..n {
        maker.say(channel, &frame);
    }
    maker.finish()
}

/// Participants with long identities, sids and rooms.
fn long_names(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let long = "x".repeat(1_000);
    for n in 0..n {
        maker.event(&format!(
            r#"{{"event":"joined","identity":"{long}{}","sid":"{long}{n}","agent":false,"role":"{long}"}}"#,
            n % 4_000
        ));
        maker.event(&format!(r#"{{"event":"here","identity":"{long}{n}","sid":"{long}","room":"{long}"}}"#));
    }
    maker.finish()
}

/// One event of megabytes, again and again.
fn large_events(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let name = "x".repeat(10 << 20);
    for n in 0..n {
        maker.event(&format!(r#"{{"event":"left","identity":"{n}{name}","sid":"PA"}}"#));
    }
    maker.finish()
}

/// Stanzas of many senders, none of which is repeated.
fn many_stanzas(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let channels: Vec<_> = (0..4_000).map(|n| maker.channel(&format!("c{n}"), &[])).collect();
    let long = "i".repeat(200);
    for n in 0..n {
        let stanza = n / channels.len() + 1;
        let json = format!(
            r#"{{"stanzaId":{stanza},"type":8,"body":{{"acknowledgedMessageId":"{long}","success":true}}}}"#
        );
        maker.frame(channels[n % channels.len()], &json);
    }
    maker.finish()
}

/// An observer's recording: many participants offer the tools, and send results for others.
fn observed_answers(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    maker.event(r#"{"event":"joined","identity":"phone","sid":"PA_phone","agent":false,"role":"observer"}"#);
    let channels: Vec<_> = (0..1_000).map(|n| maker.channel(&format!("c{n}"), &[])).collect();
    for channel in &channels {
        let json = r#"{"stanzaId":1,"type":70,"body":{"tools":[{"name":"t","description":"d"}]}}"#;
        maker.frame(*channel, json);
    }
    for n in 0..n {
        let id = (n / 20).to_string();
        if n % 20 == 0 {
            maker.frame(channels[n % 7], &request(&id, "t"));
        }
        maker.frame(channels[n % channels.len()], &result(&id));
    }
    maker.finish()
}

/// Secrets in place of every value.
fn many_secrets(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let channel = maker.channel("assistant", &[]);
    let mut frame =
        b"\x82\xa4type\x07\xa4body\x83\xa2id\xa1a\xa7success\xc3\xa6result\xdd\x00\x04\x00\x00".to_vec();
    for _ in 0..0x4_0000 {
        frame.extend_from_slice(b"\x81\xa3pin\x01");
    }
    for _ in 0..n {
        maker.say(channel, &frame);
    }
    maker.finish()
}

/// Calls of the one tool that is always hidden, each with a result.
fn hidden_calls(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, answers) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    for n in 0..n {
        maker.frame(asks, &request(&format!("{n:0250}"), "kept"));
        maker.frame(answers, &result(&format!("{n:0250}")));
        maker.frame(answers, &result("of another call"));
    }
    maker.finish()
}

/// Handshakes of the phone with many participants, and then frames of two of them.
fn many_handshakes(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let hello = |instance: &str| {
        format!(
            r#"{{"stanzaId":1,"type":12,"meta":{{"bridge.instance":"{instance}","bridge.heard":true}},"body":{{"clientVersion":"x","features":[]}}}}"#
        )
    };
    for n in 0..2_000 {
        let who = format!("c{n}");
        maker.event(&format!(r#"{{"event":"joined","identity":"{who}","sid":"PA_{who}","agent":true}}"#));
        let (heard, sent) = (maker.channel(&who, &[]), maker.channel("phone", &[&who]));
        maker.frame(sent, &hello("00000000000000000000000000000001"));
        maker.frame(heard, &hello(&format!("{:032}", n + 2)));
    }
    let asks = maker.next - 2;
    for n in 0..n {
        maker.frame(asks, &request(&n.to_string(), "t"));
        maker.frame(asks + 1, &result(&n.to_string()));
    }
    maker.finish()
}

/// Calls with large parameters and results, all equal.
fn large_calls(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let (asks, answers) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    let text = "x".repeat(500_000);
    for n in 0..n {
        maker.frame(
            asks,
            &format!(
                r#"{{"stanzaId":{n},"type":6,"body":{{"id":"{n}","toolName":"t","parameters":{{"a":"{text}"}},"execution":"client"}}}}"#
            ),
        );
        maker.frame(answers, &result(&n.to_string()));
    }
    maker.finish()
}

/// As many calls as fit into an ordinary file.
fn many_ordinary_calls(n: usize) -> Vec<u8> {
    let mut maker = Maker::plain();
    let (asks, answers) = (maker.channel("assistant", &[]), maker.channel("phone", &["assistant"]));
    for n in 0..n {
        maker.frame(asks, &request(&n.to_string(), "t"));
        maker.frame(answers, &result(&n.to_string()));
    }
    maker.finish()
}

/// Schemas and metadata records, which have no meaning here.
fn schemas_and_metadata(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    let data = vec![0; 1 << 20];
    for n in 0..n.min(60_000) {
        let id = u16::try_from(n).unwrap() + 1;
        maker.out.add_schema_with_id(id, &n.to_string(), "x", &data).unwrap();
        maker.out.add_channel_with_id(id + 1, id, &format!("f{n}"), "x", &BTreeMap::new()).unwrap();
    }
    for _ in 0..20 {
        let metadata = (0..20_000).map(|n| (format!("{n:x}"), String::new())).collect();
        maker.out.write_metadata(&Metadata { name: "other".to_owned(), metadata }).unwrap();
    }
    maker.finish()
}

/// Answers by RPC without requests, and acknowledgements of streams that never end.
fn rpc_answers(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    maker.event(r#"{"event":"answers_rpc","callers":["agent"],"streams":true}"#);
    let (answers, more) = (maker.rpc_channel("phone", &["agent"]), maker.rpc_channel("agent", &[]));
    for n in 0..n {
        maker.frame(answers, &format!(r#"{{"type":8,"body":{{"acknowledgedMessageId":"a{n}"}}}}"#));
        let result =
            format!(r#"{{"type":7,"meta":{{"rpc.code":1500}},"body":{{"id":"b{n}","success":false}}}}"#);
        maker.frame(answers, &result);
        maker.frame(more, &result);
    }
    maker.finish()
}

/// Streams of RPC with one id, in turn with an acknowledgement, without payloads and with deep ones, and of wrong types.
fn rpc_requests(n: usize) -> Vec<u8> {
    let mut maker = Maker::packed(CHUNK);
    maker.event(r#"{"event":"answers_rpc","callers":["agent"],"streams":true}"#);
    let (answers, asks) = (maker.rpc_channel("phone", &["agent"]), maker.rpc_channel("agent", &[]));
    let deep = format!("{}1{}", r#"{"a":"#.repeat(60), "}".repeat(60));
    for n in 0..n {
        let ack = r#"{"type":8,"body":{"acknowledgedMessageId":"same"}}"#;
        maker.frame(answers, ack);
        let (meta, parameters) = match n % 4 {
            0 => (r#"{"rpc.version":2,"rpc.payload":"none"}"#, "{}"),
            1 => (r#"{"rpc.version":-7,"rpc.payload":["x"],"rpc.fault":{}}"#, r#"{"value":[1]}"#),
            2 => (r#"{"rpc.fault":"too_large"}"#, "{}"),
            _ => (r#"{"rpc.version":2}"#, &*deep),
        };
        maker.frame(
            asks,
            &format!(
                r#"{{"type":6,"meta":{meta},"body":{{"id":"same","toolName":"t{}","parameters":{parameters},"execution":"client","timeoutMs":-5}}}}"#,
                n % 7
            ),
        );
        maker.frame(
            answers,
            r#"{"type":70,"body":{"tools":[{"name":"t","description":"","inputSchema":{}}]}}"#,
        );
    }
    maker.finish()
}

pub(crate) const ALL: &[Costly] = &[
    Costly { name: "callers-of-one-id", make: callers_of_one_id, few: 5_000, many: 60_000 },
    Costly { name: "long-failures", make: failures_with_long_messages, few: 20_000, many: 120_000 },
    Costly { name: "tiny-metadata", make: channels_with_tiny_metadata, few: 3_000, many: 20_000 },
    Costly { name: "one-call", make: many_small_frames_of_one_call, few: 50_000, many: 3_000_000 },
    Costly { name: "zeros", make: frames_of_zeros, few: 8, many: 1_000 },
    Costly { name: "control-characters", make: frames_of_control_characters, few: 2, many: 100 },
    Costly { name: "many-values", make: frames_of_many_values, few: 2, many: 100 },
    Costly { name: "deep-values", make: deep_values, few: 2_000, many: 300_000 },
    Costly { name: "receivers", make: many_receivers, few: 500, many: 300_000 },
    Costly { name: "leaves", make: open_calls_and_leaves, few: 5_000, many: 150_000 },
    Costly { name: "tools", make: calls_of_many_tools, few: 10_000, many: 250_000 },
    Costly { name: "registrations", make: many_registrations, few: 1_500, many: 50_000 },
    Costly { name: "large-registrations", make: large_registrations, few: 1, many: 50 },
    Costly { name: "long-names", make: long_names, few: 5_000, many: 150_000 },
    Costly { name: "large-events", make: large_events, few: 3, many: 80 },
    Costly { name: "stanzas", make: many_stanzas, few: 20_000, many: 800_000 },
    Costly { name: "observed", make: observed_answers, few: 10_000, many: 600_000 },
    Costly { name: "secrets", make: many_secrets, few: 1, many: 200 },
    Costly { name: "hidden-calls", make: hidden_calls, few: 5_000, many: 200_000 },
    Costly { name: "handshakes", make: many_handshakes, few: 500, many: 200_000 },
    Costly { name: "large-calls", make: large_calls, few: 20, many: 1_500 },
    Costly { name: "ordinary-calls", make: many_ordinary_calls, few: 5_000, many: 60_000 },
    Costly { name: "rpc-answers", make: rpc_answers, few: 5_000, many: 200_000 },
    Costly { name: "rpc-requests", make: rpc_requests, few: 3_000, many: 100_000 },
    Costly { name: "schemas", make: schemas_and_metadata, few: 50, many: 500 },
];
