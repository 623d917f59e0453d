//! A process that is killed while it records or finishes its file, and one whose disk is full: what was written
//! remains.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
};

use toolbridge::{
    Assistant, Client, Event, ToolError, memory,
    recording::{Direction, Entry, Happened, Moment, Recorder, RecorderOptions, Recording, Redact, repair},
    transport::Peer,
};

use crate::{
    folder::Folder,
    recording::{here, packet},
};

/// The environment variable that makes this program the process to be killed: what it does, and its file.
const DOES: &str = "TOOLBRIDGE_TEST_KILLED_DOES";
const FILE: &str = "TOOLBRIDGE_TEST_KILLED_FILE";

/// Frames in a finished file, enough that finishing takes a while.
const FRAMES: u64 = 20_000;

/// Frames between two reports of their number.
const STEP: u64 = 50;

fn frame(n: u64) -> Entry {
    // Incompressible data, so that finishing takes long and the file grows.
    let mut bits = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut payload = n.to_le_bytes().to_vec();
    for _ in 0..30 {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        payload.extend_from_slice(&bits.to_le_bytes());
    }
    let what = packet(Direction::Sent, &Peer::new("phone", "PA_1"), &["assistant"], payload);
    Entry::new(Moment(2_000 + n), what)
}

/// Not a test: the process that the other tests start and kill.
#[test]
fn records_until_it_is_killed() {
    let Ok(does) = env::var(DOES) else { return };
    // Random bytes may contain the name of a secret.
    let options = RecorderOptions::default().redact(Redact::nothing());
    let recorder = Recorder::create(env::var(FILE).unwrap(), options).unwrap();
    recorder.record(here());
    let last = if does == "finishes" { FRAMES } else { u64::MAX };
    let mut out = std::io::stdout();
    for n in 0..last {
        recorder.record(frame(n));
        if (n + 1) % STEP == 0 {
            while recorder.stats().recorded <= n {
                thread::yield_now();
            }
            writeln!(out, "\nrecorded {}", n + 1).unwrap();
        }
    }
    recorder.finish().unwrap();
    writeln!(out, "\nfinished").unwrap();
}

/// The process that will be killed.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    fn start(does: &str, file: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["recording_killed::records_until_it_is_killed", "--exact", "--nocapture"])
            .env(DOES, does)
            .env(FILE, file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Waits until the process has reported this many recorded frames.
    fn recorded(&mut self, frames: u64) {
        let wanted = format!("recorded {frames}\n");
        let mut line = String::new();
        while line != wanted {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "the process ended before it was killed");
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap(); // SIGKILL
        self.child.wait().unwrap();
    }
}

/// Reads a file that starts with the entry that names its participant, followed by frames in order.
fn frames_of(path: &Path) -> u64 {
    let mut entries = Recording::open(path).unwrap().entries().skip(1);
    let mut count = 0;
    for entry in entries.by_ref() {
        let (Happened::Packet(got), Happened::Packet(wanted)) = (entry.what, frame(count).what) else {
            panic!("entry {count} is no packet");
        };
        assert_eq!((entry.at, got.payload), (Moment(2_000 + count), wanted.payload), "frame {count}");
        count += 1;
    }
    count
}

/// The new file of a recording that is being finished: its temporary name and size.
fn unfinished(folder: &Folder) -> Option<(PathBuf, u64)> {
    let files = fs::read_dir(folder.file("")).unwrap().map(|file| file.unwrap());
    let mut hidden = files.filter(|file| file.file_name().to_string_lossy().starts_with(".toolbridge-"));
    hidden.next().map(|file| (file.path(), file.metadata().map_or(0, |found| found.len())))
}

#[test]
fn killed_process_leaves_every_recorded_frame() {
    let folder = Folder::new();
    for step in [1, 2, 3, 7, 20, 60] {
        let path = folder.file(&format!("killed-{step}.mcap"));
        let mut process = Process::start("records", &path);
        process.recorded(step * STEP);
        process.kill();
        assert!(!Recording::open(&path).unwrap().about().finished);
        let count = frames_of(&path);
        assert!(count >= step * STEP, "{count} of {}", step * STEP);
        let repaired = folder.file(&format!("repaired-{step}.mcap"));
        repair(&path, &repaired, false).unwrap();
        assert!(Recording::open(&repaired).unwrap().about().finished);
        assert_eq!(frames_of(&repaired), count);
    }
}

