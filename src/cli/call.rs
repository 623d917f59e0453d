//! `toolbridge call`: joins as an assistant, calls one tool, leaves.

use std::{
    io::{self, Read as _, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Failure, clock,
    connect::Seat,
    file, hint,
    interrupt::{interrupted, unless_interrupted},
    link, text,
};
use crate::{Assistant, Body, CallError, Event, Events, Identity, Participant, Role, ToolError};

/// After this long without a start we say what we are waiting for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to wait for somebody who offers the tool: announcements take up to 3 s.
const OWNER_WAIT: Duration = Duration::from_secs(5);

/// When one client has offered the tool, how long the others in the room have to say what they offer.
const OTHERS_WAIT: Duration = Duration::from_secs(1);

/// How long to wait for a client that listens to another assistant: if that one is gone, as the last `call` from this
/// terminal is, and its goodbye was lost with it, the client hears of that within 3 s, and is free 5 s later.
const BOUND_WAIT: Duration = Duration::from_secs(9);

/// The longest arguments that are read, in bytes: the largest frame of 16 MiB, all of it binary, as base64.
const LONGEST_JSON: u64 = 24 * 1024 * 1024;

/// On the way out nothing of ours is open but what was stopped.
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The tool's name
    tool: String,

    /// Its arguments: a JSON object, or - to read it from standard input
    #[arg(default_value = "{}", value_name = "JSON")]
    arguments: String,

    #[command(flatten)]
    seat: Seat,

    /// Which client shall run it, if several offer it
    #[arg(long, value_name = "IDENTITY")]
    to: Option<String>,

    /// How long it may take in all: 1ms to 10m
    #[arg(long, default_value = "30s", value_parser = clock::limit, value_name = "TIME")]
    timeout: Duration,

    /// Record the session as seen from here into this file, which must not exist (see `toolbridge info`)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let json = parameters(&arguments.arguments)?;
    if !json.is_map() {
        return Err(Failure::usage("the arguments must be a JSON object, such as '{\"city\": \"Rome\"}'"));
    }
    let way = arguments.seat.way("call", Role::Assistant)?;
    let mut builder = Assistant::builder().room_options(way.options.clone()).drain(DRAIN);
    if let Some(owner) = &arguments.to {
        builder = builder.client(owner.as_str());
    }
    if let Some(path) = &arguments.record {
        builder = builder.record(path);
    }
    let joining = async { builder.join(&way.url, &way.token).await.map_err(file::not_joined) };
    let assistant = unless_interrupted(joining).await?;
    let result = tokio::select! {
        biased;
        () = interrupted() => Err(Failure::Interrupted),
        result = ask(&assistant, json, &arguments) => Ok(result),
    };
    // A call that was interrupted is dropped by now, and so cancelled; its owner hears of it.
    assistant.close().await;
    show(result?)
}

/// The arguments as they are given, or as they stand on standard input: one word of a command line is small.
fn parameters(given: &str) -> Result<Body, Failure> {
    let mut text = String::new();
    if given == "-" {
        io::stdin().lock().take(LONGEST_JSON).read_to_string(&mut text)?;
    }
    Body::from_json(if given == "-" { &text } else { given })
        .map_err(|error| Failure::usage(format!("the arguments are no JSON: {error}")))
}

async fn ask(assistant: &Assistant, json: Body, arguments: &Arguments) -> Result<Body, CallError> {
    let began = Instant::now();
    let hint = async {
        sleep(PATIENCE).await;
        let who = arguments.to.as_deref().unwrap_or("a client that offers it");
        hint(&format!("waiting for {who} (LiveKit announces participants up to 3 s late) …"));
        std::future::pending::<()>().await;
    };
    let once = || async {
        let call = match &arguments.to {
            Some(owner) => assistant.call(&arguments.tool, &json).to(owner.as_str()),
            None => {
                let wait = OWNER_WAIT.min(arguments.timeout);
                offers(assistant, &arguments.tool, wait).await;
                assistant.call(&arguments.tool, &json).owner_wait(Duration::ZERO)
            }
        };
        let left = arguments.timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        call.timeout(left).await
    };
    let call = async {
        let mut events = assistant.events();
        let mut until = None;
        loop {
            let result = once().await;
            if !matches!(result, Err(CallError::NotBound { .. })) {
                return result;
            }
            // Nothing ran.
            let until =
                *until.get_or_insert_with(|| (Instant::now() + BOUND_WAIT).min(began + arguments.timeout));
            if !offers_change(&mut events, until).await {
                return result;
            }
        }
    };
    tokio::select! {
        result = call => result.map_err(|error| match error {
            CallError::Timeout { .. } => CallError::Timeout { limit: arguments.timeout },
            other => other,
        }),
        // Neither of them ever ends.
        () = hint => Err(CallError::Cancelled),
        () = link::told(assistant) => Err(CallError::Cancelled),
    }
}

/// Waits until somebody offers something else than before; false if nobody does in time.
async fn offers_change(events: &mut Events, until: Instant) -> bool {
    loop {
        match timeout_at(until, events.recv()).await {
            Ok(Some(Event::ToolsChanged { .. })) => return true,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// Waits until somebody offers the tool, and a little longer for those who may offer it too: the first
/// to answer us is no better than the others.
async fn offers(assistant: &Assistant, tool: &str, wait: Duration) {
    let mut events = assistant.events();
    let mut until = Instant::now() + wait;
    let mut found = false;
    loop {
        let offers = assistant.tools();
        if !found && offers.iter().any(|offer| offer.tool.name().as_str() == tool) {
            found = true;
            until = until.min(Instant::now() + OTHERS_WAIT);
        }
        let silent = |who: &Participant| {
            who.token_role() == Some(Role::Client)
                && !offers.iter().any(|offer| offer.owner == *who.identity())
        };
        if found && !assistant.participants().iter().any(silent) {
            return;
        }
        match timeout_at(until, events.recv()).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}

fn show(result: Result<Body, CallError>) -> Result<(), Failure> {
    match result {
        Ok(body) => {
            writeln!(io::stdout(), "{}", text::json(&body.to_json()))?;
            Ok(())
        }
        Err(CallError::Ambiguous { tool, owners }) => {
            let owners: Vec<_> = owners.iter().map(Identity::as_str).collect();
            let owners = owners.join(", ");
            Err(Failure::Failed(format!(
                "ambiguous: {tool} is offered by {owners}; choose one with --to (nothing ran)"
            )))
        }
        Err(error) => {
            let ran = if error.may_have_run() { "" } else { " (nothing ran)" };
            let error = ToolError::from(error);
            Err(Failure::Failed(format!("{}: {}{ran}", error.code(), error.message())))
        }
    }
}
