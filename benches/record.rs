//! The cost of recording: on the path of a call, and in the writer thread.
//!
//! `scripts/bench record` runs this and measures reading a long recording, which this writes to the file named by
//! `TOOLBRIDGE_HOUR`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark owns its clock and may fail"
)]

use std::{
    env, fs,
    future::{Future, ready},
    hint::black_box,
    path::{Path, PathBuf},
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use toolbridge::{
    CallId,
    frame::{Acknowledgement, Frame, Message, Meta, ToolUseRequest, ToolUseResult},
    recording::{Direction, Entry, Happened, Moment, Recorded, Recorder, RecorderOptions, Redact, RoomEvent},
    tools::Execution,
    transport::{Capabilities, Lane, Packet, Participant, Peer, SendError, Transport, TransportEvent},
};

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

#[allow(dead_code, reason = "other benchmarks use the rest")]
mod samples;
mod short;

use short::scaled;

/// Frames in a batch, measured together: fewer than the queue holds.
const BATCH: usize = 4_000;
const BATCHES: usize = 60;

/// The number of pauses between slow calls.
const PAUSES: usize = 60;

/// Frames that the thread writes.
const WRITTEN: usize = 200_000;

/// Calls in an hour, and its length.
const CALLS: u64 = 18_000;
const HOUR: Duration = Duration::from_secs(3_600);

fn main() {
    let folder = env::temp_dir().join(format!("toolbridge-bench-record-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    on_the_path(&folder);
    after_pauses(&folder);
    writing(&folder);
    fs::remove_dir_all(&folder).unwrap();
    if let Some(path) = env::var_os("TOOLBRIDGE_HOUR") {
        an_hour(&PathBuf::from(path));
    }
}

/// A transport that sends at almost no cost.
struct Wire {
    incoming: TransportEvent,
}

impl Wire {
    fn new() -> Self {
        let incoming =
            TransportEvent::packet(Peer::new("phone", "PA_phone"), Lane::Reliable, samples::request());
        Self { incoming }
    }
}

impl Transport for Wire {
    fn local(&self) -> Participant {
        Participant::new("assistant", "PA_assistant").agent(true)
    }

    fn room(&self) -> String {
        "bench".to_owned()
    }

    fn present(&self) -> Vec<Participant> {
        Vec::new()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        black_box(&packet);
        ready(Ok(()))
    }

    fn recv(&mut self) -> impl Future<Output = Option<TransportEvent>> + Send {
        ready(Some(self.incoming.clone()))
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

/// Sends half of the frames and receives the other half.
fn pass(transport: &mut impl Transport, frames: usize) -> Duration {
    let request = samples::request();
    let packets: Vec<_> = (0..frames / 2).map(|_| Packet::new(["phone".into()], request.clone())).collect();
    let began = Instant::now();
    for packet in packets {
        now(transport.send(packet)).unwrap();
        black_box(now(transport.recv()));
    }
    began.elapsed()
}

fn recorder(folder: &Path, name: &str, options: RecorderOptions) -> Recorder {
    Recorder::create(folder.join(name), options).unwrap()
}

fn wait_for(recorder: &Recorder, frames: usize) {
    while recorder.stats().recorded < frames as u64 {
        thread::sleep(Duration::from_micros(200));
    }
}

fn on_the_path(folder: &Path) {
    let recorder = recorder(folder, "path.mcap", RecorderOptions::default());
    let (mut plain, mut tapped) = (Wire::new(), recorder.tap(Wire::new()));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for batch in 1..=scaled(BATCHES) {
        without.push(pass(&mut plain, BATCH).as_nanos() as f64 / BATCH as f64);
        with.push(pass(&mut tapped, BATCH).as_nanos() as f64 / BATCH as f64);
        wait_for(&recorder, batch * BATCH);
    }
    assert_eq!(recorder.stats().unrecorded, 0);
    let mut more: Vec<_> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    recorder.finish().unwrap();
    show("on the path, a frame, one after another", "ns", &mut more);
}

fn after_pauses(folder: &Path) {
    let recorder = recorder(folder, "pauses.mcap", RecorderOptions::default());
    let (mut plain, mut tapped) = (Wire::new(), recorder.tap(Wire::new()));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..scaled(PAUSES) {
        without.push(first(&mut plain));
        with.push(first(&mut tapped));
    }
    recorder.finish().unwrap();
    show("on the path, the first frame after 150 ms of silence", "ns", &mut with);
    show("    the same without a recorder", "ns", &mut without);
}

/// The first frame after a pause: the processor's caches are cold.
fn first(transport: &mut impl Transport) -> f64 {
    let packet = Packet::new(["phone".into()], samples::request());
    thread::sleep(Duration::from_millis(150));
    let began = Instant::now();
    now(transport.send(packet)).unwrap();
    let took = began.elapsed();
    black_box(now(transport.recv())); // the thread wakes up here, where a real connection would wait
    took.as_nanos() as f64
}

fn writing(folder: &Path) {
    for (what, options) in [
        ("the writer, a frame, nothing redacted", RecorderOptions::default().redact(Redact::nothing())),
        ("the writer, a frame", RecorderOptions::default()),
    ] {
        let (mut times, written) = (Vec::new(), scaled(WRITTEN));
        for run in 0..5 {
            let name = format!("writing-{run}.mcap");
            let recorder =
                recorder(folder, &name, options.clone().queue(2 * written, usize::MAX).force(true));
            let mut tapped = recorder.tap(Wire::new());
            let began = Instant::now();
            pass(&mut tapped, written);
            wait_for(&recorder, written);
            times.push(began.elapsed().as_nanos() as f64 / written as f64);
            let live = fs::metadata(folder.join(&name)).unwrap().len();
            let began = Instant::now();
            recorder.finish().unwrap();
            if run == 0 {
                let done = fs::metadata(folder.join(&name)).unwrap().len();
                println!(
                    "    {written} frames: {:.1} MB live, {:.1} MB finished in {:.2} s",
                    live as f64 / 1e6,
                    done as f64 / 1e6,
                    began.elapsed().as_secs_f64(),
                );
            }
        }
        show(what, "ns", &mut times);
    }
}

/// Ten calls a second with four frames each: request, acknowledgement, result, acknowledgement.
fn an_hour(path: &Path) {
    let options = RecorderOptions::default().queue(usize::MAX, usize::MAX).force(true);
    let recorder = Recorder::create(path, options).unwrap();
    let phone = Peer::new("phone", "PA_phone");
    let start = Moment(1_700_000_000_000_000_000);
    let tell = |at: Moment, what: Happened| {
        recorder.record(Entry::new(at, what));
    };
    let (identity, sid) = ("assistant".into(), "PA_assistant".into());
    tell(start, Happened::Event(RoomEvent::Here { identity, sid, room: "bench".to_owned() }));
    tell(
        start,
        Happened::Event(RoomEvent::Joined {
            identity: "phone".into(),
            sid: "PA_phone".into(),
            agent: false,
            role: Some("client".to_owned()),
            protocol: 0,
        }),
    );
    for n in 0..scaled(CALLS as usize) as u64 {
        let at = start.0 + n * (HOUR.as_nanos() as u64 / CALLS);
        for (after, direction, frame) in frames_of(n) {
            let (from, to) = match direction {
                Direction::Sent => (Peer::new("assistant", "PA_assistant"), vec!["phone".into()]),
                Direction::Heard => (phone.clone(), Vec::new()),
            };
            let packet = with!(Recorded::new(direction, from, frame), to = to, lane = Lane::Lossy);
            tell(Moment(at + after * 1_000_000), Happened::Packet(packet));
        }
    }
    recorder.finish().unwrap();
}

fn frames_of(n: u64) -> [(u64, Direction, Bytes); 4] {
    let id = CallId::try_from(format!("V1StGXR8_Z5jdHi{n:06}")).expect("not empty");
    let stanza = i32::try_from(2 * n + 2).unwrap();
    let frame =
        |stanza: i32, message: Message| Frame::write(stanza, "bench", &Meta::new(), &message).unwrap();
    let acknowledged = |stanza: i32| {
        Message::Acknowledgement(with!(
            Acknowledgement::default(),
            acknowledged_stanza_id = Some(stanza),
            acknowledged_message_id = Some(id.as_str().to_owned())
        ))
    };
    let parameters =
        serde_json::json!({"name": format!("Ada {n}"), "limit": n % 7, "fields": ["mobile", "mail"]});
    let request = Message::ToolUseRequest(with!(
        ToolUseRequest::new(
            id.clone(),
            ["find_contact", "get_battery", "lamp"][(n % 3) as usize],
            parameters.into(),
            Ok(Execution::Client)
        ),
        timeout_ms = Some(5000)
    ));
    let result = Message::ToolUseResult(with!(
        ToolUseResult::new(id.clone(), true),
        result = Some(serde_json::json!({"mobile": format!("+39 06 {n:06}"), "level": n % 100}).into())
    ));
    [
        (0, Direction::Sent, frame(-stanza, request)),
        (21, Direction::Heard, frame(stanza, acknowledged(-stanza))),
        (40 + n % 60, Direction::Heard, frame(stanza + 1, result)),
        (41 + n % 60, Direction::Sent, frame(-stanza - 1, acknowledged(stanza + 1))),
    ]
}

fn show(what: &str, unit: &str, values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| values[((values.len() as f64 * part).ceil() as usize).clamp(1, values.len()) - 1];
    println!("{what}: median {:.0} {unit}, p90 {:.0}, max {:.0}", at(0.5), at(0.9), at(1.0));
}
