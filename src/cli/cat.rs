//! `toolbridge cat`: the entries of a recording, as text or JSON.

use std::{
    collections::{BTreeSet, HashSet},
    io::{self, BufWriter, Write},
    path::PathBuf,
    time::{Duration, UNIX_EPOCH},
};

use clap::{Args, ValueEnum};

use super::{Failure, file, text};
use toolbridge::{
    recording::{
        About, CallsBuilder, Entry, Happened, Moment, RecordedCall, Recording, RoomEvent, entry_json,
        entry_text,
    },
    tool::ErrorCode,
};

/// The codes that calls fail with unless their tool has codes of its own.
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

/// Of how many calls the outcomes are named to somebody who asked for one that there is not.
const MAX_OUTCOMES: usize = 1_000;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording
    file: PathBuf,

    /// How entries are shown
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    /// Go on as the file grows, until its recorder finishes it; not with --outcome or --format json
    #[arg(long)]
    follow: bool,

    /// Text shows the time of day, in UTC, instead of seconds since the beginning
    #[arg(long)]
    clock: bool,

    /// Nothing before this: a time since the beginning, such as 90s, or of day, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<Time>,

    /// Nothing after this
    #[arg(long, value_name = "TIME", value_parser = time)]
    to: Option<Time>,

    /// Only what this participant sent, was sent, or did
    #[arg(long, value_name = "IDENTITY")]
    peer: Option<String>,

    /// Only frames of calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,

    /// Only frames of this call
    #[arg(long, value_name = "ID")]
    call: Option<String>,

    /// Only frames of calls that ended so: ok, open, stopped, or the code of a failure
    #[arg(long, value_name = "WORD")]
    outcome: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line an entry, without arguments and results
    Text,
    /// One JSON array
    Json,
    /// A JSON object a line
    Ndjson,
}

/// A moment, as it is asked for.
#[derive(Clone, Copy, Debug)]
enum Time {
    Since(Duration),
    At(Moment),
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.follow && (arguments.outcome.is_some() || arguments.format == Format::Json) {
        return Err(Failure::usage(
            "--follow never knows the end: it goes with neither --outcome nor --format json",
        ));
    }
    let chosen = arguments.outcome.as_deref().map(|outcome| with_outcome(arguments, outcome)).transpose()?;
    let recording = if arguments.follow {
        Recording::follow(&arguments.file).map_err(|error| file::refused(&arguments.file, &error))?
    } else {
        file::open(&arguments.file)?
    };
    let about = recording.about().clone();
    let mut filter = Filter { arguments, chosen, fold: CallsBuilder::default() };
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

/// The entries of the calls that ended so: that is known at the end of the file alone.
fn with_outcome(arguments: &Arguments, outcome: &str) -> Result<HashSet<usize>, Failure> {
    let mut fold = CallsBuilder::default();
    file::each(&arguments.file, |_, _, entry| {
        fold.push(entry);
        Ok(())
    })?;
    let calls = fold.finish().calls;
    let ended_so = |call: &&RecordedCall| call.outcome.as_str() == outcome;
    let known =
        ["ok", "open", "stopped"].contains(&outcome) || CODES.iter().any(|code| code.as_str() == outcome);
    if !known && !calls.iter().any(|call| ended_so(&call)) {
        let words: BTreeSet<_> = calls.iter().map(|call| call.outcome.as_str()).take(MAX_OUTCOMES).collect();
        let words: Vec<_> = words.into_iter().collect();
        return Err(Failure::Usage(format!(
            "--outcome {outcome:?}: no call of the recording ended so; they ended as {}",
            if words.is_empty() { "nothing: there are none".to_owned() } else { words.join(", ") }
        )));
    }
    Ok(calls.iter().filter(ended_so).flat_map(|call| call.entries.iter().copied()).collect())
}

/// Which entries are shown.
struct Filter<'a> {
    arguments: &'a Arguments,
    chosen: Option<HashSet<usize>>,
    fold: CallsBuilder,
}

impl Filter<'_> {
    fn takes(&mut self, about: &About, index: usize, entry: &Entry) -> bool {
        let asked = self.arguments;
        let after = |time: Option<Time>| time.map(|time| time.of(about));
        // Whose call a frame belongs to depends on the frames before it, shown or not.
        let of_call = asked.tool.is_none() && asked.call.is_none() || self.is_of_call(entry);
        of_call
            && after(asked.from).is_none_or(|from| entry.at >= from)
            && after(asked.to).is_none_or(|to| entry.at <= to)
            && asked.peer.as_deref().is_none_or(|peer| is_about(entry, peer))
            && self.chosen.as_ref().is_none_or(|chosen| chosen.contains(&index))
    }

    fn is_of_call(&mut self, entry: &Entry) -> bool {
        let Some(call) = self.fold.push(entry) else { return false };
        self.arguments.tool.as_deref().is_none_or(|tool| call.tool == tool)
            && self.arguments.call.as_deref().is_none_or(|id| call.id.as_str() == id)
    }
}

fn is_about(entry: &Entry, peer: &str) -> bool {
    match &entry.what {
        Happened::Packet(packet) => packet.from.identity() == peer || packet.to.iter().any(|who| who == peer),
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
    let at = humantime::parse_rfc3339_weak(text).map_err(|_| {
        "it is neither a span, such as 90s, nor a time, such as 2026-01-31T12:00:00Z".to_owned()
    })?;
    let since = at.duration_since(UNIX_EPOCH).map_err(|_| "it is before 1970".to_owned())?;
    Ok(Time::At(Moment(nanos(since))))
}
