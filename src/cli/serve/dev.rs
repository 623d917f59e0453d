//! `toolbridge dev`: runs an embedded LiveKit-compatible server for local development.

use std::{
    fmt,
    io::{self, Write as _},
};

use clap::Args;

use crate::cli::terminal::{
    failure::{Failure, hint},
    interrupt::{interrupted, unless_interrupted},
    text,
};
use toolbridge::{dev_server::DevServer, livekit::AccessKey};

/// The publicly known API key and secret of `livekit-server --dev`.
const DEV_KEY: [&str; 2] = ["devkey", "secret"];

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
Workers of livekit-agents get jobs from it: `python worker.py dev` or `start`, with the printed variables set. A worker \
without `agent_name` gets one for each room; one with a name, for rooms that ask for it (`roomConfig.agents` of a token, \
CreateRoom, CreateDispatch). A worker that starts later gets the open rooms, too.";

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD)]
pub(in crate::cli) struct Arguments {
    /// Signaling port; packets use the next port over TCP and the one after that over UDP. 0 picks free ports
    #[arg(long, default_value_t = 7880, value_parser = clap::value_parser!(u16).range(0..=65533), value_name = "PORT")]
    port: u16,

    /// API key and secret [default: LIVEKIT_API_KEY and LIVEKIT_API_SECRET, or devkey:secret]
    #[arg(long, value_parser = key, value_name = "KEY:SECRET")]
    key: Option<Key>,

    /// Accept requests addressed to this host name or address, in addition to those of this machine (repeatable)
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,

    /// Accept web pages and apps with this origin, in addition to pages of this machine, such as `https://app.example`,
    /// `file://` or `vscode-webview://*` (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
}

/// An API key and its secret. `Debug` hides the secret.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    name: String,
    secret: String,
}

impl Key {
    fn new(name: impl Into<String>, secret: impl Into<String>) -> Self {
        Self { name: name.into(), secret: secret.into() }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The origin of the API key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The command line, or LiveKit's default.
    Shown,
    /// The environment. Its secret is not printed.
    Environment,
}

/// Returns the key of the command line, of the environment, or the default.
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
        _ => Err("the key must have the form KEY:SECRET"),
    }
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let (key, origin) = chosen(arguments.key, |name| std::env::var(name).ok())?;
    let server = DevServer::builder().port(arguments.port).key(AccessKey::new(&*key.name, &*key.secret));
    let server = server.on_warning(hint);
    let server = arguments.allow_host.into_iter().fold(server, |server, host| server.allow_host(host));
    let server = arguments.allow_origin.into_iter().try_fold(server, |server, origin| {
        let failed = |error| Failure::usage(format!("--allow-origin {}: {error}", text::plain(&origin)));
        server.allow_origin(&*origin).map_err(failed)
    })?;
    let starting = async {
        server.start().await.map_err(|error| {
            let taken = if error.is_taken() {
                "; another program uses this port, choose one with --port"
            } else {
                ""
            };
            Failure::failed(format!("{error}{taken}"))
        })
    };
    // From here on Ctrl-C starts an orderly shutdown instead of ending the process.
    let mut server = unless_interrupted(starting).await?;
    let shown = show(&server.url(), &key, origin);
    // Close in an orderly way even if standard output is closed, so that participants are notified.
    let until = async {
        if shown.is_ok() {
            interrupted().await;
        }
    };
    unless_failed(server.failed(), until).await?;
    server.close().await;
    Ok(shown?)
}

/// Waits until the server is stopped.
///
/// # Errors
/// It failed before.
async fn unless_failed(
    failed: impl Future<Output = String>,
    until: impl Future<Output = ()>,
) -> Result<(), Failure> {
    tokio::select! {
        () = until => Ok(()),
        why = failed => {
            let why = text::plain(&why);
            Err(Failure::failed(format!(
                "the development server ended because of a bug, and all participants were disconnected: {why}"
            )))
        }
    }
}

/// Prints the connection settings as lines that a shell can evaluate.
fn show(url: &str, key: &Key, origin: Origin) -> io::Result<()> {
    let (name, secret) = (text::plain(&key.name), text::plain(&key.secret));
    let mut stdout = io::stdout();
    writeln!(
        stdout,
        "# Development server: reachable from this machine only, data without media, no persistence."
    )?;
    writeln!(stdout, "export LIVEKIT_URL={url}")?;
    if origin == Origin::Environment {
        writeln!(stdout, "# It uses the key in LIVEKIT_API_KEY and LIVEKIT_API_SECRET of this shell.")?;
    } else {
        writeln!(stdout, "export LIVEKIT_API_KEY={name}")?;
        writeln!(stdout, "export LIVEKIT_API_SECRET={secret}")?;
    }
    writeln!(
        stdout,
        "# Run these lines in another shell to use the server, such as: toolbridge token --room home --identity phone"
    )?;
    writeln!(stdout, "# Press Ctrl-C to stop it.")?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_the_server_ends_the_command_with_a_message() {
        let ended = unless_failed(async { "planted".to_owned() }, std::future::pending()).await;
        let Err(Failure::Failed(message)) = ended else { panic!("{ended:?}") };
        assert!(message.contains("because of a bug") && message.ends_with("planted"), "{message}");
    }
}
