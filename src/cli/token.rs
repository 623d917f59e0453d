//! `toolbridge token`: a token with the right grants and the role attribute.

use std::{
    io::{Write as _, stdout},
    time::Duration,
};

use clap::{Args, ValueEnum};

use super::{Failure, connect::Key};

/// A token's life, unless told otherwise: long enough to start an app by hand.
const DEFAULT_LIFE: &str = "10m";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The room it is for
    #[arg(long, value_name = "ROOM")]
    room: String,

    /// Who will join with it
    #[arg(long, value_name = "IDENTITY")]
    identity: String,

    /// What that participant is
    #[arg(long, value_enum, default_value = "client")]
    role: RoleName,

    /// The others never see that participant, and it hears only what goes to the whole room; for observers
    #[arg(long)]
    hidden: bool,

    /// How long it lets somebody in, such as 90s, 10m or 1h
    #[arg(long, default_value = DEFAULT_LIFE, value_parser = humantime::parse_duration, value_name = "TIME")]
    ttl: Duration,

    #[command(flatten)]
    key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    /// Offers tools
    Client,
    /// Asks for tools
    Assistant,
    /// Sees every call
    Observer,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.hidden && arguments.role != RoleName::Observer {
        return Err(Failure::usage("--hidden is for observers: --role observer --hidden"));
    }
    let key = arguments.key.access_key()?;
    let (room, identity) = (arguments.room.as_str(), arguments.identity.as_str());
    let token = match arguments.role {
        RoleName::Client => key.client(room, identity),
        RoleName::Assistant => key.assistant(room, identity),
        RoleName::Observer if arguments.hidden => key.observer(room, identity).hidden(),
        RoleName::Observer => key.observer(room, identity),
    };
    let token = token.ttl(arguments.ttl).sign().map_err(Failure::usage)?;
    writeln!(stdout(), "{token}")?;
    Ok(())
}
