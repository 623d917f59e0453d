//! Finds out why a room cannot be joined: takes the steps of a join one by one, and explains each failure.
//!
//! `probe` and `joins` take the steps, `explain` explains what they find.

use std::{fmt, net::SocketAddr, time::Duration};

use livekit_token::Claims;
use tokio::time;

use crate::{
    livekit::{AccessKey, ConnectError, ConnectOptions, LiveKitTransport, signaling::refusal::TokenRefusal},
    net::host,
    transport::Transport,
};

mod check;
mod explain;
mod joins;
mod probe;
mod signature;

pub use check::{Check, CheckStatus};

use check::{Finding, STEPS, Step};
use explain::{network, room::Path};
use joins::{Joiner, Permissions};
use probe::Probe;
use signature::Signature;

/// The extra time that a step may take beyond its attempts, so that it can leave the room in an orderly way.
const GRACE: Duration = Duration::from_secs(5);

/// Checks, step by step, whether a room can be joined and whether packets pass. [`ConnectOptions::diagnose`] creates it.
///
/// A join reports one error for the whole attempt. A diagnosis takes the same steps one by one, with the same proxy and
/// trust settings: it resolves the name, connects, encrypts, asks the server and its clock, reads the token, joins, sends
/// packets over UDP, TCP and a relay, and exchanges data between two participants. A check is skipped if it depends on a
/// failed step. The checks make at most six joins. Dropping the diagnosis leaves the room. `toolbridge doctor` prints the
/// checks of one.
///
/// ```no_run
/// # async fn f() -> Result<(), toolbridge::livekit::ConnectError> {
/// use toolbridge::livekit::ConnectOptions;
///
/// let mut diagnosis = ConnectOptions::new().diagnose("wss://example.livekit.cloud", "token").await?;
/// while let Some(check) = diagnosis.next().await {
///     println!("{check}"); // udp: warning; no answer over UDP from …; UDP 7882 is blocked on the path to the server: …
/// }
/// println!("{}", diagnosis.verdict().await);
/// # Ok(())
/// # }
/// ```
pub struct Diagnosis {
    probe: Probe,
    joiner: Joiner,
    /// The claims of the given token, if it can be read.
    claims: Option<Claims>,
    signature: Signature,
    checks: Vec<Check>,
    /// The steps that failed, and those that were skipped because of them.
    blocked: Vec<Step>,
    /// The addresses of the server, or of its proxy.
    addresses: Vec<SocketAddr>,
    /// By how many seconds the server's clock is ahead of this machine's, if it reports the time.
    ahead: Option<i64>,
    /// The room, from the check of the join to that of the permissions.
    room: Option<LiveKitTransport>,
    /// The permissions of the participant that joined.
    permissions: Option<Permissions>,
    works_directly: bool,
}

impl fmt::Debug for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Diagnosis")
            .field("url", &self.url())
            .field("checks", &self.checks)
            .finish_non_exhaustive()
    }
}

impl Diagnosis {
    /// Creates a diagnosis with a token, or with the key that signs tokens for `room`.
    pub(super) async fn new(
        options: ConnectOptions,
        url: &str,
        token: Option<&str>,
        key: Option<&AccessKey>,
        room: &str,
    ) -> Result<Self, ConnectError> {
        let claims = token.and_then(|token| Claims::from_unverified(token).ok());
        let joiner = Joiner {
            url: url.to_owned(),
            // The check of the encryption warns.
            options: options.warn_unencrypted(|_| {}),
            room: claims.as_ref().map_or(room, |claims| &*claims.video.room).to_owned(),
            token: token.map(str::to_owned),
            key: key.cloned(),
        };
        Ok(Self {
            probe: Probe::new(url, &joiner.options).await?,
            signature: token
                .zip(claims.as_ref())
                .map_or(Signature::NotChecked, |(token, claims)| signature::check(token, claims, None)),
            joiner,
            claims,
            checks: Vec::new(),
            blocked: Vec::new(),
            addresses: Vec::new(),
            ahead: None,
            room: None,
            permissions: None,
            works_directly: false,
        })
    }

    /// Sets the API key that signed the token. Its secret verifies the token's signature, and if that is right, it signs the
    /// token of a second participant, so that data can be exchanged. Default: neither is checked. A diagnosis that was
    /// created with a key ignores this one. The publicly known key `devkey` signs no token for a server on another machine.
    #[must_use]
    pub fn key(mut self, key: &AccessKey) -> Self {
        if let (Some(token), Some(claims)) = (&self.joiner.token, &self.claims) {
            self.signature = signature::check(token, claims, Some(key));
            let may_sign = self.signature == Signature::Right && !key.is_public_at(&self.joiner.url);
            self.joiner.key = may_sign.then(|| key.clone());
        }
        self
    }

