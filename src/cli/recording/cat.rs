//! `toolbridge cat`: prints the entries of a recording as text or JSON.

use std::{
    collections::{BTreeSet, HashSet},
    io::{self, BufWriter, Write},
    path::PathBuf,
    thread,
    time::{Duration, UNIX_EPOCH},
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};

use crate::cli::terminal::{failure::Failure, file, text};
use toolbridge::{
    ErrorCode,
    recording::{
        About, CallsBuilder, Entry, Happened, Moment, RecordedCall, Recording, RoomEvent, entry_json,
        entry_text,
    },
};

/// The error codes of the protocol.
const CODES: [ErrorCode; 9] = [
    ErrorCode::UNKNOWN_TOOL,
    ErrorCode::TIMEOUT,
    ErrorCode::EXECUTION_ERROR,
    ErrorCode::INVALID_PARAMETERS,
    ErrorCode::CANCELLED,
    ErrorCode::PERMISSION_DENIED,
    ErrorCode::RESULT_TOO_LARGE,
    ErrorCode::BUSY,
    ErrorCode::LOST,
];

/// The maximum number of names that an error message about `--peer` or `--tool` lists.
const MAX_NAMED: usize = 20;

/// The maximum number of calls whose outcomes an error message about `--outcome` lists.
const MAX_OUTCOMES: usize = 1_000;

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to read
    file: PathBuf,

    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// Follow the file while it is being recorded, until the recorder finishes it; not with --outcome or --format json
    #[arg(long)]
    follow: bool,

    /// Print the time of day in UTC instead of seconds since the start (text format)
    #[arg(long)]
    clock: bool,

    /// Skip earlier entries. TIME is relative to the start, such as 90s, or absolute, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<Time>,

    /// Skip later entries
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<Time>,

    /// Only entries of this participant: sent, received, joined or left
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    peer: Option<String>,

    /// Only frames of calls to this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// Only frames of this call
    #[arg(long, value_name = "ID")]
    call: Option<String>,

    /// Only frames of calls with this outcome: ok, open, stopped, or an error code
    #[arg(long, value_name = "OUTCOME")]
    outcome: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line per entry, without arguments and results
    Text,
    /// One JSON array
    Json,
    /// One JSON object per line
    Ndjson,
}

/// A time option.
#[derive(Clone, Copy, Debug)]
enum Time {
    Since(Duration),
    At(Moment),
}

/// Waits before the end of a growing file is read again.
fn wait() -> bool {
    thread::sleep(Duration::from_millis(100));
    true
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.follow && (arguments.outcome.is_some() || arguments.format == Format::Json) {
        return Err(Failure::usage(
            "--follow cannot be combined with --outcome or --format json, which need the complete recording",
        ));
    }
    let chosen = chosen(arguments)?;
    let recording = if arguments.follow {
        Recording::follow(&arguments.file, wait).map_err(|error| file::refused(&arguments.file, &error))?
    } else {
        file::open(&arguments.file)?
    };
    let about = recording.about().clone();
    file::say_content(&about);
    let mut filter = Filter { arguments, chosen, builder: CallsBuilder::default() };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut shown = 0_u64;
    let damage = file::walk(recording.entries(), |index, entry| {
        if filter.takes(&about, index, entry) {
            show(&mut out, arguments, &about, index, entry, shown)?;
            shown += 1;
            if arguments.follow {
                out.flush()?;
            }
        }
        Ok(())
    })?;
    if arguments.format == Format::Json {
        writeln!(out, "{}", if shown == 0 { "[]" } else { "\n]" })?;
    }
    out.flush()?;
    file::end(&arguments.file, damage)
}

fn show(
    out: &mut impl Write,
    arguments: &Arguments,
    about: &About,
    index: usize,
    entry: &Entry,
    shown: u64,
) -> io::Result<()> {
    match arguments.format {
        Format::Text => {
            let begun = (!arguments.clock).then_some(about.begun);
            writeln!(out, "{}", entry_text(entry, begun))
        }
        Format::Json => {
            out.write_all(if shown == 0 { b"[\n" } else { b",\n" })?;
            text::write_json(out, &entry_json(index, entry))
        }
        Format::Ndjson => {
            text::write_json(out, &entry_json(index, entry))?;
            out.write_all(b"\n")
        }
    }
}

/// Checks that the file has what the options name, and returns the entries of the calls with the outcome, if one is
/// given. Both are known only after reading the whole file, so nothing is checked in a file that is followed.
fn chosen(arguments: &Arguments) -> Result<Option<HashSet<usize>>, Failure> {
    let Arguments { peer, tool, call, outcome, .. } = arguments;
    let is_filtered = [peer, tool, call, outcome].into_iter().any(Option::is_some);
    if arguments.follow || !is_filtered {
        return Ok(None);
    }
    let (mut peers, mut tools) = (Names::of(peer), Names::of(tool));
    let (mut builder, mut has_call) = (CallsBuilder::default(), false);
    file::each(&arguments.file, |_, _, entry| {
        if let Some(found) = builder.push(entry) {
            has_call |= call.as_deref() == Some(found.id.as_str());
            tools.add(&found.tool);
        }
        entry.tool_names().iter().for_each(|found| tools.add(found));
        match &entry.what {
            Happened::Packet(packet) => {
                packet.sender().into_iter().chain(&packet.to).for_each(|found| peers.add(found.as_str()));
            }
            Happened::Event(
                RoomEvent::Here { identity, .. }
                | RoomEvent::Joined { identity, .. }
                | RoomEvent::Left { identity, .. },
            ) => peers.add(identity.as_str()),
            _ => {}
        }
        Ok(())
    })?;
    peers.check("--peer", "participant with this identity")?;
    tools.check("--tool", "tool with this name")?;
    if let Some(call) = call.as_ref().filter(|_| !has_call) {
        return Err(Failure::Usage(format!(
            "--call {call:?}: the recording has no call with this id; `toolbridge calls` lists its calls"
        )));
    }
    outcome.as_deref().map(|outcome| with_outcome(builder, outcome)).transpose()
}