#[test]
fn process_killed_while_finishing_leaves_the_live_or_the_finished_file() {
    let folder = Folder::new();
    let mut between = 0;
    for part in 0..6_u64 {
        let path = folder.file(&format!("finishing-{part}.mcap"));
        let mut process = Process::start("finishes", &path);
        process.recorded(FRAMES);
        let size = || unfinished(&folder).map_or(0, |(_, size)| size);
        while size() < part * 800_000 && process.child.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        process.kill();
        if let Some((left, _)) = unfinished(&folder) {
            between += 1;
            fs::remove_file(left).unwrap();
        }
        assert_eq!(frames_of(&path), FRAMES);
        repair(&path, &path, true).unwrap();
        assert_eq!((frames_of(&path), unfinished(&folder)), (FRAMES, None));
        assert!(Recording::open(&path).unwrap().about().finished);
    }
    println!("{between} of 6 were killed with the new file half there");
}

/// A kill at any byte of the new file leaves the live file complete; the remains are no obstacle.
#[test]
fn remains_of_an_unfinished_file_are_no_obstacle() {
    let folder = Folder::new();
    let path = folder.file("whole.mcap");
    let recorder = Recorder::create(&path, RecorderOptions::default()).unwrap();
    recorder.record(here());
    (0..STEP).for_each(|n| recorder.record(frame(n)));
    while recorder.stats().recorded < STEP {
        thread::yield_now();
    }
    let live = fs::read(&path).unwrap();
    recorder.finish().unwrap();
    let finished = fs::read(&path).unwrap();
    let left = folder.file(".toolbridge-left.tmp");
    for cut in (0..finished.len()).step_by(97) {
        fs::write(&path, &live).unwrap();
        fs::write(&left, &finished[..cut]).unwrap();
        assert_eq!(frames_of(&path), STEP);
        repair(&path, &path, true).unwrap();
        fs::remove_file(&left).unwrap();
        assert_eq!((frames_of(&path), unfinished(&folder)), (STEP, None));
    }
}

/// Not a test: the process that the next test starts with a limited file size.
#[tokio::test]
async fn records_until_the_disk_is_full() {
    if env::var(DOES).as_deref() != Ok("fills") {
        return;
    }
    async fn page() -> Result<String, ToolError> {
        Ok("x".repeat(1_000))
    }
    let room = memory::MemoryRoom::new();
    let phone = Client::builder().tool("page", "", page).record(env::var(FILE).unwrap());
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let brain = Assistant::builder().join_over(room.assistant("brain")).await.unwrap();
    let mut events = phone.events();
    let stopped = async {
        loop {
            if let Event::RecordingStopped { reason } = events.recv().await.unwrap() {
                return reason;
            }
        }
    };
    let calls = async {
        loop {
            brain.call("page", ()).await.unwrap();
        }
    };
    let reason = tokio::select! {
        reason = stopped => reason,
        () = calls => unreachable!("the calls never end"),
    };
    // Who subscribes later is told too.
    let first = phone.events().recv().await;
    assert!(matches!(&first, Some(Event::RecordingStopped { reason: it }) if *it == reason), "{first:?}");
    brain.call("page", ()).await.unwrap();
    brain.close().await;
    phone.close().await;
    println!("\nstopped: {reason}");
}

#[test]
fn full_disk_stops_the_recording_with_an_event_and_calls_continue() {
    let folder = Folder::new();
    let path = folder.file("full.mcap");
    // 64 blocks of 512 B or 1,024 B, as the shell counts; beyond that, writing fails as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" recording_killed::records_until_the_disk_is_full --exact --nocapture";
    let output = Command::new("/bin/sh")
        .arg("-c")
        .arg(script)
        .arg(env::current_exe().unwrap())
        .env(DOES, "fills")
        .env(FILE, &path)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("\nstopped: "), "{output:?}");
    assert!(out.contains("too large"), "the reason is not the system's: {out}");
    assert!(
        Recording::open(&path).unwrap().entries().count() > 10,
        "the entries before the failure are readable"
    );
}
