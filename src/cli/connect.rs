//! Which server, which room, as whom: the same flags and environment names for every verb.

use std::path::PathBuf;

use clap::Args;
use livekit_token::Claims;
use url::Url;

use super::{Failure, hint, interrupt::unless_interrupted, token_role::check_role};
use crate::host;
use toolbridge::transport::{
    Identity, Role,
    livekit::{
        self, Room, RoomOptions,
        access_token::{AccessKey, TokenClaims},
    },
};

/// The key of LiveKit's `--dev` mode, which everybody knows.
const DEV_KEY: &str = "devkey";

const NO_SERVER: &str = "no server: set LIVEKIT_URL";
const NO_ROOM: &str = "no room: give --room, or a token that names one";

const NOT_HIDDEN: &str = "--hidden needs a token with the hidden grant, and this one has none: \
    toolbridge token --role observer --hidden makes one";

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

    /// Send packets through the server's relays (TURN) only, and nothing directly
    #[arg(long, help_heading = "Server")]
    pub(super) relay_only: bool,
}

/// A place in a room: which one, as whom, on which server.
#[derive(Debug, Args)]
pub(super) struct RoomArguments {
    /// The room; a token of your own names it already
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    /// Our identity, made up if there is none; clients that name their assistant listen to that name only
    #[arg(long, value_name = "IDENTITY")]
    identity: Option<String>,

    #[command(flatten)]
    server: Server,
}

impl RoomArguments {
    /// Whether a room or an identity was named.
    pub(super) fn is_given(&self) -> bool {
        self.room.is_some() || self.identity.is_some()
    }

    /// The way there, in this role. The word is for the identity that is made up.
    pub(super) fn target(&self, word: &str, role: Role) -> Result<JoinTarget, Failure> {
        self.server.target(self.room.as_deref(), self.identity.as_deref(), word, role)
    }

    /// The way there for somebody who only listens; hidden, the others never see us.
    pub(super) fn observer_target(&self, word: &str, hidden: bool) -> Result<JoinTarget, Failure> {
        let (room, identity) = (self.room.as_deref(), self.identity.as_deref());
        self.server.target_with(room, identity, word, Role::Observer, hidden)
    }
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
        match (self.name(), given(&self.api_secret)) {
            (Some(key), Some(secret)) => Ok(AccessKey::new(key, secret)),
            _ => Err(without(&self.missing())),
        }
    }

    fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if self.name().is_none() {
            missing.push("no API key: set LIVEKIT_API_KEY");
        }
        if given(&self.api_secret).is_none() {
            missing.push("no API secret: set LIVEKIT_API_SECRET");
        }
        missing
    }

    fn name(&self) -> Option<&str> {
        given(&self.api_key)
    }
}

/// Everything that is missing at once: who learns of it one by one tries four times.
fn without(missing: &[&str]) -> Failure {
    Failure::Usage(format!("{} (see --help)", missing.join("; ")))
}

