//! What sessions do in a run, as digests: packets, what an application is told, and what it can ask a session for.
//!
//! A rule says what no run may do. Most changes of behavior break none: a counter that counts twice, an answer that comes
//! 10 ms later, a packet more. So the digests of many seeds are kept in a file beside the test. A change that should
//! change nothing keeps it, and any other one shows what it has changed, in a diff that a person reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Instant,
};

use sha2::{Digest as _, Sha256};
use toolbridge::{
    frame::Frame,
    session::{Output, Session},
    transport::{Form, RpcMessage},
};

/// The seeds that `cargo test` runs and compares.
pub(crate) const SEEDS: RangeInclusive<u64> = 1..=1_000;

/// How many bytes of a digest are kept.
const KEPT: usize = 4;

/// How many changed totals are printed.
const PRINTED: usize = 40;

/// What the sessions of one run have done so far.
pub(crate) struct Observed {
    is_noted: bool,
    base: Instant,
    packets: Sha256,
    outputs: Sha256,
    states: Sha256,
    totals: BTreeMap<String, u64>,
}

impl Observed {
    /// `is_noted`: whether anything is noted. It takes time, and few runs are compared.
    pub(crate) fn new(base: Instant, is_noted: bool) -> Self {
        let [packets, outputs, states] = [Sha256::new(), Sha256::new(), Sha256::new()];
        Self { is_noted, base, packets, outputs, states, totals: BTreeMap::new() }
    }

    /// Notes an output of a session. `frame` reads a packet.
    pub(crate) fn output(
        &mut self,
        process: usize,
        now: Instant,
        output: &Output,
        frame: impl FnOnce(&[u8]) -> Option<Frame>,
    ) {
        if !self.is_noted {
            return;
        }
        let at = self.since(now);
        let text = match output {
            Output::Transmit(packet) => {
                // What `Debug` shows of them leaves out payloads and texts.
                let form = match &packet.form {
                    Form::Rpc(RpcMessage::Request(it)) => format!("{it:?} {:02x?}", it.payload),
                    Form::Rpc(RpcMessage::Response(it)) => match &it.outcome {
                        Ok(payload) => format!("{} {payload:02x?}", it.id),
                        Err(error) => format!("{} {} {} {}", it.id, error.code, error.message, error.data),
                    },
                    Form::Text(it) => {
                        format!("{:?} {} {:?} {}", it.attributes, it.length, it.compression, it.inline)
                    }
                    Form::Data => String::new(),
                    other => format!("{other:?}"),
                };
                let lane = packet.lane;
                let kind = match &packet.form {
                    Form::Data => {
                        frame(&packet.payload).map_or_else(|| "?".to_owned(), |it| it.kind().to_string())
                    }
                    other => format!("{other:?}").split(['(', ' ']).take(2).collect::<Vec<_>>().join(" "),
                };
                self.count(format!("packet: {lane:?} {kind}"));
                let line = format!(
                    "{at} {process} {:?} {lane:?} {} {} {form}",
                    packet.to,
                    packet.stream.is_some(),
                    packet.overtakes
                );
                self.packets.update(line);
                return self.packets.update(&packet.payload);
            }
            Output::Execute(it) => {
                let deadline = self.since(it.deadline);
                let who = (it.key, &it.call, &it.caller, &it.tool, it.limit);
                format!("execute {who:?} {deadline} {:?} {:?}", it.arguments.as_bytes(), it.meta.as_bytes())
            }
            Output::Ask(it) => {
                let until = self.since(it.until);
                format!(
                    "ask {:?} {until} {:?}",
                    (it.key, &it.call, &it.caller, it.tool.name()),
                    it.arguments.as_bytes()
                )
            }
            Output::Settled { key, result: Ok(value) } => {
                format!("settled {key:?} {:02x?}", value.as_bytes())
            }
            Output::Settled { key, result: Err(error) } => format!("settled {key:?} {error:?} {error}"),
            Output::Select(it) => format!("select {:?} {:?} {:?}", it.key, it.tool, it.candidates),
            Output::Event(event) => format!("event {event:?}"),
            other => format!("{other:?}"),
        };
        let mut name = text.split([' ', '(', '{']).filter(|it| !it.is_empty());
        let name = match (name.next(), name.next()) {
            (Some("event"), Some(event)) => format!("event: {event}"),
            (what, _) => format!("output: {}", what.unwrap_or_default().to_lowercase()),
        };
        self.count(name);
        self.outputs.update(format!("{at} {process} {text}\n"));
    }

    /// Notes what an application was told in answer to a command.
    #[allow(dead_code, reason = "the simulation has rules for them")]
    pub(crate) fn note(&mut self, text: &str) {
        if self.is_noted {
            self.outputs.update(text);
        }
    }

    /// Notes what an application can ask a session for, and when it wants to be called.
    pub(crate) fn state(&mut self, process: usize, now: Instant, session: &Session) {
        if !self.is_noted {
            return;
        }
        let mut text = String::new();
        let next = session.poll_timeout().map(|at| self.since(at));
        let counts =
            (session.open_calls(), session.open_jobs(), session.registrations(), session.is_drained());
        let _ = write!(
            text,
            "{} {process} {next:?} {counts:?} {:?} {:?}",
            self.since(now),
            session.role(),
            session.bound()
        );
        for it in session.participants() {
            let _ = write!(text, " {}/{}", it.identity(), it.sid());
        }
        for it in session.tools() {
            let _ = write!(text, " {}:{}:{:?}", it.owner, it.tool.name(), it.reach);
        }
        self.states.update(text);
    }

