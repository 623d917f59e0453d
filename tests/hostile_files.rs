//! Hostile recordings, passed to every reader in a process with limited memory: 10,000 mutated files, and
//! intact files that are built to cost much time and memory.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{self, Cursor},
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use allocation_counter::measure;
use rustix::process::{Resource, Rlimit, setrlimit};
use toolbridge::{
    recording::{
        Entries, Entry, Happened, RecordError, Recorder, RecorderOptions, Recording, Redact, call_json,
        calls, check, entry_json, entry_text, info, redact, repair, report, write_report,
    },
    replay::{Cassette, Replay},
};

#[path = "hostile_files/costly.rs"]
mod costly;

/// The number of mutated files.
const FILES: usize = 10_000;

/// The most memory that reading one mutated file may use at once, in bytes. Readers allocate the announced size of a
/// chunk, up to the limit of a record, 24 MiB.
const TAKEN: u64 = (24 + 4) * 1024 * 1024;

/// The most memory that each command may use at once for any file, in bytes, in addition to the process's own.
const MOST: u64 = 224 * 1024 * 1024;

/// The address space of this process, in bytes. An allocation beyond it would abort the process.
const SPACE: u64 = 2 * 1024 * 1024 * 1024;

/// The parts of a live file: the bytes before the first record, and the records with their headers.
struct File {
    head: Vec<u8>,
    records: Vec<Vec<u8>>,
}

const MESSAGE: u8 = 0x05;

/// The positions of a message's time and of its payload in its record.
const TIME: usize = 9 + 6;
const PAYLOAD: usize = 9 + 22;

impl File {
    fn new(bytes: &[u8]) -> Self {
        let (head, mut rest) = bytes.split_at(8);
        let mut records = Vec::new();
        while rest.len() > 9 {
            let length = u64::from_le_bytes(rest[1..9].try_into().unwrap()) as usize;
            let (record, more) = rest.split_at(9 + length);
            records.push(record.to_vec());
            rest = more;
        }
        assert!(rest.is_empty() && records.len() > 10, "{} records", records.len());
        Self { head: head.to_vec(), records }
    }

    fn bytes(&self) -> Vec<u8> {
        [self.head.clone(), self.records.concat()].concat()
    }
}

/// A random sequence that is the same each time (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Returns a byte with another meaning in MessagePack, in JSON or as a number.
    fn byte(&mut self, old: u8) -> u8 {
        match self.below(4) {
            0 => self.next() as u8,
            1 => old ^ (1 << self.below(8)),
            2 => *self.of(&[0, 0xff, 0x7f, 0x80, 0xc0, 0xc1, 0xd9, 0xdb, 0xdd, 0xdf]),
            _ => *self.of(b"0129-\"{}[]:,."),
        }
    }
}

/// Changes a file: mostly the content of its records, so that it is read completely and deeply.
fn change(live: &File, finished: &[u8], draw: &mut Draw) -> Vec<u8> {
    if draw.below(8) == 0 {
        let mut bytes = if draw.below(2) == 0 { finished.to_vec() } else { live.bytes() };
        for _ in 0..=draw.below(3) {
            let at = draw.below(bytes.len());
            bytes[at] = draw.byte(bytes[at]);
        }
        if draw.below(3) == 0 {
            bytes.truncate(draw.below(bytes.len()));
        }
        return bytes;
    }
    let mut file = File { head: live.head.clone(), records: live.records.clone() };
    for _ in 0..=draw.below(3) {
        let (one, other) = (draw.below(file.records.len()), draw.below(file.records.len()));
        let is_message = file.records[one][0] == MESSAGE;
        match draw.below(8) {
            0 => drop(file.records.remove(one)),
            1 => {
                let copy = file.records[one].clone();
                file.records.insert(other, copy);
            }
            2 => file.records.swap(one, other),
            3 if is_message => {
                let old = u64::from_le_bytes(file.records[one][TIME..TIME + 8].try_into().unwrap());
                let hour = 3_600_000_000_000;
                let times = [
                    0,
                    1,
                    u64::MAX,
                    u64::MAX / 2,
                    old.wrapping_add(hour),
                    old.wrapping_add(1_000_000_000),
                    old.wrapping_sub(hour),
                    draw.next(),
                ];
                let time = draw.of(&times).to_le_bytes();
                file.records[one][TIME..TIME + 8].copy_from_slice(&time);
                file.records[one][TIME + 8..TIME + 16].copy_from_slice(&time);
            }
            4 => {
                let lengths = [0, 1, 21, 22, 23, 0xffff, u64::MAX, 1 << 40, 64 << 20];
                file.records[one][1..9].copy_from_slice(&draw.of(&lengths).to_le_bytes());
            }
            5 if is_message && file.records[other][0] == MESSAGE => {
                let payload = file.records[other][PAYLOAD..].to_vec();
                file.records[one].truncate(PAYLOAD);
                file.records[one].extend_from_slice(&payload);
                let length = file.records[one].len() as u64 - 9;
                file.records[one][1..9].copy_from_slice(&length.to_le_bytes());
            }
            _ => {
                let from = if is_message && draw.below(10) > 0 { PAYLOAD } else { 9 };
                let length = file.records[one].len();
                for _ in 0..=draw.below(2) {
                    if length > from {
                        let at = from + draw.below(length - from);
                        file.records[one][at] = draw.byte(file.records[one][at]);
                    }
                }
            }
        }
    }
    file.bytes()
}

