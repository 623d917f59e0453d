//! `toolbridge dev`: a LiveKit-compatible server for development, on this machine only.

use std::io::{self, Write as _};

use clap::Args;

use super::{
    Failure,
    interrupt::{interrupted, unless_interrupted},
    text,
};

pub(super) mod server;

use server::{DevServer, Key};

/// The key and the secret of LiveKit's `--dev` mode, which everybody knows.
const DEV_KEY: [&str; 2] = ["devkey", "secret"];

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The port of the signalling; packets use the next over TCP and the one after it over UDP. 0: any
    #[arg(long, default_value_t = 7880, value_parser = clap::value_parser!(u16).range(0..=65533), value_name = "PORT")]
    port: u16,

    /// The API key and its secret [default: those of LIVEKIT_API_KEY and LIVEKIT_API_SECRET, else devkey:secret]
    #[arg(long, value_parser = key, value_name = "KEY:SECRET")]
    key: Option<Key>,

    /// A further name or address that requests may be addressed to, besides those of this machine (repeatable)
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
}

/// Where the key comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The command line, or LiveKit's own default.
    Shown,
    /// The environment: its secret is not printed.
    Environment,
}

/// The key of the command line, else of the environment, else the default.
fn chosen(given: Option<Key>, variable: impl Fn(&str) -> Option<String>) -> Result<(Key, Origin), Failure> {
    if let Some(key) = given {
        return Ok((key, Origin::Shown));
    }
    let read = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    match (read("LIVEKIT_API_KEY"), read("LIVEKIT_API_SECRET")) {
        (Some(name), Some(secret)) => Ok((Key::new(name, secret), Origin::Environment)),
        (None, None) => Ok((Key::new(DEV_KEY[0], DEV_KEY[1]), Origin::Shown)),
        (Some(_), None) => {
            Err(Failure::usage("LIVEKIT_API_KEY is set without LIVEKIT_API_SECRET: set both or neither"))
        }
        (None, Some(_)) => {
            Err(Failure::usage("LIVEKIT_API_SECRET is set without LIVEKIT_API_KEY: set both or neither"))
        }
    }
}

fn key(text: &str) -> Result<Key, &'static str> {
    match text.split_once(':') {
        Some((name, secret)) if !name.is_empty() && !secret.is_empty() => Ok(Key::new(name, secret)),
        _ => Err("a key has the form KEY:SECRET"),
    }
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let (key, origin) = chosen(arguments.key, |name| std::env::var(name).ok())?;
    let starting = async {
        DevServer::start(arguments.port, key, arguments.allow_host).await.map_err(|error| {
            let taken =
                if error.is_taken() { ": another server has this port; choose one with --port" } else { "" };
            Failure::failed(format!("{error}{taken}"))
        })
    };
    // From here on Ctrl-C is an order, and no end by itself.
    let server = unless_interrupted(starting).await?;
    let shown = show(&server, origin);
    if shown.is_ok() {
        interrupted().await;
    }
    // Also when nobody reads what we show: who is in a room should hear that it ends.
    server.close().await;
    Ok(shown?)
}

/// What a shell needs to know, as lines that it takes.
fn show(server: &DevServer, origin: Origin) -> io::Result<()> {
    let (name, secret) = (text::plain(server.key().name()), text::plain(server.key().secret()));
    let mut stdout = io::stdout();
    writeln!(
        stdout,
        "# For development on this machine only: nobody else can join, it carries data and no media, and it keeps nothing."
    )?;
    writeln!(stdout, "export LIVEKIT_URL={}", server.url())?;
    if origin == Origin::Environment {
        writeln!(stdout, "# Its key is the one in LIVEKIT_API_KEY and LIVEKIT_API_SECRET of this shell.")?;
    } else {
        writeln!(stdout, "export LIVEKIT_API_KEY={name}")?;
        writeln!(stdout, "export LIVEKIT_API_SECRET={secret}")?;
    }
    writeln!(
        stdout,
        "# With these in its environment another shell makes tokens: toolbridge token --room home --identity phone"
    )?;
    writeln!(stdout, "# Ctrl-C ends it.")?;
    stdout.flush()
}
