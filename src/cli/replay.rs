//! `toolbridge replay`: runs a recorded session again: on virtual time, as its client, or as its assistant.

mod as_assistant;
mod as_client;
mod progress_bar;

use std::{
    fmt::Display,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{Failure, connect::RoomArguments, file, hint, record_option::RecordOption, text};
use toolbridge::{
    recording::{About, Entries},
    replay::{LiveError, Replay, Speed, Timing},
};

const AS_CLIENT: &str = "With --as client";
const AS_ASSISTANT: &str = "With --as assistant";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The recording. Without --as, nothing of it is sent anywhere
    file: PathBuf,

    /// Join a room in the place of one end of the recording: a client that answers from it, or an assistant that asks
    /// live clients again
    #[arg(long = "as", value_name = "END", value_enum)]
    end: Option<End>,

    /// Print what was found as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    record: RecordOption,

    #[command(flatten)]
    room_arguments: RoomArguments,

    /// The assistant whose calls are taken; without it the only one in the room
    #[arg(long, value_name = "IDENTITY", help_heading = AS_CLIENT)]
    assistant: Option<String>,

    /// When to answer: after as long as recorded, or at once. Default: recorded
    #[arg(long, value_name = "WHEN", value_enum, help_heading = AS_CLIENT)]
    timing: Option<When>,

    /// When all recorded calls that ask for the same were given, give the last again
    #[arg(long, help_heading = AS_CLIENT)]
    loose: bool,

    /// Ask live clients. Without it, what would be asked is shown
    #[arg(long, help_heading = AS_ASSISTANT)]
    live: bool,

    /// A tool that may be asked; as often as needed
    #[arg(long, value_name = "TOOL", help_heading = AS_ASSISTANT)]
    allow: Vec<String>,

    /// Of the allowed tools, ask those too that cannot be undone
    #[arg(long, help_heading = AS_ASSISTANT)]
    destructive: bool,

    /// With the recorded pauses, a tenth of them, or none. Default: 1
    #[arg(long, value_name = "SPEED", value_enum, help_heading = AS_ASSISTANT)]
    speed: Option<Pauses>,

    /// Which client to ask; without it the one that was asked then, if it is there, else whoever offers the tool
    #[arg(long, value_name = "IDENTITY", help_heading = AS_ASSISTANT)]
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

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    arguments.fit()?;
    match arguments.end {
        None => dry(&arguments),
        Some(End::Client) => as_client::run(&arguments).await,
        Some(End::Assistant) => as_assistant::run(&arguments).await,
    }
}

impl Arguments {
    /// Refuses what has no meaning here: who gives it expects something that would not happen.
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
            Some((option, with)) => Err(Failure::Usage(format!("{option} goes with {with}"))),
            None => self.record.spares(&self.file).and_then(|()| self.record.check()),
        }
    }
}

fn dry(arguments: &Arguments) -> Result<(), Failure> {
    let mut entries = file::open(&arguments.file)?.entries();
    let report = match Replay::dry(&mut entries) {
        Ok(report) => report,
        Err(error) => {
            // What is missing may be what is damaged.
            file::end(&arguments.file, file::damage(&entries))?;
            return Err(Failure::Failed(format!("{}: {error}", arguments.file.display())));
        }
    };
    show(&report, arguments.json)?;
    file::end(&arguments.file, file::damage(&entries))?;
    if report.is_same() { Ok(()) } else { Err(Failure::ProblemsFound) }
}

/// A recording, read for a live replay.
struct Read<T> {
    what: T,
    about: About,
    /// The file ends before its end: what stood before that is replayed, and the status says so.
    damaged: bool,
}

fn read<T>(path: &Path, read: impl FnOnce(&mut Entries) -> Result<T, LiveError>) -> Result<Read<T>, Failure> {
    let recording = file::open(path)?;
    let about = recording.about().clone();
    let mut entries = recording.entries();
    let result = read(&mut entries);
    let damage = file::damage(&entries);
    match result {
        Ok(what) => {
            if let Some(damage) = &damage {
                hint(&format!("toolbridge: {}: {damage}; what stands before is replayed", path.display()));
            }
            Ok(Read { what, about, damaged: damage.is_some() })
        }
        Err(error) => {
            file::end(path, damage)?;
            Err(Failure::Failed(format!("{}: {error}", path.display())))
        }
    }
}

/// A report on standard output: as JSON, or as text in which nothing steers the terminal.
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
