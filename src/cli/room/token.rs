//! `toolbridge token`: creates an access token with the grants and the role attribute of a participant.

use std::{
    io::{Write as _, stdout},
    time::Duration,
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};

use crate::cli::{
    room::connect::Key,
    terminal::{clock, failure::Failure},
};

/// The default lifetime of a token: long enough to start an app by hand.
const DEFAULT_LIFE: &str = "10m";

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Room that the token allows joining
    #[arg(long, value_name = "ROOM")]
    room: String,

    /// Identity of the participant
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    identity: String,

    /// Role of the participant
    #[arg(long, value_enum, default_value = "client")]
    role: RoleName,

    /// Hide the participant from others; it then receives only packets sent to the whole room. Requires --role observer
    #[arg(long)]
    hidden: bool,

    /// Lifetime of the token, such as 90s, 10m or 1h
    #[arg(long, default_value = DEFAULT_LIFE, value_parser = clock::validity, value_name = "TIME")]
    ttl: Duration,

    #[command(flatten)]
    key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    /// Offers tools
    Client,
    /// Calls tools
    Assistant,
    /// Receives copies of every call
    Observer,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.hidden && arguments.role != RoleName::Observer {
        return Err(Failure::usage("--hidden needs --role observer"));
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
