//! Tests damaged and truncated files: readers return only intact messages, and all before the damage.

use std::io::{self, Cursor};

use super::{
    About, DamageKind, Direction, Entry, Happened, Moment, RecordError, Recording, Redact, RoomEvent,
    format::Channel,
    queue::{Batch, Content, Item, NO_TICKET, Queue, QueuedPacket},
    redact, repair,
    rewrite::rewrite,
    writer::{Writer, Written},
    writer_thread::WriterThread,
};
use crate::transport::{Lane, Peer, Role};

/// The number of messages in the test files.
const MESSAGES: u64 = 36;

fn about() -> About {
    About::new("kitchen".to_owned(), Some(&Peer::new("phone", "PA_1")), Some(Role::Client), Moment(1))
}

/// Writes the messages and reports the file's size after each.
fn write<W: io::Write>(out: W, mut after: impl FnMut(u64)) -> io::Result<W> {
    let mut writer = Writer::begin(out, &about())?;
    let (phone, assistant) = (Peer::new("phone", "PA_1"), Peer::new("assistant", "PA_2"));
    for n in 0..MESSAGES {
        let at = Moment(100 + n);
        if n % 9 == 0 {
            writer.event(at, &RoomEvent::Link { up: n % 2 == 0 })?;
        } else {
            let (direction, from, to) = match n % 2 {
                0 => (Direction::Heard, &assistant, vec![]),
                _ => (Direction::Sent, &phone, vec!["assistant".into()]),
            };
            let lane = if n % 3 == 0 { Lane::Lossy } else { Lane::Reliable };
            let payload = vec![n as u8; 3 + (n as usize * 7) % 60];
            let packet = Written {
                direction,
                from: Some(from),
                to: &to,
                topic: "toolbridge",
                lane,
                stream: false,
                compressed: false,
                payload: &payload,
            };
            assert!(writer.packet(at, &packet)?.is_some());
        }
        after(n + 1);
    }
    writer.into_inner()
}

/// Returns a live file, and its size after each message.
fn live() -> (Vec<u8>, Vec<usize>) {
    #[derive(Clone, Default)]
    struct Shared(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);
    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let file = Shared::default();
    let mut sizes = Vec::new();
    write(file.clone(), |_| sizes.push(file.0.borrow().len())).unwrap();
    let bytes = file.0.borrow().clone();
    (bytes, sizes)
}

fn finished(live: &[u8]) -> Vec<u8> {
    let recording = Recording::read(Cursor::new(live.to_vec())).unwrap();
    let (out, repaired) = rewrite(recording, Cursor::new(Vec::new()), None).unwrap();
    assert_eq!((repaired.entries, repaired.damage), (MESSAGES, None));
    out.into_inner()
}

fn read(bytes: &[u8]) -> Result<(Vec<Entry>, bool), RecordError> {
    let mut entries = Recording::read(Cursor::new(bytes.to_vec()))?.entries();
    let all = entries.by_ref().collect();
    assert!(entries.next().is_none(), "nothing follows damage");
    Ok((all, entries.damage().is_some()))
}

/// A deterministic random sequence (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % bound as u64) as usize
    }
}

#[test]
fn finished_file_has_the_entries_of_its_live_file() {
    let (live, _) = live();
    let (entries, damaged) = read(&live).unwrap();
    assert_eq!((entries.len() as u64, damaged), (MESSAGES, false));
    let finished = finished(&live);
    assert_eq!(read(&finished).unwrap(), (entries, false));
    let about = |bytes: &[u8]| Recording::read(Cursor::new(bytes.to_vec())).unwrap().about().clone();
    assert_eq!(about(&live), self::about());
    assert_eq!(about(&finished), About { finished: true, ..self::about() });
    // Read by the crate's own reader, using the index.
    let summary = mcap::Summary::read(&finished).unwrap().unwrap();
    assert_eq!(summary.stats.unwrap().message_count, MESSAGES);
    assert!(summary.chunk_indexes.len() == 1 && summary.channels.len() > 2);
    let again = self::finished(&finished);
    assert_eq!(read(&again).unwrap(), read(&live).unwrap());
}

