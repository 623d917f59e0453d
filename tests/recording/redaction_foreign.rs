//! What `redact` leaves of a file that other programs and later versions have written to.

use std::{collections::BTreeMap, fs, io::Cursor, path::Path};

use mcap::{Compression, WriteOptions, Writer, records::MessageHeader, write::Metadata};
use serde_json::json;
use toolbridge::{
    frame::Frame,
    recording::{Recording, Redact, redact, repair},
};

use crate::{
    folder::Folder,
    secrets::{assert_free, packets},
};

const SECRET: &str = "planted-hunter2";

type Texts = BTreeMap<String, String>;

fn texts<const N: usize>(pairs: [(&str, &str); N]) -> Texts {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// A file whose messages are not compressed.
struct File {
    out: Writer<Cursor<Vec<u8>>>,
    channels: u16,
}

impl File {
    fn new() -> Self {
        Self::about([])
    }

    /// A file that says this of itself, too.
    fn about<const N: usize>(more: [(&str, &str); N]) -> Self {
        let options = WriteOptions::new().compression(None).use_chunks(false);
        let mut out = options.library("test").create(Cursor::new(Vec::new())).unwrap();
        let mut about =
            texts([("form", "1"), ("room", "r"), ("identity", "phone"), ("sid", "PA_1"), ("begun", "1")]);
        about.extend(texts(more));
        out.write_metadata(&Metadata { name: "toolbridge".to_owned(), metadata: about }).unwrap();
        Self { out, channels: 0 }
    }

    fn channel(&mut self, schema: u16, topic: &str, encoding: &str, texts: &Texts) -> u16 {
        self.channels += 1;
        self.out.add_channel_with_id(self.channels, schema, topic, encoding, texts).unwrap();
        self.channels
    }

    fn events(&mut self, events: &[serde_json::Value]) {
        let channel = self.channel(0, "room/events", "json", &Texts::new());
        events.iter().for_each(|event| self.message(channel, event.to_string().as_bytes()));
    }

    fn message(&mut self, channel_id: u16, payload: &[u8]) {
        let header = MessageHeader { channel_id, sequence: 0, log_time: 1, publish_time: 1 };
        self.out.write_to_known_channel(&header, payload).unwrap();
    }

    fn write(mut self, path: &Path) {
        self.out.finish().unwrap();
        fs::write(path, self.out.into_inner().into_inner()).unwrap();
    }
}

/// A channel of packets as a recorder writes it, with another topic of LiveKit.
fn heard(topic: &str) -> Texts {
    let mut texts = texts([("direction", "heard"), ("identity", "phone"), ("sid", "PA_1"), ("to", "[]")]);
    for (key, value) in [("topic", topic), ("lane", "reliable"), ("stream", "no")] {
        texts.insert(key.to_owned(), value.to_owned());
    }
    texts
}

/// Returns everything in a file: its records, unpacked.
fn records(path: &Path) -> Vec<u8> {
    let options = WriteOptions::new().compression(None::<Compression>).use_chunks(false);
    let bytes = fs::read(path).unwrap();
    let summary = mcap::Summary::read(&bytes).unwrap().unwrap();
    let mut out = options.create(Cursor::new(Vec::new())).unwrap();
    for message in mcap::MessageStream::new(&bytes).unwrap() {
        out.write(&message.unwrap()).unwrap();
    }
    out.finish().unwrap();
    let mut all = out.into_inner().into_inner();
    // A channel or a schema without messages stands in the summary alone.
    all.extend(format!("{:?} {:?}", summary.channels, summary.schemas).into_bytes());
    all
}

fn plain_frame() -> Vec<u8> {
    let frame = json!({"stanzaId": 1, "conversationId": "r", "type": 72, "meta": {}, "body": {}});
    Frame::from_json(&frame.to_string()).unwrap().into_bytes().to_vec()
}

/// Writes a file with three foreign channels, and one of toolbridge with texts that toolbridge does not write.
fn with_foreign_channels(path: &Path) {
    let mut file = File::new();
    let schema = file.out.add_schema(SECRET, "jsonschema", SECRET.as_bytes()).unwrap();
    let json = file.channel(schema, SECRET, "json", &texts([(SECRET, SECRET)]));
    let other = file.channel(0, "camera", "msgpack", &texts([("note", SECRET)]));
    let application = file.channel(0, "application", "msgpack", &heard(SECRET));
    for channel in [json, other, application] {
        file.message(channel, format!("{{\"x\": \"{SECRET}\"}}").as_bytes());
    }
    let mut own = heard("toolbridge");
    own.insert("note".to_owned(), SECRET.to_owned());
    let own = file.channel(schema, SECRET, "msgpack", &own);
    file.message(own, &plain_frame());
    file.write(path);
}

#[test]
fn sec_p3_messages_channels_and_schemas_of_other_programs_are_left_out() {
    let folder = Folder::new();
    let [raw, shared, kept, mended] =
        ["raw", "shared", "kept", "mended"].map(|name| folder.file(&format!("{name}.mcap")));
    with_foreign_channels(&raw);
    for rule in [Redact::everything(), Redact::everything().keep("lamp"), Redact::default()] {
        let done = redact(&raw, &shared, rule, true).unwrap();
        assert_eq!((done.entries, done.left_out, done.skipped), (1, 3, 0));
        assert_eq!(packets(&shared).len(), 1);
        assert_free("the records of a redacted file", &records(&shared), &[SECRET]);
    }
    for (what, rule) in [
        ("a file whose foreign messages are kept", Redact::everything().keep_foreign()),
        ("a file without redaction", Redact::nothing()),
    ] {
        let done = redact(&raw, &kept, rule, true).unwrap();
        assert_eq!((done.entries, done.left_out), (4, 0), "{what}");
        let records = String::from_utf8_lossy(&records(&kept)).into_owned();
        assert!(records.contains(&format!("{{\"x\": \"{SECRET}\"}}")), "{what}");
        assert!(records.contains("jsonschema"), "{what}");
    }
    assert_eq!(repair(&raw, &mended, false).unwrap().entries, 4, "a repair changes nothing");
}

#[test]
fn sec_p3_metadata_of_another_programs_file_is_redacted_unless_toolbridge_writes_such() {
    let folder = Folder::new();
    let [raw, shared, again] = ["raw", "shared", "again"].map(|name| folder.file(&format!("{name}.mcap")));
    let of = |more: [(&str, &str); 4]| {
        let mut file = File::about(more);
        let own = file.channel(0, "toolbridge", "msgpack", &heard("toolbridge"));
        // A time that is another program's.
        let header = MessageHeader { channel_id: own, sequence: 0, log_time: 1, publish_time: 77_777 };
        file.out.write_to_known_channel(&header, &plain_frame()).unwrap();
        file.write(&raw);
        redact(&raw, &shared, Redact::default(), true).unwrap();
        redact(&shared, &again, Redact::everything(), true).unwrap();
        let about = |path: &Path| Recording::open(path).unwrap().about().clone();
        let (first, second) = (about(&shared), about(&again));
        assert_eq!((&first.version, &first.protocol), (&second.version, &second.protocol), "and stays so");
        assert!(!first.metadata_only && second.metadata_only);
        for file in [&shared, &again] {
            assert_free("a redacted file", &fs::read(file).unwrap(), &[SECRET]);
            let bytes = fs::read(file).unwrap();
            let message = mcap::MessageStream::new(&bytes).unwrap().next().unwrap().unwrap();
            assert_eq!((message.log_time, message.publish_time), (1, 1));
        }
        first
    };
    let own = of([("version", "0.1.0"), ("protocol", "1"), ("room", "r"), ("sid", "PA_1")]);
    assert_eq!((&*own.version, &*own.protocol, &*own.room), ("0.1.0", "1", "r"));
    let token = format!("token={SECRET}");
    let foreign = of([("version", SECRET), ("protocol", SECRET), ("room", &token), ("sid", &token)]);
    let placeholder = format!("<redacted: string, {} bytes>", SECRET.len());
    assert_eq!((&foreign.version, &foreign.protocol), (&placeholder, &placeholder));
    let with_note =
        of([("version", "1.2.3-planted-hunter2"), ("role", SECRET), ("form", "1"), ("note", SECRET)]);
    assert!(with_note.version.starts_with("<redacted: ") && with_note.role.is_none());
    let long = "x".repeat(2_000);
    assert!(
        of([("version", ""), ("identity", &long), ("protocol", "12345"), ("begun", "1")])
            .identity
            .is_some_and(|it| it.as_str() == "<redacted: string, 2000 bytes>")
    );
}

#[test]
fn sec_p3_hidden_event_keeps_the_fields_that_this_version_knows() {
    let folder = Folder::new();
    let (raw, shared) = (folder.file("raw.mcap"), folder.file("shared.mcap"));
    let events = [
        json!({"event": "here", "identity": "phone", "sid": "PA_1", "room": "r", "unlisted": SECRET}),
        json!({"event": "joined", "identity": "a", "sid": "PA_2", "agent": true, "role": SECRET, "unlisted": SECRET}),
        json!({"event": "left", "identity": "a", "sid": "PA_2", "unlisted": {"deep": SECRET}}),
        json!({"event": "link", "up": true, "unlisted": SECRET}),
        json!({"event": "unsent", "channel": 1, "sequence": 2, "reason": SECRET, "unlisted": SECRET}),
        json!({"event": "unrecorded", "packets": 3, (SECRET): 1}),
        json!({"event": "ended", "call": "c", "code": SECRET, "unlisted": SECRET}),
        json!({"event": "unasked", "call": "c", "tool": "t", "code": SECRET, "message": SECRET, "tookMs": 4, "unlisted": SECRET}),
        json!({"event": "closed", "reason": format!("connection lost: {SECRET}"), "unlisted": SECRET}),
        json!({"event": "moved", "to": SECRET}),
    ];
    let mut file = File::new();
    file.events(&events);
    file.write(&raw);
    let done = redact(&raw, &shared, Redact::everything(), false).unwrap();
    assert_eq!((done.entries, done.left_out), (9, 1));
    assert_free("the records of a redacted file", &records(&shared), &[SECRET]);
    let shown: Vec<_> = Recording::open(&shared).unwrap().entries().map(|it| format!("{it:?}")).collect();
    for whole in ["Here", "up: true", "packets: 3", "\"connection lost: <redacted: 15 bytes>\""] {
        assert!(shown.iter().any(|it| it.contains(whole)), "{whole}: {shown:?}");
    }
    let again = folder.file("again.mcap");
    redact(&shared, &again, Redact::everything(), false).unwrap();
    assert_eq!(records(&again), records(&shared), "redacting twice changes nothing");
}

#[test]
fn unknown_field_of_an_event_is_searched_for_secrets() {
    let folder = Folder::new();
    let (raw, shared) = (folder.file("raw.mcap"), folder.file("shared.mcap"));
    let mut file = File::new();
    file.events(&[
        json!({"event": "left", "identity": "a", "sid": "PA_2", "token": SECRET, "place": "kitchen"}),
        json!({"event": "closed", "reason": format!("the server ended the session: https://x/?token={SECRET}")}),
        json!({"event": "unasked", "call": "c", "tool": "diary", "code": "busy", "message": "m", "tookMs": 4, "unlisted": SECRET}),
        json!({"event": "moved", "token": SECRET}),
    ]);
    file.write(&raw);
    let done = redact(&raw, &shared, Redact::default().tool("diary"), false).unwrap();
    assert_eq!((done.entries, done.left_out), (4, 0));
    let records = records(&shared);
    assert_free("the records of a redacted file", &records, &[SECRET]);
    assert!(String::from_utf8_lossy(&records).contains("kitchen"), "the rest stays");
}