/// A setting, without the line end that a file leaves behind. An empty one, as a script exports it that
/// has nothing to set, is none.
fn given(setting: &Option<String>) -> Option<&str> {
    setting.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

/// A room, and how to get into it.
pub(super) struct JoinTarget {
    pub(super) url: String,
    pub(super) token: String,
    pub(super) options: RoomOptions,
}

impl JoinTarget {
    /// Whether clients and assistants will send us what observers are sent.
    pub(super) fn observes(&self) -> bool {
        TokenClaims::from_unverified(&self.token).is_none_or(|claims| claims.observes())
    }

    /// Whether the others never see us.
    pub(super) fn is_hidden(&self) -> bool {
        TokenClaims::from_unverified(&self.token).is_some_and(|claims| claims.is_hidden())
    }
}

impl Server {
    pub(super) fn url(&self) -> Result<&str, Failure> {
        given(&self.url).ok_or_else(|| without(&[NO_SERVER]))
    }

    /// Whether a server was named at all.
    pub(super) fn is_named(&self) -> bool {
        given(&self.url).is_some()
    }

    /// A finished token.
    pub(super) fn token(&self) -> Option<&str> {
        given(&self.token)
    }

    /// The way into a room in this role. Without an identity one is made up: `toolbridge-<word>-<random>`.
    pub(super) fn target(
        &self,
        room: Option<&str>,
        identity: Option<&str>,
        word: &str,
        role: Role,
    ) -> Result<JoinTarget, Failure> {
        self.target_with(room, identity, word, role, false)
    }

    fn target_with(
        &self,
        room: Option<&str>,
        identity: Option<&str>,
        word: &str,
        role: Role,
        hidden: bool,
    ) -> Result<JoinTarget, Failure> {
        self.check_url()?;
        let missing = self.missing(room);
        if !missing.is_empty() {
            return Err(without(&missing));
        }
        let url = self.url()?.to_owned();
        let token = match self.token() {
            Some(token) => {
                agrees(token, room, identity)?;
                if let Some(claims) = TokenClaims::from_unverified(token) {
                    check_role(&claims, word, role)?;
                    if hidden && !claims.is_hidden() {
                        return Err(Failure::usage(NOT_HIDDEN));
                    }
                }
                token.to_owned()
            }
            None => {
                let key = self.key_for(&url)?;
                let room = room.ok_or_else(|| without(&[NO_ROOM]))?;
                let made_up = || format!("toolbridge-{word}-{}", nanoid::nanoid!(6));
                let identity = identity.map_or_else(made_up, str::to_owned);
                token_for(&key, room, &Identity::from(identity), role, hidden)?
            }
        };
        Ok(JoinTarget { url, token, options: self.room_options()? })
    }

    /// What signs tokens for this server.
    pub(super) fn key_for(&self, url: &str) -> Result<AccessKey, Failure> {
        let key = self.key.access_key()?;
        if self.key.name() == Some(DEV_KEY) && !is_loopback(url) {
            let text = format!(
                "the key {DEV_KEY:?} is known to everybody; it is used with servers on this machine only"
            );
            return Err(Failure::usage(text));
        }
        Ok(key)
    }

    /// Who would sign tokens, and the secret: to look at the signature of a finished one.
    pub(super) fn signer(&self) -> Option<(&str, &str)> {
        Some((self.key.name()?, given(&self.key.api_secret)?))
    }

    /// Refuses an address that no join could use, before anything else is asked for.
    fn check_url(&self) -> Result<(), Failure> {
        given(&self.url).map_or(Ok(()), |url| livekit::check_url(url).map_err(Failure::usage))
    }

    /// Complains unless server and token, or server and key, are there. No room is needed.
    pub(super) fn is_enough(&self) -> Result<(), Failure> {
        self.check_url()?;
        let missing = self.missing(Some(""));
        if missing.is_empty() { Ok(()) } else { Err(without(&missing)) }
    }

    fn missing(&self, room: Option<&str>) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.is_named() {
            missing.push(NO_SERVER);
        }
        if self.token().is_none() {
            let key = self.key.missing();
            if !key.is_empty() {
                missing.extend(key);
                missing.push("LIVEKIT_TOKEN, a finished token, does as well");
            }
            if room.is_none() {
                missing.push(NO_ROOM);
            }
        }
        missing
    }

    pub(super) fn room_options(&self) -> Result<RoomOptions, Failure> {
        let options = RoomOptions::default().warn_unencrypted(|server| {
            hint(&format!(
                "warning: the connection to {server} is not encrypted, so anybody on its path can read and use the token; \
                 use wss://"
            ));
        });
        let options = if self.relay_only { options.relay_only() } else { options };
        let Some(path) = &self.root_certificate else { return Ok(options) };
        let pem =
            std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        options.root_certificates(&pem).map_err(Failure::usage)
    }
}

impl JoinTarget {
    /// Joins without a session, to hear what is said in the room.
    pub(super) async fn join(&self) -> Result<Room, Failure> {
        let joining = self.options.clone().join(&self.url, &self.token);
        unless_interrupted(async { joining.await.map_err(Failure::failed) }).await
    }
}