#[test]
fn truncated_live_file_yields_exactly_its_intact_messages() {
    let (live, sizes) = live();
    let (all, _) = read(&live).unwrap();
    for cut in 0..live.len() {
        let whole = sizes.iter().filter(|size| **size <= cut).count();
        match read(&live[..cut]) {
            Ok((entries, _)) => assert_eq!(entries, all[..whole], "cut at {cut}"),
            Err(RecordError::NoBeginning { .. }) => assert_eq!(whole, 0, "cut at {cut}"),
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
}

#[test]
fn truncated_finished_file_yields_only_correct_messages_and_damage() {
    let finished = finished(&live().0);
    let (all, _) = read(&finished).unwrap();
    let end = finished.len() - mcap::MAGIC.len();
    for cut in 0..finished.len() {
        match read(&finished[..cut]) {
            Ok((entries, damaged)) => {
                assert!(all.starts_with(&entries), "cut at {cut}");
                assert!(damaged || cut >= end, "cut at {cut}");
            }
            Err(RecordError::NoBeginning { .. }) => {}
            Err(other) => panic!("cut at {cut}: {other}"),
        }
    }
}

#[test]
fn mutated_files_never_panic_and_finished_ones_yield_only_correct_messages() {
    let (live, _) = live();
    let finished = finished(&live);
    let (all, _) = read(&finished).unwrap();
    let mut draw = Draw(5);
    for (file, checked) in [(&live, false), (&finished, true)] {
        for _ in 0..1_000 {
            let mut bytes = file.clone();
            for _ in 0..=draw.below(3) {
                let at = draw.below(bytes.len());
                bytes[at] = match draw.below(3) {
                    0 => draw.below(256) as u8,
                    1 => bytes[at] ^ (1 << draw.below(8)),
                    _ => [0, 0xff, 0x7f, 0x80][draw.below(4)],
                };
            }
            let found = read(&bytes);
            if let (true, Ok((entries, _))) = (checked, &found) {
                assert!(all.starts_with(entries), "a checksum missed it");
            }
            let Ok(recording) = Recording::read(Cursor::new(bytes)) else { continue };
            if let Ok((out, repaired)) = rewrite(recording, Cursor::new(Vec::new()), None) {
                let (entries, damaged) = read(&out.into_inner()).unwrap();
                let foreign = repaired.entries - entries.len() as u64;
                assert!(!damaged && foreign <= MESSAGES);
                assert_eq!(entries, found.unwrap().0, "repair gives what the reader gives");
            }
        }
    }
}

/// A disk with limited space.
struct Disk(usize, Vec<u8>);

impl io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.0.saturating_sub(self.1.len());
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = room.min(bytes.len());
        self.1.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_disk_ends_the_recording_and_keeps_written_messages() {
    let (live, sizes) = live();
    let (all, _) = read(&live).unwrap();
    for room in (sizes[0]..live.len()).step_by(7) {
        let mut disk = Disk(room, Vec::new());
        let error = write(&mut disk, |_| {}).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let whole = sizes.iter().filter(|size| **size <= room).count();
        assert_eq!(read(&disk.1).unwrap().0, all[..whole]);
    }
}

#[test]
fn full_disk_stops_the_recorder_and_later_packets_are_counted() {
    let queue = Queue::new(8_192, 1 << 20);
    let packet = |n: u8| {
        Happened::Packet(super::Recorded {
            direction: Direction::Heard,
            from: Some(Peer::new("assistant", "PA_2")),
            to: Vec::new(),
            topic: "toolbridge".to_owned(),
            lane: Lane::Reliable,
            stream: false,
            compressed: false,
            channel: 0,
            sequence: 0,
            payload: vec![n; 100].into(),
        })
    };
    for n in 0..50 {
        queue.push(Item::of(Moment(n.into()), packet(n)));
    }
    queue.close();
    let mut disk = Disk(2_000, Vec::new());
    let writer_thread = WriterThread::new(&mut disk, Redact::default(), std::sync::Arc::default());
    let error = writer_thread.run(&queue).map(drop).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let text = error.to_string();
    queue.fail(error);
    queue.push(Item::of(Moment(99), packet(99)));
    queue.end();
    let kept = read(&disk.1).unwrap().0.len() as u64;
    let stats = queue.stats();
    assert!(kept > 5 && stats.unrecorded == 51 - kept, "{stats:?}, {kept} kept");
    assert_eq!(stats.failed, Some(text.clone()));
    assert_eq!(queue.wait().unwrap_err().to_string(), text);
}

#[test]
fn queue_respects_its_limits_and_accepts_events_when_full_of_packets() {
    let queue = Queue::new(4, 1_000);
    let packet = |size: usize| {
        let (topic, lane) = ("toolbridge".into(), Lane::Reliable);
        let (direction, from) = (Direction::Heard, Peer::new("a", "PA_1"));
        let payload = vec![0; size].into();
        Item::Packet(
            Moment(1),
            QueuedPacket {
                direction,
                from: Some(from),
                to: vec![],
                topic,
                lane,
                stream: false,
                compressed: false,
                is_strangers: false,
                content: Content::Payload(payload),
                ticket: 0,
            },
        )
    };
    let tickets: Vec<_> =
        [900, 100, 100, 500, 100].into_iter().map(|size| queue.push(packet(size))).collect();
    assert_eq!(tickets, [0, 1, 2, 0, 0], "1,000 bytes hold two entries with their overhead");
    queue.push(Item::Event(Moment(2), RoomEvent::Link { up: true }));
    let mut batch = Batch::default();
    queue.take(&mut batch, 0);
    assert!(batch.hidden.is_empty());
    assert_eq!((batch.items.len(), batch.unrecorded, batch.last), (3, 3, false));
    assert_eq!(queue.push(packet(1)), 0, "items being written count until they are written");
    queue.close();
    queue.take(&mut batch, 2);
    assert_eq!((batch.items.len(), batch.unrecorded, batch.last), (0, 1, true));
    assert_eq!((queue.stats().recorded, queue.stats().unrecorded), (2, 4));
}

#[test]
fn sec_p3_full_queue_keeps_hidden_tools() {
    let queue = Queue::new(1, 1_000);
    let event = || Item::Event(Moment(1), RoomEvent::Link { up: true });
    while queue.push(event()) != NO_TICKET {}
    queue.hide("read_diary");
    let mut batch = Batch::default();
    queue.take(&mut batch, 0);
    assert!(batch.hidden.contains("read_diary"));
    assert_eq!(queue.push(event()), NO_TICKET, "it is still full");
}

/// An MCAP record.
fn record(code: u8, body: &[u8]) -> Vec<u8> {
    [&[code], &(body.len() as u64).to_le_bytes()[..], body].concat()
}

/// A chunk of these records without compression and checksum.
fn chunk(records: &[u8], size: u64) -> Vec<u8> {
    let fields: [&[u8]; 6] = [&[0; 16], &size.to_le_bytes(), &[0; 8], &size.to_le_bytes(), records, &[]];
    record(6, &fields.concat())
}

#[test]
fn hostile_lengths_are_damage_and_allocate_nothing() {
    let (live, _) = live();
    let huge = u64::MAX.to_le_bytes();
    let texts = [&[9, 0, 0, 0][..], &u32::MAX.to_le_bytes(), &[b'x'; 64]].concat();
    let tails = [
        [&[5][..], &huge].concat(),
        [&[6][..], &huge].concat(),
        record(4, &texts),
        record(12, &texts),
        record(5, &[1]),
        // A record that claims to be longer than its chunk.
        chunk(&[&[5][..], &100_u64.to_le_bytes(), &[0; 30]].concat(), 39),
        chunk(&[5; 40], 1 << 62),
        record(6, &[0xff; 40]),
    ];
    for (n, tail) in tails.iter().enumerate() {
        let file = [&live[..], tail, &[0; 200]].concat();
        let (entries, damaged) = read(&file).unwrap();
        assert_eq!((entries.len() as u64, damaged), (MESSAGES, true), "{n}");
    }
}

#[test]
fn messages_on_foreign_channels_are_skipped_and_counted() {
    let (mut file, _) = live();
    let others = [
        record(4, &[&[0, 9, 0, 0][..], &[1, 0, 0, 0, b't'], &[4, 0, 0, 0], b"json", &[0; 4]].concat()),
        record(5, &[&[0, 9, 0, 0, 0, 0][..], &[0; 16], b"{}"].concat()),
        record(5, &[&[7, 7, 0, 0, 0, 0][..], &[0; 16], b"of no channel"].concat()),
    ];
    file.extend(others.concat());
    let mut entries = Recording::read(Cursor::new(file.clone())).unwrap().entries();
    assert_eq!(entries.by_ref().count() as u64, MESSAGES);
    assert_eq!((entries.foreign(), entries.damage()), (2, None));
    let (_, repaired) =
        rewrite(Recording::read(Cursor::new(file)).unwrap(), Cursor::new(Vec::new()), None).unwrap();
    assert_eq!((repaired.entries, repaired.damage), (MESSAGES + 1, None));
}

#[test]
fn channel_defined_twice_is_damage() {
    let (mut file, _) = live();
    let Happened::Packet(packet) = read(&file).unwrap().0.remove(1).what else { panic!("no packet") };
    let other = Channel {
        direction: packet.direction,
        from: Some(Peer::new("somebody else", "PA_9")),
        to: packet.to,
        topic: packet.topic,
        lane: packet.lane,
        stream: packet.stream,
        compressed: packet.compressed,
    };
    let mut out = Writer::begin(Vec::new(), &about()).unwrap();
    let written = Written {
        direction: other.direction,
        from: other.from.as_ref(),
        to: &other.to,
        topic: &other.topic,
        lane: other.lane,
        stream: other.stream,
        compressed: other.compressed,
        payload: b"x",
    };
    let start = Writer::begin(Vec::new(), &about()).unwrap().into_inner().unwrap().len();
    out.packet(Moment(1), &written).unwrap();
    file.extend_from_slice(&out.into_inner().unwrap()[start..]);
    let (entries, damaged) = read(&file).unwrap();
    assert_eq!((entries.len() as u64, damaged), (MESSAGES, true));
    let recording = Recording::read(Cursor::new(file)).unwrap();
    let (_, repaired) = rewrite(recording, Cursor::new(Vec::new()), None).unwrap();
    assert_eq!((repaired.entries, repaired.damage.is_some()), (MESSAGES, true));
}

#[test]
fn channel_repeated_with_another_schema_is_damage_to_readers_and_copies() {
    let channel = |schema: u8| {
        let fields = [&[0, 9, schema, 0][..], &[1, 0, 0, 0, b't'], &[4, 0, 0, 0], b"json", &[0; 4]];
        record(4, &fields.concat())
    };
    let message = record(5, &[&[0, 9, 0, 0, 0, 0][..], &[0; 16], b"{}"].concat());
    for (schema, damaged) in [(0, false), (7, true)] {
        let mut file = live().0;
        file.extend([channel(0), channel(schema), message.clone()].concat());
        let mut entries = Recording::read(Cursor::new(file.clone())).unwrap().entries();
        assert_eq!(entries.by_ref().count() as u64, MESSAGES);
        let read = entries.damage().cloned();
        assert_eq!((entries.foreign(), read.is_some()), (u64::from(!damaged), damaged), "{read:?}");
        let recording = Recording::read(Cursor::new(file)).unwrap();
        let (_, repaired) = rewrite(recording, Cursor::new(Vec::new()), None).unwrap();
        assert_eq!((repaired.entries, repaired.damage), (MESSAGES + u64::from(!damaged), read));
    }
}

/// The records of a file, without its magic numbers.
fn records_of(file: &[u8]) -> Vec<&[u8]> {
    let mut rest = &file[mcap::MAGIC.len()..];
    let mut records = Vec::new();
    while rest.len() > 9 {
        let length = 9 + u64::from_le_bytes(*rest[1..].first_chunk().unwrap()) as usize;
        let (record, after) = rest.split_at(length);
        records.push(record);
        rest = after;
    }
    records
}

/// Turns a live file to one with a single chunk: its name for the compression, its records as they are packed, and
/// their size.
fn packed(live: &[u8], compression: &str, pack: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let records = records_of(live);
    let (head, data) = records.split_at(2); // the header, and the recording's metadata
    let (unpacked, head) = (data.concat(), head.concat());
    let packed = pack(&unpacked);
    let chunk = [
        &[0; 16][..],
        &(unpacked.len() as u64).to_le_bytes(),
        &[0; 4],
        &(compression.len() as u32).to_le_bytes(),
        compression.as_bytes(),
        &(packed.len() as u64).to_le_bytes(),
        &packed,
    ];
    [mcap::MAGIC, &head, &record(6, &chunk.concat()), &record(15, &[0; 4]), &record(2, &[0; 20]), mcap::MAGIC]
        .concat()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn file_packed_with_lz4_has_the_same_entries() {
    let (live, _) = live();
    let (all, _) = read(&live).unwrap();
    let file = packed(&live, "lz4", lz4);
    assert_eq!(read(&file).unwrap(), (all.clone(), false));
    assert_eq!(read(&finished(&file)).unwrap(), (all.clone(), false));
    // The chunk's size is what its records have.
    let longer = packed(&live, "lz4", |records| lz4(&[records, b"x"].concat()));
    let shorter = packed(&live, "lz4", |records| lz4(&records[1..]));
    for wrong in [longer, shorter, packed(&live, "lz4", <[u8]>::to_vec)] {
        assert_eq!(read(&wrong).unwrap(), (Vec::new(), true));
    }
    let mut draw = Draw(11);
    for _ in 0..2_000 {
        let mut bytes = file.clone();
        let at = mcap::MAGIC.len() + draw.below(bytes.len() - mcap::MAGIC.len());
        bytes[at] ^= 1 << draw.below(8);
        let _ = read(&bytes); // it does not panic
    }
}

#[test]
fn unknown_compression_is_unsupported_and_no_copy_replaces_the_file() {
    let folder = Folder::new();
    let file = folder.0.join("session.mcap");
    let bytes = packed(&live().0, "brotli", <[u8]>::to_vec);
    std::fs::write(&file, &bytes).unwrap();
    let mut entries = Recording::open(&file).unwrap().entries();
    assert_eq!(entries.by_ref().count(), 0);
    let damage = entries.damage().unwrap();
    assert_eq!(damage.kind, DamageKind::Unsupported);
    let text = damage.to_string();
    assert!(text.contains("\"brotli\" is not supported") && !text.contains("damaged"), "{text}");
    assert!(matches!(repair(&file, &file, true), Err(RecordError::Unsupported(_))));
    assert!(matches!(redact(&file, &file, Redact::default(), true), Err(RecordError::Unsupported(_))));
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

#[test]
fn copy_without_any_entry_of_a_file_with_entries_is_not_written() {
    let folder = Folder::new();
    let (file, out) = (folder.0.join("session.mcap"), folder.0.join("out.mcap"));
    let (live, sizes) = live();
    let head = Writer::begin(Vec::new(), &about()).unwrap().into_inner().unwrap().len();
    // Cut in its first entry; and one whose channels are missing.
    let without_channels: Vec<_> = records_of(&live).into_iter().filter(|record| record[0] != 4).collect();
    let without_channels = [mcap::MAGIC, &without_channels.concat()].concat();
    for (n, bytes) in [&live[..sizes[0] - 1], &without_channels].into_iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        assert!(matches!(repair(&file, &out, false), Err(RecordError::NothingLeft { .. })), "{n}");
        assert!(!out.exists());
    }
    // A recording without entries is complete.
    std::fs::write(&file, &live[..head]).unwrap();
    assert_eq!(repair(&file, &out, false).unwrap().entries, 0);
}

/// A finished file whose metadata record, schema and channel are where another program may put them: the metadata
/// behind the messages, and the definitions in the index alone.
fn rearranged(live: &[u8]) -> Vec<u8> {
    let records = records_of(live);
    let is = |code: u8| move |record: &&&[u8]| record[0] == code;
    let all = |code: u8| records.iter().filter(is(code)).copied().collect::<Vec<_>>().concat();
    let (header, metadata, channels, messages) = (all(1), all(12), all(4), all(5));
    let foreign = {
        let body = [&[99, 0, 7, 0][..], &[1, 0, 0, 0, b't'], &[4, 0, 0, 0], b"json", &[0; 4]].concat();
        [
            record(
                3,
                &[&[7, 0][..], &[1, 0, 0, 0, b's'], &[1, 0, 0, 0, b'j'], &[2, 0, 0, 0], b"{}"].concat(),
            ),
            record(4, &body),
        ]
        .concat()
    };
    let message = record(5, &[&[99, 0, 0, 0, 0, 0][..], &[0; 16], b"{}"].concat());
    let data = [mcap::MAGIC, &header, &messages, &message].concat();
    let metadata_at = data.len() as u64;
    let name = [&10_u32.to_le_bytes()[..], b"toolbridge"].concat();
    let entry = [&metadata_at.to_le_bytes()[..], &(metadata.len() as u64).to_le_bytes(), &name].concat();
    let data = [data, metadata, record(15, &[0; 4])].concat();
    let summary = [channels, foreign, record(13, &entry)].concat();
    let footer = record(2, &[&(data.len() as u64).to_le_bytes()[..], &[0; 12]].concat());
    [&data[..], &summary, &footer, mcap::MAGIC].concat()
}

#[test]
fn metadata_channels_and_schemas_are_found_by_the_index() {
    let folder = Folder::new();
    let (file, out) = (folder.0.join("session.mcap"), folder.0.join("out.mcap"));
    let (live, _) = live();
    let bytes = rearranged(&live);
    assert!(matches!(read(&bytes), Err(RecordError::Foreign)), "only a file has an index");
    std::fs::write(&file, &bytes).unwrap();
    let recording = Recording::open(&file).unwrap();
    assert_eq!(recording.about(), &about());
    let mut entries = recording.entries();
    assert_eq!(entries.by_ref().collect::<Vec<_>>(), read(&live).unwrap().0);
    assert_eq!((entries.foreign(), entries.damage()), (1, None));
    let repaired = repair(&file, &out, false).unwrap();
    assert_eq!((repaired.entries, repaired.skipped, repaired.damage), (MESSAGES + 1, 0, None));
    let copy = std::fs::read(&out).unwrap();
    assert_eq!(read(&copy).unwrap().0, read(&live).unwrap().0);
    let summary = mcap::Summary::read(&copy).unwrap().unwrap();
    assert_eq!(summary.schemas.values().map(|schema| schema.name.as_str()).collect::<Vec<_>>(), ["s"]);
}

#[test]
fn damaged_index_never_panics_and_changes_no_entry_before_it() {
    let folder = Folder::new();
    let file = folder.0.join("session.mcap");
    let finished = finished(&live().0);
    let (all, _) = read(&finished).unwrap();
    let mut draw = Draw(3);
    for _ in 0..500 {
        let mut bytes = finished.clone();
        let tail = bytes.len() / 3;
        for _ in 0..=draw.below(3) {
            let at = bytes.len() - 1 - draw.below(tail);
            bytes[at] = [0, 0xff, 0x7f, draw.below(256) as u8][draw.below(4)];
        }
        std::fs::write(&file, &bytes).unwrap();
        let Ok(recording) = Recording::open(&file) else { continue };
        let entries: Vec<_> = recording.entries().collect();
        assert!(all.starts_with(&entries));
    }
}

/// A temporary folder.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("toolbridge-records-{}", nanoid::nanoid!()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