    /// Returns the server's URL.
    pub(crate) fn url(&self) -> &str {
        self.probe.url.as_str()
    }

    /// Runs the next check. Returns `None` after the last one.
    ///
    /// A step takes at most three times [`ConnectOptions::join_timeout`], and 5 s for leaving the room.
    ///
    /// # Cancel safety
    /// Dropping the future gives the check up, and the next call begins it again.
    ///
    /// # Panics
    /// Outside a Tokio runtime, or in one without time and I/O.
    pub async fn next(&mut self) -> Option<&Check> {
        let &(step, _, _, needs) = STEPS.get(self.checks.len())?;
        let blocking = needs.iter().find(|need| self.blocked.contains(need));
        let finding = if let Some(need) = blocking {
            self.blocked.push(step);
            Finding::skipped(format!("depends on the step `{}`", STEPS[*need as usize].2))
        } else {
            // A step makes at most three attempts in sequence.
            let limit = 3 * self.limit() + GRACE;
            time::timeout(limit, self.take(step)).await.unwrap_or_else(|_| {
                let advice = "try again, or set a longer `ConnectOptions::join_timeout`";
                Finding::failed("the step did not finish in time", advice)
            })
        };
        if finding.status == CheckStatus::Failed {
            self.blocked.push(step);
        }
        self.checks.push(Check::new(step, finding));
        self.checks.last()
    }

    /// Runs the checks that have not run, and returns the conclusion: whether the server can be used, what to do first if
    /// not, and all warnings.
    ///
    /// # Cancel safety
    /// Dropping the future gives the current check up, and the next call goes on with it.
    ///
    /// # Panics
    /// Outside a Tokio runtime, or in one without time and I/O.
    pub async fn verdict(&mut self) -> String {
        while self.next().await.is_some() {}
        explain::verdict::verdict(&self.checks)
    }

    /// Returns true if all checks have run and none failed: an app on this machine can use the server.
    pub fn works(&self) -> bool {
        let has_failed = self.checks.iter().any(|check| check.status == CheckStatus::Failed);
        self.checks.len() == STEPS.len() && !has_failed
    }

    /// Returns the time limit of an attempt.
    fn limit(&self) -> Duration {
        self.joiner.options.join_timeout
    }

    async fn take(&mut self, step: Step) -> Finding {
        match step {
            Step::Name => self.resolve().await,
            Step::Connection => self.connect().await,
            Step::Tls => self.encrypt().await,
            Step::Http => self.ask().await,
            Step::Clock => network::clock(self.ahead),
            Step::Token => self.read_token(),
            Step::Join => self.join().await,
            Step::Permissions => self.leave().await,
            Step::Udp => self.try_path(Path::Udp).await,
            Step::Tcp => self.try_path(Path::Tcp).await,
            Step::Relay => self.try_relay().await,
            Step::Echo => self.echo().await,
        }
    }

    /// Resolves the name of the server or its proxy.
    async fn resolve(&mut self) -> Finding {
        if let Some(fault) = self.probe.proxy_fault() {
            return network::route(fault, self.limit());
        }
        let (host, is_address) = self.probe.first_host();
        let found = self.probe.resolve().await;
        let finding = network::name(&host, is_address, self.probe.proxy().as_deref(), &found, self.limit());
        self.addresses = found.unwrap_or_default();
        finding
    }

    async fn connect(&mut self) -> Finding {
        let (limit, proxy) = (self.limit(), self.probe.proxy());
        let tried = self.probe.connect(&self.addresses).await;
        match &proxy {
            Some(proxy) if tried.iter().any(|(_, result)| result.is_ok()) => match self.probe.reach().await {
                Ok(()) => Finding::ok(format!("through the proxy {proxy}")),
                Err(fault) => network::route(&fault, limit),
            },
            _ => network::connection(&tried, proxy.as_deref(), limit),
        }
    }

    async fn encrypt(&self) -> Finding {
        if probe::is_encrypted(&self.probe.url) {
            let found = self.probe.encrypt().await;
            return network::tls(
                &self.probe.server().to_string(),
                &found,
                probe::unix_seconds(),
                self.limit(),
            );
        }
        let is_here = self.probe.proxy().is_none() && self.addresses.iter().all(|it| host::is_own(it.ip()));
        network::not_encrypted(is_here)
    }

    /// Asks what answers at the address, and its clock.
    async fn ask(&mut self) -> Finding {
        let (front, check) = tokio::join!(self.probe.get("/", None), self.probe.get("/rtc/validate", None));
        self.ahead = [&check, &front].into_iter().find_map(|it| it.as_ref().ok().and_then(|it| it.ahead));
        network::http(&front, &check, probe::is_encrypted(&self.probe.url), self.limit())
    }

