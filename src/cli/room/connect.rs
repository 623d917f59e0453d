//! Reads the connection options: server, credentials, room and identity. Every subcommand that joins a room
//! has the same flags and environment variables.

use std::{
    fmt,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, builder::NonEmptyStringValueParser};
use livekit_token::Claims;

use super::encryption::Encryption;
use crate::cli::{
    room::token_role::check_role,
    terminal::{
        clock,
        failure::{Failure, hint},
        interrupt::unless_interrupted,
    },
};
use toolbridge::{
    Identity, Role,
    cli_support::is_public_key,
    livekit::{self, AccessKey, ConnectOptions, LiveKitTransport, TokenClaims},
};

/// The help of `--identity` for subcommands that join as an assistant.
pub(in crate::cli) const ASSISTANT_IDENTITY: &str = "Identity to join under [default: random]. A client whose author named \
    its assistant accepts calls from that identity only";

const NO_SERVER: &str = "no server: set LIVEKIT_URL or pass --url";
const NO_ROOM: &str = "no room: pass --room, or a token that names a room";

const NOT_HIDDEN: &str = "--hidden needs a token with the `hidden` grant, and this token has none; \
    create one with `toolbridge token --role observer --hidden`";

/// The largest file that an option of a connection names, in bytes. The certificates of a whole system have a quarter.
const MAX_FILE: u64 = 1 << 20;

/// The server's address and the credentials.
#[derive(Debug, Args)]
pub(in crate::cli) struct Server {
    /// Server URL, such as wss://host or ws://host:7880
    #[arg(long, env = "LIVEKIT_URL", value_name = "URL", help_heading = "Server")]
    pub(in crate::cli) url: Option<String>,

    #[command(flatten)]
    pub(in crate::cli) key: Key,

    /// Access token to use instead of key and secret; it sets room and identity
    #[arg(long, env = "LIVEKIT_TOKEN", hide_env_values = true, value_name = "JWT", help_heading = "Server")]
    pub(in crate::cli) token: Option<String>,

    /// PEM file with root certificates to trust in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(in crate::cli) root_certificate: Option<PathBuf>,

    /// Connect only through the server's TURN relays
    #[arg(long, help_heading = "Server")]
    pub(in crate::cli) relay_only: bool,

    #[command(flatten)]
    pub(in crate::cli) encryption: Encryption,
}

/// The room, the identity and the server.
#[derive(Debug, Args)]
pub(in crate::cli) struct RoomArguments {
    /// Room to join; not needed with --token
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    /// Identity to join under [default: random]
    #[arg(long, value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    identity: Option<String>,

    /// How long to try again after the connection was lost, such as 1h; 0s ends at once [default: for ever]
    #[arg(long, value_parser = clock::rejoin_limit, value_name = "TIME", help_heading = "Server")]
    rejoin_limit: Option<Duration>,

    #[command(flatten)]
    server: Server,
}

impl RoomArguments {
    /// Returns whether `--room` or `--identity` was given.
    pub(in crate::cli) fn is_given(&self) -> bool {
        self.room.is_some() || self.identity.is_some()
    }

    /// Returns whether the room is encrypted end to end.
    pub(in crate::cli) fn is_encrypted(&self) -> bool {
        self.server.is_encrypted()
    }

    /// Returns what is needed to join in this role. `label` becomes part of a generated identity.
    pub(in crate::cli) fn target(&self, label: &str, role: Role) -> Result<JoinTarget, Failure> {
        let target = self.server.target(self.room.as_deref(), self.identity.as_deref(), label, role);
        Ok(self.limited(target?))
    }

    fn limited(&self, target: JoinTarget) -> JoinTarget {
        match self.rejoin_limit {
            Some(limit) => JoinTarget { options: target.options.rejoin_limit(limit), ..target },
            None => target,
        }
    }

    /// Returns what is needed to join as an observer. Other participants never see a hidden observer.
    pub(in crate::cli) fn observer_target(&self, label: &str, hidden: bool) -> Result<JoinTarget, Failure> {
        let (room, identity) = (self.room.as_deref(), self.identity.as_deref());
        Ok(self.limited(self.server.target_with(room, identity, label, Role::Observer, hidden)?))
    }
}

