//! `toolbridge doctor`: prints the checks of a diagnosis.

use std::time::Duration;

use crate::cli::{
    room::connect::{Server, agrees},
    terminal::{clock, failure::Failure, interrupt::unless_interrupted},
};
use clap::Args;
use tokio::time::Instant;
use toolbridge::{cli_support, livekit::Diagnosis};

mod printer;

use printer::Printer;

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
With a token, doctor joins under the token's identity, which disconnects a participant that uses \
the same identity. With an API key, it joins as new participants, in a new room unless --room is \
given. Exit status: 0 the server works, 1 it does not, 2 usage error.";

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD)]
pub(in crate::cli) struct Arguments {
    /// Room to join [default: the token's room, or a new one]
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    #[command(flatten)]
    server: Server,

    /// Time limit of each attempt, from 1ms to 10m
    #[arg(long, default_value = "10s", value_parser = clock::limit, value_name = "TIME")]
    limit: Duration,

    /// Print one JSON object per line: each step, then the verdict
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { room, server, limit, json } = arguments;
    server.is_enough()?;
    let url = server.url()?;
    let options = || Ok::<_, Failure>(server.connect_options()?.join_timeout(limit));
    let diagnosis = match server.token() {
        Some(token) => {
            agrees(token, room.as_deref(), None)?;
            let diagnosis = options()?.diagnose(url, token).await;
            // A second participant needs the key that signed the token.
            match server.key.access_key() {
                Ok(key) => diagnosis.map(|it| it.key(&key)),
                Err(_) => diagnosis,
            }
        }
        None => {
            let key = server.key_for(url)?;
            let room = room.unwrap_or_else(|| format!("toolbridge-doctor-{}", nanoid::nanoid!(8)));
            options()?.diagnose_with_key(url, &key, &room).await
        }
    };
    let diagnosis = diagnosis.map_err(Failure::usage)?;
    unless_interrupted(print(diagnosis, Printer { json })).await
}

async fn print(mut diagnosis: Diagnosis, printer: Printer) -> Result<(), Failure> {
    printer.title(cli_support::server_url(&diagnosis))?;
    let mut began = Instant::now();
    while let Some(check) = diagnosis.next().await {
        printer.check(check, began.elapsed())?;
        began = Instant::now();
    }
    printer.verdict(&diagnosis.verdict().await, diagnosis.works())?;
    if diagnosis.works() { Ok(()) } else { Err(Failure::Reported(Failure::FAILED)) }
}
