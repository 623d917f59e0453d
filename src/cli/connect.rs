//! Which server, which room, as whom: the same flags and environment names for every verb.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use super::Failure;
use crate::{
    link::{Identity, Role},
    room::{Room, RoomOptions},
    token::AccessKey,
};

/// The key of LiveKit's `--dev` mode, which everybody knows.
const DEV_KEY: &str = "devkey";

/// Where the server is, and what lets us in.
#[derive(Debug, Args)]
pub(super) struct Server {
    /// The server's address, as wss://host or ws://host:7880
    #[arg(long, env = "LIVEKIT_URL", value_name = "URL", help_heading = "Server")]
    pub(super) url: Option<String>,

    #[command(flatten)]
    pub(super) key: Key,

    /// A finished token, in place of key and secret; it says room and identity
    #[arg(long, env = "LIVEKIT_TOKEN", hide_env_values = true, value_name = "JWT", help_heading = "Server")]
    pub(super) token: Option<String>,

    /// A PEM file of certificates to trust beside the system's
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(super) root_certificate: Option<PathBuf>,
}

/// What signs tokens.
#[derive(Debug, Args)]
pub(super) struct Key {
    /// The API key
    #[arg(
        long,
        env = "LIVEKIT_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "Server"
    )]
    pub(super) api_key: Option<String>,

    /// The API secret; better in the environment, where other users cannot see it
    #[arg(
        long,
        env = "LIVEKIT_API_SECRET",
        hide_env_values = true,
        value_name = "SECRET",
        help_heading = "Server"
    )]
    pub(super) api_secret: Option<String>,
}

impl Key {
    pub(super) fn access_key(&self) -> Result<AccessKey, Failure> {
        let missing = |what: &str, name: &str| {
            Failure::usage(format!("no {what}: set {name} (or LIVEKIT_TOKEN), or see --help"))
        };
        let key = self.api_key.as_deref().ok_or_else(|| missing("API key", "LIVEKIT_API_KEY"))?;
        let secret = self.api_secret.as_deref().ok_or_else(|| missing("API secret", "LIVEKIT_API_SECRET"))?;
        Ok(AccessKey::new(key, secret))
    }
}

/// A room, and how to get into it.
pub(super) struct Way {
    pub(super) url: String,
    pub(super) token: String,
    pub(super) options: RoomOptions,
}

impl Server {
    pub(super) fn url(&self) -> Result<&str, Failure> {
        self.url.as_deref().ok_or_else(|| Failure::usage("no server: set LIVEKIT_URL, or see --help"))
    }

    /// The way into a room in this role. Without an identity one is made up: `toolbridge-<word>-<random>`.
    pub(super) fn way(
        &self,
        room: Option<&str>,
        identity: Option<&str>,
        word: &str,
        role: Role,
    ) -> Result<Way, Failure> {
        let url = self.url()?.to_owned();
        let token = match &self.token {
            Some(token) => token.clone(),
            None => {
                let key = self.key.access_key()?;
                if self.key.api_key.as_deref() == Some(DEV_KEY) && !is_loopback(&url) {
                    let text = format!(
                        "the key {DEV_KEY:?} is known to everybody; it is used with servers on this machine only"
                    );
                    return Err(Failure::usage(text));
                }
                let room =
                    room.ok_or_else(|| Failure::usage("no room: give --room, or a token that names one"))?;
                let made_up = || format!("toolbridge-{word}-{}", nanoid::nanoid!(6));
                let identity = identity.map_or_else(made_up, str::to_owned);
                token_for(&key, room, &Identity::from(identity), role)?
            }
        };
        Ok(Way { url, token, options: self.room_options()? })
    }

    fn room_options(&self) -> Result<RoomOptions, Failure> {
        let Some(path) = &self.root_certificate else { return Ok(RoomOptions::default()) };
        let pem =
            std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        RoomOptions::default().root_certificates(&pem).map_err(Failure::usage)
    }
}

impl Way {
    /// Joins without a session, to hear what is said in the room.
    pub(super) async fn join(&self) -> Result<Room, Failure> {
        self.options.clone().join(&self.url, &self.token).await.map_err(Failure::failed)
    }
}

fn token_for(key: &AccessKey, room: &str, identity: &Identity, role: Role) -> Result<String, Failure> {
    let token = match role {
        Role::Assistant => key.assistant(room, identity.as_str()),
        Role::Client => key.client(room, identity.as_str()),
        Role::Observer => key.observer(room, identity.as_str()),
    };
    token.sign().map_err(Failure::usage)
}

/// Whether a URL names this machine.
fn is_loopback(url: &str) -> bool {
    let after = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = after.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let name = match host.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn this_machine_and_no_other() {
        for here in ["ws://127.0.0.1:7880", "ws://localhost", "wss://[::1]:7880/x", "http://127.8.8.8/"] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in
            ["wss://127.0.0.1.example.com", "wss://localhost.example", "ws://10.0.0.1", "wss://a@b"]
        {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }
}
