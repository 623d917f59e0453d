//! `toolbridge call`: joins as an assistant, calls one tool, leaves.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use clap::Args;

use super::{Failure, connect::Server, interrupted, text};
use crate::{Assistant, Body, Call, CallError, Role, ToolError};

/// After this long without a start we say what we are waiting for.
const PATIENCE: Duration = Duration::from_secs(1);

/// On the way out nothing of ours is open but what was stopped.
const DRAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The tool's name
    tool: String,

    /// Its arguments: a JSON object
    #[arg(default_value = "{}", value_name = "JSON")]
    arguments: String,

    /// The room
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    /// Our identity; clients that name their assistant listen to that name only
    #[arg(long, value_name = "IDENTITY")]
    identity: Option<String>,

    /// Which client shall run it, if several offer it
    #[arg(long, value_name = "IDENTITY")]
    to: Option<String>,

    /// How long it may take in all
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "TIME")]
    timeout: Duration,

    #[command(flatten)]
    server: Server,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    let json: serde_json::Value = serde_json::from_str(&arguments.arguments)
        .map_err(|error| Failure::usage(format!("the arguments are no JSON: {error}")))?;
    if !json.is_object() {
        return Err(Failure::usage("the arguments must be a JSON object, such as '{\"city\": \"Rome\"}'"));
    }
    let (room, identity) = (arguments.room.as_deref(), arguments.identity.as_deref());
    let way = arguments.server.way(room, identity, "call", Role::Assistant)?;
    let mut builder = Assistant::builder().room_options(way.options.clone()).drain(DRAIN);
    if let Some(owner) = &arguments.to {
        builder = builder.client(owner.as_str());
    }
    let assistant = builder.join(&way.url, &way.token).await.map_err(Failure::failed)?;
    let mut call = assistant.call(&arguments.tool, Body::from(json)).timeout(arguments.timeout);
    if let Some(owner) = &arguments.to {
        call = call.to(owner.as_str());
    }
    let result = outcome(call.start(), &arguments).await;
    assistant.close().await;
    show(result?)
}

/// The call's outcome, or that it was stopped from outside.
async fn outcome(mut call: Call, arguments: &Arguments) -> Result<Result<Body, CallError>, Failure> {
    let mut hinted = false;
    loop {
        tokio::select! {
            biased;
            () = interrupted() => {
                call.cancel();
                return Err(Failure::Interrupted);
            }
            result = &mut call => return Ok(result),
            () = tokio::time::sleep(PATIENCE), if !hinted => {
                hinted = true;
                let who = arguments.to.as_deref().unwrap_or("a client that offers it");
                let who = text::plain(who);
                eprintln!("waiting for {who} (LiveKit announces participants up to 3 s late) …");
            }
        }
    }
}

fn show(result: Result<Body, CallError>) -> Result<(), Failure> {
    match result {
        Ok(body) => {
            writeln!(io::stdout(), "{}", text::json(&body.to_json()))?;
            Ok(())
        }
        Err(error) => {
            let ran = if error.may_have_run() { "" } else { " (nothing ran)" };
            let error = ToolError::from(error);
            Err(Failure::Failed(format!("{}: {}{ran}", error.code(), error.message())))
        }
    }
}