/// The results of all files.
#[derive(Debug, Default)]
struct Seen {
    refused: u64,
    damaged: u64,
    found: u64,
    replayed: u64,
    different: u64,
    live: u64,
}

/// Reads a file as every command does.
fn read_all(bytes: &[u8], folder: &Path, seen: &mut Seen) {
    let mut entries = match Recording::read(Cursor::new(bytes.to_vec())) {
        Ok(recording) => recording.entries(),
        Err(
            RecordError::NotMcap
            | RecordError::Foreign
            | RecordError::NoBeginning { .. }
            | RecordError::Version { .. },
        ) => {
            seen.refused += 1;
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let all: Vec<Entry> = entries.by_ref().collect();
    seen.damaged += u64::from(entries.damage().is_some());
    let mut text = String::new();
    for (index, entry) in all.iter().enumerate() {
        writeln!(text, "{}{}", entry_text(entry, None), entry_json(index, entry)).unwrap();
    }
    seen.found += u64::from(check(all.clone()).errors > 0);
    let folded = calls(all.clone());
    serde_json::to_string(&info(all.clone())).unwrap();
    assert!(report(all.clone(), &folded.calls, "a file").ends_with("</html>\n"));
    if let Ok(report) = Replay::dry(all.clone()) {
        seen.replayed += 1;
        seen.different += u64::from(!report.is_same());
    }
    if let (Ok(cassette), Ok(live)) = (Cassette::new(all.clone()), Replay::live(all.clone())) {
        assert_eq!(cassette.left(), cassette.calls());
        assert!(live.plan().asked().next().is_none(), "a tool would run that was not allowed");
        seen.live += 1;
    }
    let (input, output) = (folder.join("in.mcap"), folder.join("out.mcap"));
    fs::write(&input, bytes).unwrap();
    if repair(&input, &output, true).is_ok() {
        let mut entries = Recording::open(&output).unwrap().entries();
        assert!(entries.by_ref().eq(all), "the repaired file has other entries");
        assert!(entries.damage().is_none());
    }
    drop(redact(&input, &output, Redact::everything(), true));
}

/// The live file of these entries.
fn live(entries: Vec<Entry>, path: &Path) -> Vec<u8> {
    let recorder = Recorder::create(path, RecorderOptions::default()).unwrap();
    let is_packet = |entry: &&Entry| matches!(entry.what, Happened::Packet(_));
    let packets = entries.iter().filter(is_packet).count() as u64 + 1;
    // It ends with a packet, because packets are counted once they are written.
    let last = entries.iter().rfind(is_packet).unwrap().clone();
    for entry in entries.into_iter().chain([last]) {
        recorder.record(entry);
    }
    while recorder.stats().recorded < packets {
        thread::yield_now();
    }
    let live = fs::read(path).unwrap();
    recorder.finish().unwrap();
    live
}

/// A recording of a real session, live and finished.
struct Whole {
    name: String,
    live: File,
    finished: Vec<u8>,
}

fn fixtures(folder: &Path) -> Vec<Whole> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings");
    let mut paths: Vec<_> = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "mcap"));
    paths.sort();
    let whole = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let entries = Recording::open(path).unwrap().entries().collect();
        let live = File::new(&live(entries, &folder.join(format!("live-{name}.mcap"))));
        Whole { name, live, finished: fs::read(path).unwrap() }
    };
    paths.iter().map(whole).collect()
}