    fn read_token(&self) -> Finding {
        if self.joiner.token.is_some() {
            let now = probe::unix_seconds() + self.ahead.unwrap_or(0);
            return explain::token::given(self.claims.as_ref(), &self.signature, now);
        }
        explain::token::made(self.joiner.key.as_ref().map_or("", AccessKey::key), &self.joiner.room)
    }

    async fn join(&mut self) -> Finding {
        match self.joiner.join("joins", self.joiner.options.clone()).await {
            Ok(room) => {
                let finding = explain::room::joined(&room.room(), room.local().identity().as_str());
                self.permissions = Some(joins::permissions(&room, self.joiner.token.as_deref()));
                self.room = Some(room);
                finding
            }
            Err(error) => {
                let why = match &error {
                    ConnectError::Unauthorized { reason: TokenRefusal::Unknown, .. } => self.refusal().await,
                    ConnectError::Unauthorized { reason, .. } => *reason,
                    _ => TokenRefusal::Unknown,
                };
                explain::room::not_joined(&error, why, self.joiner.token.is_none())
            }
        }
    }

    /// Asks the server why it refused the token.
    async fn refusal(&self) -> TokenRefusal {
        let Some(token) = self.joiner.any_token() else { return TokenRefusal::Unknown };
        let answer = self.probe.get("/rtc/validate", Some(&token)).await;
        answer.map_or(TokenRefusal::Unknown, |answer| TokenRefusal::read(&answer.body))
    }

    /// Checks the permissions, and leaves the room: the next join may use the same identity.
    async fn leave(&mut self) -> Finding {
        if let Some(mut room) = self.room.take() {
            room.close().await;
        }
        match &self.permissions {
            Some(permissions) => explain::room::permissions(permissions, self.joiner.token.is_none()),
            None => Finding::skipped("permissions are known only after a path for packets was found"),
        }
    }

    async fn try_path(&mut self, path: Path) -> Finding {
        if self.joiner.options.relay_only {
            return Finding::skipped("`ConnectOptions::relay_only` is set");
        }
        let options = self.joiner.options.clone().direct_only();
        let result = match path {
            Path::Udp => self.joiner.try_path("udp", options.udp_only()).await,
            Path::Tcp => self.joiner.try_path("tcp", options.tcp_only()).await,
        };
        self.works_directly |= result.is_ok();
        let is_known = self.probe.proxy().is_none();
        let ips: Vec<_> = self.addresses.iter().filter(|_| is_known).map(SocketAddr::ip).collect();
        explain::room::path(path, &result, self.permissions.is_some(), &ips)
    }

    async fn try_relay(&self) -> Finding {
        let result = self.joiner.try_path("relay", self.joiner.options.clone().relay_only()).await;
        explain::room::relay(&result, self.works_directly)
    }

    async fn echo(&self) -> Finding {
        match (&self.joiner.key, &self.permissions) {
            (_, None) => Finding::skipped("no path for packets was found"),
            (_, Some(permissions)) if !permissions.may_send => {
                Finding::skipped("the token does not allow sending data")
            }
            (None, _) => {
                Finding::skipped("a second participant needs the API key and secret that signed the token")
            }
            (Some(key), _) => match self.joiner.echo(key).await {
                Ok(echoes) => explain::room::echo(&echoes),
                Err(error) => explain::room::no_echo(&error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closed_port_fails_its_check_and_those_that_depend_on_it_are_skipped() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let key = AccessKey::new("devkey", "secretsecretsecretsecretsecretsecret");
        let url = format!("ws://127.0.0.1:{port}");
        let mut diagnosis = ConnectOptions::new().diagnose_with_key(&url, &key, "kitchen").await.unwrap();
        // In a task: the futures are `Send`.
        let checks = tokio::spawn(async move {
            let mut checks = Vec::new();
            while let Some(check) = diagnosis.next().await {
                checks.push((check.name, check.status));
            }
            let (verdict, works) = (diagnosis.verdict().await, diagnosis.works());
            assert!(!works && verdict.contains(&format!("{port} refuses the connection")), "{verdict}");
            checks
        });
        let [name, connection, tls, http, clock, token, rest @ ..] = &checks.await.unwrap()[..] else {
            panic!()
        };
        assert_eq!(*connection, ("connection", CheckStatus::Failed));
        assert!([name, token].iter().all(|(_, status)| *status == CheckStatus::Ok));
        let mut skipped = [tls, http, clock].into_iter().chain(rest);
        assert!(skipped.all(|(_, status)| *status == CheckStatus::Skipped));
    }
}
