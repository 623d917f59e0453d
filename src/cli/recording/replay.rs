//! `toolbridge replay`: replays a recorded session offline on virtual time, or in a room as its client or its assistant.

mod as_assistant;
mod as_client;
mod progress_bar;

use std::{
    fmt::Display,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use serde::Serialize;

use crate::cli::{
    room::{connect::RoomArguments, record_option::RecordOption},
    terminal::{
        failure::{Failure, hint},
        file, text,
    },
};
use toolbridge::{
    recording::{About, Entries},
    replay::{LiveError, Replay, Speed, Timing},
};

const AS_CLIENT: &str = "With --as client";
const AS_ASSISTANT: &str = "With --as assistant";

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to replay. Without --as, the replay is offline: no room is joined
    file: PathBuf,

    /// Join a room as one end of the recording: a client that answers from the recording, or an assistant that repeats the
    /// recorded calls
    #[arg(long = "as", value_name = "END", value_enum)]
    end: Option<End>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    record: RecordOption,

    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Assistant whose calls are accepted [default: the only assistant in the room]
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new(), help_heading = AS_CLIENT)]
    assistant: Option<String>,

    /// When to answer: after the recorded time, or at once [default: recorded]
    #[arg(long, value_name = "WHEN", value_enum, help_heading = AS_CLIENT)]
    timing: Option<When>,

    /// Repeat the last recorded answer when matches run out
    #[arg(long, help_heading = AS_CLIENT)]
    loose: bool,

    /// Call live clients. Without this option the calls are only listed
    #[arg(long, help_heading = AS_ASSISTANT)]
    live: bool,

    /// Tool that may be called (repeatable)
    #[arg(long, value_name = "TOOL", help_heading = AS_ASSISTANT)]
    allow: Vec<String>,

    /// Also call allowed tools that are marked destructive
    #[arg(long, help_heading = AS_ASSISTANT)]
    destructive: bool,

    /// Replay speed: 1 keeps the recorded pauses, 10 divides them by ten, max removes them [default: 1]
    #[arg(long, value_name = "SPEED", value_enum, help_heading = AS_ASSISTANT)]
    speed: Option<Pauses>,

    /// Client to call [default: the recorded client if it is present, otherwise any client that offers the tool]
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new(), help_heading = AS_ASSISTANT)]
    to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum End {
    Client,
    Assistant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    Recorded,
    Fast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pauses {
    #[value(name = "1")]
    Recorded,
    #[value(name = "10")]
    Tenfold,
    Max,
}

impl From<When> for Timing {
    fn from(when: When) -> Self {
        match when {
            When::Recorded => Self::Recorded,
            When::Fast => Self::Fast,
        }
    }
}

impl From<Pauses> for Speed {
    fn from(pauses: Pauses) -> Self {
        match pauses {
            Pauses::Recorded => Self::Recorded,
            Pauses::Tenfold => Self::Tenfold,
            Pauses::Max => Self::Max,
        }
    }
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    arguments.fit()?;
    match arguments.end {
        None => dry(&arguments),
        Some(End::Client) => as_client::run(&arguments).await,
        Some(End::Assistant) => as_assistant::run(&arguments).await,
    }
}

impl Arguments {
    /// Rejects options that have no effect in the chosen mode.
    fn fit(&self) -> Result<(), Failure> {
        let of_client = [
            ("--assistant", self.assistant.is_some()),
            ("--timing", self.timing.is_some()),
            ("--loose", self.loose),
        ];
        let of_assistant = [
            ("--live", self.live),
            ("--allow", !self.allow.is_empty()),
            ("--destructive", self.destructive),
            ("--speed", self.speed.is_some()),
            ("--to", self.to.is_some()),
        ];
        let of_both = [
            ("--record", self.record.path().is_some()),
            ("--room or --identity", self.room_arguments.is_given()),
        ];
        let given = |options: &[(&'static str, bool)]| options.iter().find(|it| it.1).map(|it| it.0);
        let wrong = match self.end {
            Some(End::Client) => given(&of_assistant).map(|it| (it, "--as assistant")),
            Some(End::Assistant) => given(&of_client).map(|it| (it, "--as client")),
            None => given(&of_client)
                .map(|it| (it, "--as client"))
                .or_else(|| given(&of_assistant).map(|it| (it, "--as assistant")))
                .or_else(|| given(&of_both).map(|it| (it, "--as client or --as assistant"))),
        };
        match wrong {
            Some((option, with)) => Err(Failure::Usage(format!("{option} requires {with}"))),
            None => {
                self.record.check_differs_from(&self.file)?;
                self.record.check(self.room_arguments.is_encrypted())
            }
        }
    }
}

fn dry(arguments: &Arguments) -> Result<(), Failure> {
    let recording = file::open(&arguments.file)?;
    file::say_content(recording.about());
    let mut entries = recording.entries();
    let report = match Replay::dry(&mut entries) {
        Ok(report) => report,
        Err(error) => {
            // The missing entries may be in the damaged part.
            file::end(&arguments.file, file::damage(&entries))?;
            return Err(Failure::Failed(format!("{}: {error}", arguments.file.display())));
        }
    };
    show(&report, arguments.json)?;
    file::end(&arguments.file, file::damage(&entries))?;
    if report.is_same() { Ok(()) } else { Err(Failure::ProblemsFound) }
}

/// A recording, read for a replay in a room.
struct Read<T> {
    what: T,
    about: About,
    /// Whether the file is damaged. The entries before the damage are replayed, and the exit status reports it.
    damaged: bool,
}

fn read<T>(path: &Path, read: impl FnOnce(&mut Entries) -> Result<T, LiveError>) -> Result<Read<T>, Failure> {
    let recording = file::open(path)?;
    let about = recording.about().clone();
    if about.metadata_only {
        return Err(Failure::Failed(format!("{}: {}", path.display(), LiveError::MetadataOnly)));
    }
    let mut entries = recording.entries();
    let result = read(&mut entries);
    let damage = file::damage(&entries);
    match result {
        Ok(what) => {
            if let Some(damage) = &damage {
                hint(&format!("toolbridge: {}: {damage}; replaying the entries before it", path.display()));
            }
            Ok(Read { what, about, damaged: damage.is_some() })
        }
        Err(error) => {
            file::end(path, damage)?;
            Err(Failure::Failed(format!("{}: {error}", path.display())))
        }
    }
}

/// Prints a report as JSON, or as text with control characters escaped.
fn show(report: &(impl Serialize + Display), json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", text::json(&serde_json::to_value(report).map_err(Failure::failed)?))?;
    } else {
        for line in report.to_string().lines() {
            writeln!(out, "{}", text::plain(line))?;
        }
    }
    Ok(out.flush()?)
}