/// The API key and secret that sign tokens.
#[derive(Debug, Args)]
pub(in crate::cli) struct Key {
    /// API key
    #[arg(
        long,
        env = "LIVEKIT_API_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "Server"
    )]
    pub(in crate::cli) api_key: Option<String>,

    /// API secret; prefer the environment variable, which other users of this machine cannot see
    #[arg(
        long,
        env = "LIVEKIT_API_SECRET",
        hide_env_values = true,
        value_name = "SECRET",
        help_heading = "Server"
    )]
    pub(in crate::cli) api_secret: Option<String>,
}

impl Key {
    pub(in crate::cli) fn access_key(&self) -> Result<AccessKey, Failure> {
        match (self.name(), given(&self.api_secret)) {
            (Some(key), Some(secret)) => Ok(AccessKey::new(key, secret)),
            _ => Err(without(&self.missing())),
        }
    }

    fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if self.name().is_none() {
            missing.push("no API key: set LIVEKIT_API_KEY or pass --api-key");
        }
        if given(&self.api_secret).is_none() {
            missing.push("no API secret: set LIVEKIT_API_SECRET or pass --api-secret");
        }
        missing
    }

    fn name(&self) -> Option<&str> {
        given(&self.api_key)
    }
}

/// Reports all missing settings in one error.
fn without(missing: &[&str]) -> Failure {
    Failure::Usage(format!("{} (see --help)", missing.join("; ")))
}

/// Trims a setting, which may end with the line feed of a file. An empty setting counts as unset.
fn given(setting: &Option<String>) -> Option<&str> {
    setting.as_deref().map(str::trim).filter(|text| !text.is_empty())
}

/// What a join needs: the server's URL, the token and the options.
pub(in crate::cli) struct JoinTarget {
    pub(in crate::cli) url: String,
    pub(in crate::cli) token: String,
    pub(in crate::cli) options: ConnectOptions,
}

impl JoinTarget {
    /// Returns whether clients and assistants send copies of their messages to this participant, as they do to observers.
    pub(in crate::cli) fn observes(&self) -> bool {
        TokenClaims::from_unverified(&self.token).is_none_or(|claims| claims.observes())
    }

    /// Returns whether the token hides this participant from the others.
    pub(in crate::cli) fn is_hidden(&self) -> bool {
        TokenClaims::from_unverified(&self.token).is_some_and(|claims| claims.is_hidden())
    }
}

impl Server {
    /// Returns whether the room is encrypted end to end.
    pub(in crate::cli) fn is_encrypted(&self) -> bool {
        self.encryption.is_on()
    }

    pub(in crate::cli) fn url(&self) -> Result<&str, Failure> {
        given(&self.url).ok_or_else(|| without(&[NO_SERVER]))
    }

    /// Returns whether a server URL was given.
    pub(in crate::cli) fn is_named(&self) -> bool {
        given(&self.url).is_some()
    }

    /// Returns the given access token.
    pub(in crate::cli) fn token(&self) -> Option<&str> {
        given(&self.token)
    }

    /// Returns what is needed to join a room in this role. The default identity is `toolbridge-<label>-<random>`.
    pub(in crate::cli) fn target(
        &self,
        room: Option<&str>,
        identity: Option<&str>,
        label: &str,
        role: Role,
    ) -> Result<JoinTarget, Failure> {
        self.target_with(room, identity, label, role, false)
    }

