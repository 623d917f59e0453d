//! `toolbridge dev`: a LiveKit-compatible server for development, on this machine only.

use std::io::{self, Write as _};

use clap::Args;

use super::{
    Failure,
    interrupt::{interrupted, unless_interrupted},
    text,
};
use crate::dev_room::{DevRoom, Key};

/// The key and the secret of LiveKit's `--dev` mode, which everybody knows.
const DEV_KEY: &str = "devkey:secret";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The port of the signalling; packets use the next over TCP and the one after it over UDP. 0: any
    #[arg(long, default_value_t = 7880, value_parser = clap::value_parser!(u16).range(0..=65533), value_name = "PORT")]
    port: u16,

    /// The API key and its secret
    #[arg(long, default_value = DEV_KEY, value_parser = key, value_name = "KEY:SECRET")]
    key: Key,
}

fn key(text: &str) -> Result<Key, &'static str> {
    match text.split_once(':') {
        Some((name, secret)) if !name.is_empty() && !secret.is_empty() => Ok(Key::new(name, secret)),
        _ => Err("a key has the form KEY:SECRET"),
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let starting = async {
        DevRoom::start(arguments.port, arguments.key).await.map_err(|error| {
            let taken =
                if error.is_taken() { ": another server has this port; choose one with --port" } else { "" };
            Failure::failed(format!("{error}{taken}"))
        })
    };
    // From here on Ctrl-C is an order, and no end by itself.
    let server = unless_interrupted(starting).await?;
    let shown = show(&server);
    if shown.is_ok() {
        interrupted().await;
    }
    // Also when nobody reads what we show: who is in a room should hear that it ends.
    server.close().await;
    Ok(shown?)
}

/// What a shell needs to know, as lines that it takes.
fn show(server: &DevRoom) -> io::Result<()> {
    let (name, secret) = (text::plain(server.key().name()), text::plain(server.key().secret()));
    let mut stdout = io::stdout();
    writeln!(
        stdout,
        "# For development on this machine only: nobody else can join, it carries data and no media, and it keeps nothing."
    )?;
    writeln!(stdout, "export LIVEKIT_URL={}", server.url())?;
    writeln!(stdout, "export LIVEKIT_API_KEY={name}")?;
    writeln!(stdout, "export LIVEKIT_API_SECRET={secret}")?;
    writeln!(
        stdout,
        "# With these in its environment another shell makes tokens: toolbridge token --room home --identity phone"
    )?;
    writeln!(stdout, "# Ctrl-C ends it.")?;
    stdout.flush()
}
