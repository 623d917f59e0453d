//! `toolbridge record`: joins a room as an observer and records the packets it receives.

use std::{
    future::pending,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::cli::{
    recording::recording_file::RecordingFile,
    room::{connect::RoomArguments, connection_state, record_option, unreadable::Advice, watch},
    terminal::{
        clock,
        failure::{Failure, hint},
        interrupt::interrupted,
        output, text,
    },
};
use toolbridge::{
    CloseReason,
    frame::Limits,
    transport::{StreamAssembler, Transport, TransportEvent},
};

/// How often the status line is updated.
const REFRESH: Duration = Duration::from_millis(500);

/// The notice for a hidden observer.
const HIDDEN: &str = "hidden: other participants cannot see this observer, so they send it no copies; the recording \
contains only packets sent to the whole room, and no calls to individual clients";

#[derive(Debug, Args)]
#[command(after_help = "\
Other participants see the observer and send it copies of their messages: requests, results, \
progress, cancellations and tool registrations, but not handshakes or acknowledgements. \
LiveKit may announce this observer to them up to 3 s late; earlier messages can be missing. \
Values under keys such as `password` or `token` are redacted before they are written.

The first Ctrl-C finishes the file. After a second one, or if the process is killed, the file may \
be unfinished: it can still be read, and `toolbridge repair` finishes it.")]
pub(in crate::cli) struct Arguments {
    /// Output file (see `toolbridge info`, `calls`, `check`, `report`)
    #[arg(value_name = "OUT.mcap")]
    output: PathBuf,

    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Join as a hidden participant; the recording then contains only packets sent to the whole room
    #[arg(long)]
    hidden: bool,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,

    /// Record names, ids, sizes, times and outcomes only: no arguments, results or other texts
    #[arg(long = "record-metadata-only")]
    metadata_only: bool,

    /// Stop after this time [default: record until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = clock::length)]
    length: Option<Duration>,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let options = (arguments.force, arguments.metadata_only);
    record_option::check(&arguments.output, options, arguments.room_arguments.is_encrypted())?;
    let target = arguments.room_arguments.observer_target("record", arguments.hidden)?;
    // Without its file there is no reason to join.
    let options = record_option::recorder_options(options);
    let mut recording_file = RecordingFile::begin(&arguments.output, options, target.is_hidden())?;
    let mut room = recording_file.tap(target.join().await?);
    let (name, identity, path) = (room.room(), room.local(), arguments.output.display());
    let until = arguments.length.map_or_else(
        || "until Ctrl-C".to_owned(),
        |length| format!("for {}, or until Ctrl-C", humantime::format_duration(length)),
    );
    hint(&format!("recording {name} as {} into {path}, {until}", identity.identity()));
    if target.is_hidden() {
        hint(HIDDEN);
    }
    let mut status = Status::new();
    let ended = listen(&mut room, &mut recording_file, &mut status, arguments.length).await;
    status.clear();
    room.close().await;
    let says = recording_file.finish().await?;
    writeln!(io::stdout(), "{}", text::plain(&says))?;
    ended
}

/// Records until a signal arrives, the time is up, the participant leaves the room, or the recorder stops.
async fn listen(
    room: &mut impl Transport,
    recording_file: &mut RecordingFile,
    status: &mut Status,
    length: Option<Duration>,
) -> Result<(), Failure> {
    let until = length.map(|length| Instant::now() + length);
    let over = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => pending().await,
        }
    };
    tokio::pin!(over);
    let mut refresh = interval(REFRESH);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut streams, mut advice) = (StreamAssembler::new(Limits::BYTES), Advice::default());
    loop {
        let event = tokio::select! {
            biased;
            () = interrupted() => return Ok(()),
            () = &mut over => return Ok(()),
            () = recording_file.stopped() => return Ok(()), // `finish` reports why
            _ = refresh.tick(), if status.is_shown => {
                status.show(&recording_file.status());
                continue;
            }
            event = room.recv() => event,
        };
        match event {
            None => return Err(Failure::failed("the connection ended")),
            Some(TransportEvent::Closed(CloseReason::Closed)) => return Ok(()),
            Some(TransportEvent::Closed(reason)) => return Err(Failure::failed(reason)),
            Some(TransportEvent::ConnectionState(state)) => {
                status.clear();
                hint(connection_state::describe(state));
            }
            Some(event) => {
                if let TransportEvent::Unreadable { from, why } = &event {
                    status.clear();
                    advice.print(from.as_ref(), *why);
                }
                if let Some(event) = watch::assemble(&mut streams, event) {
                    recording_file.count(&event);
                }
            }
        }
    }
}

/// The status line on the terminal. It is not printed if stderr is not a terminal.
struct Status {
    is_shown: bool,
}

impl Status {
    fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal() }
    }

    fn show(&mut self, line: &str) {
        let _ = output::stderr().write_all(format!("\r{line}\u{1b}[K").as_bytes()); // a write error is ignored
    }

    fn clear(&mut self) {
        if self.is_shown {
            self.show("");
        }
    }
}