    /// Notes the counters of a session, and its records of calls, at the end of the run.
    pub(crate) fn end(&mut self, process: usize, session: &Session) {
        if !self.is_noted {
            return;
        }
        let mut text = format!("{process} ");
        for (name, times) in session.stats().iter() {
            let _ = write!(text, "{name}={times} ");
            *self.totals.entry(format!("counter: {name}")).or_default() += times;
        }
        for it in session.records() {
            let times = [Some(it.requested), it.delivered, it.started, it.settled, it.late];
            let times = times.map(|at| at.map(|at| self.since(at)));
            let who = (&it.id, &it.tool, it.execution, &it.caller, &it.owner, it.turn);
            let _ = writeln!(
                text,
                "{who:?} {} {:?} {times:?} {:?}",
                it.request_bytes, it.result_bytes, it.outcome
            );
        }
        self.states.update(text);
    }

    fn count(&mut self, name: String) {
        *self.totals.entry(name).or_default() += 1;
    }

    /// Microseconds since the run began.
    fn since(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.base).as_micros()
    }

    pub(crate) fn digests(self) -> Digests {
        let of = |hash: Sha256| {
            hash.finalize().iter().take(KEPT).fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        Digests { of_kinds: [self.packets, self.outputs, self.states].map(of), totals: self.totals }
    }
}

/// What the digests of a run are of, in their order.
const KINDS: [&str; 3] = ["packets", "outputs", "states"];

/// What one run has done.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    of_kinds: [String; 3],
    totals: BTreeMap<String, u64>,
}

/// What the runs of many seeds have done, or did once.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    totals: BTreeMap<String, u64>,
    seeds: BTreeMap<u64, [String; 3]>,
}

impl Recorded {
    pub(crate) fn add(&mut self, seed: u64, run: Digests) {
        self.join(Self { totals: run.totals, seeds: [(seed, run.of_kinds)].into() });
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.seeds.extend(other.seeds);
        for (name, times) in other.totals {
            *self.totals.entry(name).or_default() += times;
        }
    }

    /// Reads what `write` has written: the totals, and the digests in a file beside it.
    fn read(file: &Path) -> Result<Self, String> {
        let text =
            |file: &Path| fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()));
        let mut it = Self::default();
        for (name, times) in text(file)?.lines().filter_map(|line| line.split_once('\t')) {
            it.totals.insert(name.to_owned(), times.parse().unwrap_or_default());
        }
        for line in text(&file.with_extension("seeds"))?.lines() {
            let mut words = line.split(' ');
            let seed = words.next().and_then(|seed| seed.parse().ok()).unwrap_or_default();
            it.seeds.insert(seed, KINDS.map(|_| words.next().unwrap_or_default().to_owned()));
        }
        Ok(it)
    }

    /// Returns how often something happened in all runs.
    #[allow(dead_code, reason = "the simulation counts by itself")]
    pub(crate) fn total(&self, name: &str) -> u64 {
        self.totals.get(name).copied().unwrap_or_default()
    }

    /// Writes the totals of this test into its file, and the digests into another beside it.
    pub(crate) fn write(&self, test: &str) -> Result<(), String> {
        let file = file_of(test);
        let mut text = "# What sessions do in these runs. scripts/simulate --record writes it.\n".to_owned();
        for (name, times) in &self.totals {
            let _ = writeln!(text, "{name}\t{times}");
        }
        let mut seeds = String::new();
        for (seed, of_kinds) in &self.seeds {
            let _ = writeln!(seeds, "{seed} {}", of_kinds.join(" "));
        }
        let write =
            |file: &Path, text| fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()));
        write(&file, text)?;
        write(&file.with_extension("seeds"), seeds)
    }

    /// Compares with what the file of this test has of these seeds.
    pub(crate) fn compare_with(&self, test: &str) -> Result<(), String> {
        self.compare(&Self::read(&file_of(test))?, test)
    }

    fn compare(&self, before: &Self, test: &str) -> Result<(), String> {
        let mut changed = [0; 3];
        let mut first = None;
        for (seed, now) in &self.seeds {
            // A seed that the file lacks differs, too: an empty file says nothing.
            let was = &before.seeds.get(seed).cloned().unwrap_or_default();
            if now != was {
                first = first.or(Some(*seed));
            }
            (0..3).for_each(|at| changed[at] += u64::from(now[at] != was[at]));
        }
        let Some(first) = first else { return Ok(()) };
        let mut text = format!("seed {first}: Recorded at 0 ms: sessions behave otherwise than recorded\n");
        for (kind, count) in KINDS.iter().zip(changed) {
            let _ = writeln!(text, "  {kind} of {count} seeds");
        }
        if self.seeds.len() == before.seeds.len() {
            let names = self.totals.keys().chain(before.totals.keys()).collect::<BTreeSet<_>>();
            let of = |all: &BTreeMap<String, u64>, name: &String| all.get(name).copied().unwrap_or_default();
            let totals =
                names.into_iter().map(|name| (name, of(&before.totals, name), of(&self.totals, name)));
            for (name, was, now) in totals.filter(|(_, was, now)| was != now).take(PRINTED) {
                let _ = writeln!(text, "  {name}: {was} before, {now} now");
            }
        }
        let _ = write!(
            text,
            "see it in both versions with: cargo test --test {test} -- --seed {first} --trace\n\
             if it is meant, record it with: scripts/simulate --record"
        );
        Err(text)
    }
}

/// The file of the totals of a test. `tests/core` builds the tests, too, so the manifest's folder does not name it.
fn file_of(test: &str) -> PathBuf {
    let this = Path::new(env!("CARGO_MANIFEST_DIR")).join(file!());
    this.with_file_name("..").join(test).join("recorded.txt")
}