/// The names in a recording of which an option gives one.
struct Names<'a> {
    wanted: Option<&'a str>,
    is_found: bool,
    /// Those that an error message lists.
    listed: BTreeSet<String>,
}

impl<'a> Names<'a> {
    fn of(wanted: &'a Option<String>) -> Self {
        Self { wanted: wanted.as_deref(), is_found: false, listed: BTreeSet::new() }
    }

    fn add(&mut self, found: &str) {
        self.is_found |= self.wanted == Some(found);
        if self.listed.len() < MAX_NAMED && !found.is_empty() && !self.listed.contains(found) {
            self.listed.insert(found.to_owned());
        }
    }

    fn check(&self, option: &str, what: &str) -> Result<(), Failure> {
        let Some(wanted) = self.wanted.filter(|_| !self.is_found) else { return Ok(()) };
        let names: Vec<_> = self.listed.iter().map(String::as_str).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Failure::Usage(format!("{option} {wanted:?}: the recording has no {what}; it has {names}")))
    }
}

/// Returns the entries of the calls with an outcome.
fn with_outcome(builder: CallsBuilder, outcome: &str) -> Result<HashSet<usize>, Failure> {
    let calls = builder.finish().calls;
    let ended_so = |call: &&RecordedCall| call.outcome.as_str() == outcome;
    let known =
        ["ok", "open", "stopped"].contains(&outcome) || CODES.iter().any(|code| code.as_str() == outcome);
    if !known && !calls.iter().any(|call| ended_so(&call)) {
        let words: BTreeSet<_> = calls.iter().map(|call| call.outcome.as_str()).take(MAX_OUTCOMES).collect();
        let words: Vec<_> = words.into_iter().collect();
        return Err(Failure::Usage(format!(
            "--outcome {outcome:?}: no call of the recording has this outcome; the outcomes are {}",
            if words.is_empty() { "none: the recording has no calls".to_owned() } else { words.join(", ") }
        )));
    }
    Ok(calls.iter().filter(ended_so).flat_map(|call| call.entries.iter().copied()).collect())
}

/// Selects the entries to print.
struct Filter<'a> {
    arguments: &'a Arguments,
    chosen: Option<HashSet<usize>>,
    builder: CallsBuilder,
}

impl Filter<'_> {
    fn takes(&mut self, about: &About, index: usize, entry: &Entry) -> bool {
        let asked = self.arguments;
        let after = |time: Option<Time>| time.map(|time| time.of(about));
        // The call of a frame depends on all earlier frames, printed or not.
        let of_call = asked.tool.is_none() && asked.call.is_none() || self.is_of_call(entry);
        of_call
            && after(asked.from).is_none_or(|from| entry.at >= from)
            && after(asked.to).is_none_or(|to| entry.at <= to)
            && asked.peer.as_deref().is_none_or(|peer| is_about(entry, peer))
            && self.chosen.as_ref().is_none_or(|chosen| chosen.contains(&index))
    }

    fn is_of_call(&mut self, entry: &Entry) -> bool {
        let Some(call) = self.builder.push(entry) else { return false };
        self.arguments.tool.as_deref().is_none_or(|tool| call.tool == tool)
            && self.arguments.call.as_deref().is_none_or(|id| call.id.as_str() == id)
    }
}

fn is_about(entry: &Entry, peer: &str) -> bool {
    match &entry.what {
        Happened::Packet(packet) => {
            packet.sender().is_some_and(|sender| sender == peer) || packet.to.iter().any(|who| who == peer)
        }
        Happened::Event(
            RoomEvent::Here { identity, .. }
            | RoomEvent::Joined { identity, .. }
            | RoomEvent::Left { identity, .. },
        ) => identity == peer,
        _ => false,
    }
}

impl Time {
    fn of(self, about: &About) -> Moment {
        match self {
            Self::Since(span) => Moment(about.begun.0.saturating_add(nanos(span))),
            Self::At(moment) => moment,
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn time(text: &str) -> Result<Time, String> {
    if let Ok(span) = humantime::parse_duration(text) {
        return Ok(Time::Since(span));
    }
    let at = humantime::parse_rfc3339_weak(text)
        .map_err(|_| "must be a duration, such as 90s, or a time, such as 2026-01-31T12:00:00Z".to_owned())?;
    let since = at.duration_since(UNIX_EPOCH).map_err(|_| "must not be before 1970".to_owned())?;
    Ok(Time::At(Moment(nanos(since))))
}