fn token_for(
    key: &AccessKey,
    room: &str,
    identity: &Identity,
    role: Role,
    hidden: bool,
) -> Result<String, Failure> {
    let token = match role {
        Role::Assistant => key.assistant(room, identity.as_str()),
        Role::Client => key.client(room, identity.as_str()),
        Role::Observer => key.observer(room, identity.as_str()),
    };
    let token = if hidden { token.hidden() } else { token };
    token.sign().map_err(Failure::usage)
}

/// A token says which room and who, so a flag that says something else is a mistake, and not a small one:
/// the call would go to another room.
pub(super) fn agrees(token: &str, room: Option<&str>, identity: Option<&str>) -> Result<(), Failure> {
    // What cannot be read here is told by whoever reads it next.
    let Ok(claims) = Claims::from_unverified(token) else { return Ok(()) };
    for (what, flag, says) in [("room", room, &claims.video.room), ("identity", identity, &claims.sub)] {
        if let Some(flag) = flag.filter(|flag| !says.is_empty() && flag != says) {
            let text =
                format!("--{what} is {flag:?}, but the token is for the {what} {says:?}: leave one out");
            return Err(Failure::Usage(text));
        }
    }
    Ok(())
}

/// Whether a URL names this machine, and nothing that a server of names could send elsewhere: what is signed with a key
/// that everybody knows goes no further.
fn is_loopback(url: &str) -> bool {
    Url::parse(url).ok().as_ref().and_then(Url::host).is_some_and(|host| host::is_here_for_certain(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage<T>(result: Result<T, Failure>) -> String {
        match result {
            Err(Failure::Usage(text)) => text,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it was taken"),
        }
    }

    fn server(token: Option<&str>) -> Server {
        let text = |text: &str| Some(text.to_owned());
        let key = Key { api_key: text("devkey\n"), api_secret: text("a secret of some length\r\n") };
        let token = token.map(str::to_owned);
        Server { url: text("ws://127.0.0.1\n"), key, token, root_certificate: None, relay_only: false }
    }

    fn target(server: &Server, room: &str, identity: &str) -> Result<JoinTarget, Failure> {
        server.target(Some(room), Some(identity), "test", Role::Client)
    }

    #[test]
    fn an_empty_setting_is_none() {
        for empty in ["", " ", "\n"] {
            let mut server = server(Some(empty));
            assert!(target(&server, "r", "a").is_ok(), "the key signs a token");
            server.key.api_secret = Some(empty.to_owned());
            assert!(usage(target(&server, "r", "a")).starts_with("no API secret"));
            server.url = Some(empty.to_owned());
            assert!(!server.is_named());
            assert!(usage(target(&server, "r", "a")).starts_with("no server"));
        }
    }

    #[test]
    fn a_setting_loses_the_line_end_of_its_file() {
        let signed = target(&server(None), "r", "a").unwrap();
        assert_eq!(signed.url, "ws://127.0.0.1");
        assert_eq!(Claims::from_unverified(&signed.token).unwrap().iss, "devkey");
        let kept = target(&server(Some(&format!("{}\n", signed.token))), "r", "a").unwrap();
        assert_eq!(kept.token, signed.token);
    }

    #[test]
    fn a_flag_that_the_token_contradicts_is_wrong_usage() {
        let token = target(&server(None), "r", "a").unwrap().token;
        let server = server(Some(&token));
        assert!(server.target(None, None, "test", Role::Client).is_ok());
        assert!(usage(target(&server, "other", "a")).contains("the token is for the room \"r\""));
        assert!(usage(target(&server, "r", "other")).contains("the token is for the identity \"a\""));
    }

    #[test]
    fn this_machine_and_no_other() {
        for here in ["ws://127.0.0.1:7880", "ws://localhost", "wss://[::1]:7880/x", "ws://[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in
            ["ws://app.localhost", "ws://localhost.", "ws://evil\\@127.0.0.1", "wss://a@b", "localhost"]
        {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }
}