fn run(seed: u64) {
    let limit = Rlimit { current: Some(SPACE), maximum: Some(SPACE) };
    setrlimit(Resource::As, limit).unwrap();
    let folder = env::temp_dir().join(format!("toolbridge-hostile-{}-{seed}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let all = fixtures(&folder);
    let (mut seen, mut draw) = (Seen::default(), Draw(seed));
    let mut most = 0;
    for n in 0..FILES / 2 {
        let Whole { name, live, finished } = &all[n % all.len()];
        let bytes = change(live, finished, &mut draw);
        let cost = measure(|| read_all(&bytes, &folder, &mut seen));
        assert!(cost.bytes_max <= TAKEN, "file {n} of seed {seed}, of {name}, takes {} B", cost.bytes_max);
        most = most.max(cost.bytes_max);
    }
    fs::remove_dir_all(&folder).unwrap();
    println!("{seen:?}; at most {most} B at once");
    assert!(
        seen.refused < 1_000 && seen.replayed > 3_000 && seen.different > 500 && seen.live > 1_000,
        "too few files were read completely: {seen:?}"
    );
}

#[test]
fn five_thousand_mutated_files_are_handled() {
    run(1);
}

#[test]
fn five_thousand_unstructured_files_are_handled() {
    run(2);
}

/// The name of a command, and what it does with a file.
type Verb = (&'static str, fn(&Path));

const VERBS: &[Verb] = &[
    ("info", |path| drop(serde_json::to_string(&info(entries(path))).unwrap())),
    ("check", |path| drop(serde_json::to_string(&check(entries(path))).unwrap())),
    ("calls", |path| {
        for call in calls(entries(path)).calls {
            serde_json::to_writer(io::sink(), &call_json(&call)).unwrap();
        }
    }),
    ("cat", |path| {
        for (index, entry) in entries(path).enumerate() {
            drop(entry_text(&entry, None));
            serde_json::to_writer(io::sink(), &entry_json(index, &entry)).unwrap();
        }
    }),
    ("report", |path| {
        let folded = calls(entries(path));
        write_report(entries(path), &folded.calls, "a file", &[], &mut io::sink()).unwrap();
    }),
    ("repair", |path| drop(repair(path, path.with_extension("out"), true))),
    ("redact", |path| {
        drop(redact(path, path.with_extension("out"), Redact::everything().keep("kept"), true));
    }),
    ("replay", |path| drop(Replay::dry(entries(path)))),
    ("cassette", |path| drop(Cassette::new(entries(path)))),
    ("live replay", |path| drop(Replay::live(entries(path)).map(|live| live.plan()))),
];

fn entries(path: &Path) -> Entries {
    Recording::open(path).unwrap().entries()
}

#[test]
fn costly_files_are_read_by_every_verb_in_bounded_memory() {
    let folder = env::temp_dir().join(format!("toolbridge-costly-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (wrong, next) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    // What a thread allocates is measured for that thread alone.
    let read_files = || {
        while let Some(file) = costly::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let path = folder.join(format!("{}.mcap", file.name));
            fs::write(&path, (file.make)(file.few)).unwrap();
            for (verb, read) in VERBS {
                let cost = measure(|| read(&path));
                if cost.bytes_max > MOST {
                    let text = format!("{verb} of {}: {} MiB", file.name, cost.bytes_max >> 20);
                    wrong.lock().unwrap().push(text);
                }
            }
            fs::remove_file(path).unwrap();
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(read_files);
        }
    });
    fs::remove_dir_all(&folder).unwrap();
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Keeps the largest files of each kind in the folder `TOOLBRIDGE_COSTLY_FILES`, to measure the command line with
/// them: `/usr/bin/time -v toolbridge info FILE`.
#[test]
fn costly_files_are_kept_on_request() {
    let Some(folder) = env::var_os("TOOLBRIDGE_COSTLY_FILES").map(PathBuf::from) else { return };
    fs::create_dir_all(&folder).unwrap();
    let only = env::var("TOOLBRIDGE_COSTLY_KIND").ok();
    for file in costly::ALL.iter().filter(|file| only.as_ref().is_none_or(|it| it == file.name)) {
        fs::write(folder.join(format!("{}.mcap", file.name)), (file.make)(file.many)).unwrap();
    }
}