    fn target_with(
        &self,
        room: Option<&str>,
        identity: Option<&str>,
        label: &str,
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
                    check_role(&claims, label, role)?;
                    if hidden && !claims.is_hidden() {
                        return Err(Failure::usage(NOT_HIDDEN));
                    }
                }
                token.to_owned()
            }
            None => {
                let key = self.key_for(&url)?;
                let room = room.ok_or_else(|| without(&[NO_ROOM]))?;
                let made_up = || format!("toolbridge-{label}-{}", nanoid::nanoid!(6));
                let identity = identity.map_or_else(made_up, str::to_owned);
                token_for(&key, room, &Identity::from(identity), role, hidden)?
            }
        };
        Ok(JoinTarget { url, token, options: self.connect_options()? })
    }

    /// Returns the key that signs tokens for this server.
    pub(in crate::cli) fn key_for(&self, url: &str) -> Result<AccessKey, Failure> {
        let key = self.key.access_key()?;
        if is_public_key(&key, url) {
            let text = format!(
                "the API key {:?} is publicly known and is only used with a server on this machine; pass another key",
                key.key()
            );
            return Err(Failure::usage(text));
        }
        Ok(key)
    }

    /// Rejects a URL that no join can use, before it reports other missing settings.
    fn check_url(&self) -> Result<(), Failure> {
        given(&self.url).map_or(Ok(()), |url| livekit::check_url(url).map_err(Failure::usage))
    }

    /// Returns an error unless a server is given, and a token or an API key with its secret. A room is not needed.
    pub(in crate::cli) fn is_enough(&self) -> Result<(), Failure> {
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
                missing.push("or set LIVEKIT_TOKEN to an access token");
            }
            if room.is_none() {
                missing.push(NO_ROOM);
            }
        }
        missing
    }

    pub(in crate::cli) fn connect_options(&self) -> Result<ConnectOptions, Failure> {
        let options = ConnectOptions::default().warn_unencrypted(|server| {
            hint(&format!(
                "warning: the connection to {server} is not encrypted, so anyone on the network path can read and use the \
                token; use wss://"
            ));
        });
        let options = if self.relay_only { options.relay_only() } else { options };
        let options = self.encryption.keys()?.iter().fold(options, ConnectOptions::e2ee_keys);
        let Some(path) = &self.root_certificate else { return Ok(options) };
        options.root_certificates(&read_file(path)?).map_err(Failure::usage)
    }
}

/// Reads a file that an option names. One without an end, such as a device, is an error.
fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    read_opened(path, File::open(path).map_err(|error| of_file(path, &error))?)
}

pub(super) fn read_opened(path: &Path, file: File) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    if read.map_err(|error| of_file(path, &error))? as u64 > MAX_FILE {
        return Err(of_file(path, &format!("the file is too large; the limit is {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

pub(super) fn of_file(path: &Path, why: &dyn fmt::Display) -> Failure {
    Failure::usage(format!("{}: {why}", path.display()))
}

impl JoinTarget {
    /// Joins without a protocol session, to receive the packets of the room.
    pub(in crate::cli) async fn join(&self) -> Result<LiveKitTransport, Failure> {
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

/// Rejects a `--room` or `--identity` that contradicts the token, which would send the call to another room.
pub(in crate::cli) fn agrees(token: &str, room: Option<&str>, identity: Option<&str>) -> Result<(), Failure> {
    // The join reports a token that cannot be parsed.
    let Ok(claims) = Claims::from_unverified(token) else { return Ok(()) };
    for (what, flag, says) in [("room", room, &claims.video.room), ("identity", identity, &claims.sub)] {
        if let Some(flag) = flag.filter(|flag| !says.is_empty() && flag != says) {
            let text = format!(
                "--{what} is {flag:?}, but the token is for the {what} {says:?}; remove --{what} or use another token"
            );
            return Err(Failure::Usage(text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage<T>(result: Result<T, Failure>) -> String {
        match result {
            Err(Failure::Usage(text)) => text,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted"),
        }
    }

    fn server(token: Option<&str>) -> Server {
        let text = |text: &str| Some(text.to_owned());
        let key = Key { api_key: text("devkey\n"), api_secret: text("a secret of some length\r\n") };
        let token = token.map(str::to_owned);
        Server {
            url: text("ws://127.0.0.1\n"),
            key,
            token,
            root_certificate: None,
            relay_only: false,
            encryption: Encryption::default(),
        }
    }

    fn target(server: &Server, room: &str, identity: &str) -> Result<JoinTarget, Failure> {
        server.target(Some(room), Some(identity), "test", Role::Client)
    }

    #[test]
    fn empty_setting_counts_as_unset() {
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
    fn setting_with_a_line_end_is_trimmed() {
        let signed = target(&server(None), "r", "a").unwrap();
        assert_eq!(signed.url, "ws://127.0.0.1");
        assert_eq!(Claims::from_unverified(&signed.token).unwrap().iss, "devkey");
        let kept = target(&server(Some(&format!("{}\n", signed.token))), "r", "a").unwrap();
        assert_eq!(kept.token, signed.token);
    }

    #[test]
    fn flag_that_contradicts_the_token_is_a_usage_error() {
        let token = target(&server(None), "r", "a").unwrap().token;
        let server = server(Some(&token));
        assert!(server.target(None, None, "test", Role::Client).is_ok());
        assert!(usage(target(&server, "other", "a")).contains("the token is for the room \"r\""));
        assert!(usage(target(&server, "r", "other")).contains("the token is for the identity \"a\""));
    }
}
