//! `toolbridge doctor`: runs the connection steps of an app one by one and explains each failure.
//!
//! The library's probe and `joins` run each step, `diagnosis` explains the result, and `printer` prints it. A step that
//! depends on a failed step is skipped.

use std::{net::SocketAddr, time::Duration};

use crate::cli::{
    room::connect::{Server, agrees},
    terminal::{clock, failure::Failure, interrupt::unless_interrupted},
};
use clap::Args;
use livekit_token::Claims;
use tokio::time::{Instant, timeout};
use toolbridge::{
    cli_support::is_own,
    livekit::{ConnectError, TokenRefusal, probe::Probe},
    transport::Transport as _,
};

mod diagnosis;
mod joins;
mod printer;
mod step;
mod token;

use diagnosis::{network, room::Path};
use joins::Joiner;
use printer::Printer;
use step::{State, Step, StepReport};

/// The notes at the end of `--help`.
const AFTERWORD: &str = "\
With a token, doctor joins under the token's identity, which disconnects a participant that uses
the same identity. With an API key, it joins as new participants, in a new room unless --room is
given. Exit status: 0 the server works, 1 it does not, 2 usage error.";

/// The extra time that a step may take beyond its attempts, so that it can leave the room in an orderly way.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD)]
pub(in crate::cli) struct Arguments {
    /// Room to join [default: the token's room, or a new one]
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    #[command(flatten)]
    server: Server,

    /// Time limit of each attempt, from 1ms to 10m
    #[arg(long, default_value = "10s", value_parser = clock::limit, value_name = "TIME")]
    limit: Duration,

    /// Print one JSON object per line: each step, then the verdict
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    arguments.server.is_enough()?;
    let address = arguments.server.url()?;
    let token = arguments.server.token().map(str::to_owned);
    if let Some(token) = &token {
        agrees(token, arguments.room.as_deref(), None)?;
    }
    let claims = token.as_ref().and_then(|token| Claims::from_unverified(token).ok());
    let key = match (&token, &claims) {
        (None, _) => Some(arguments.server.key_for(address)?),
        // A second participant needs the key that signed the token.
        (Some(token), Some(claims)) => {
            let signature = token::signature(token, claims, arguments.server.signer());
            let key = arguments.server.key_for(address).ok();
            key.filter(|_| signature == token::Signature::Right)
        }
        (Some(_), None) => None,
    };
    let named = claims.as_ref().map(|claims| claims.video.room.clone());
    let own = || format!("toolbridge-doctor-{}", nanoid::nanoid!(8));
    let room = named.or_else(|| arguments.room.clone()).unwrap_or_else(own);
    let (limit, options) = (arguments.limit, arguments.server.connect_options()?.warn_unencrypted(|_| {}));
    let probe = Probe::new(address, &options, limit).await.map_err(Failure::usage)?;
    let joiner = Joiner { url: address.to_owned(), options, room, token, key, limit };
    let printer = Printer { json: arguments.json };
    let mut doctor = Doctor { printer, limit, steps: Vec::new(), blocked: Vec::new() };
    unless_interrupted(doctor.examine(&arguments.server, probe, claims.as_ref(), &joiner)).await
}

/// A running check.
struct Doctor {
    printer: Printer,
    limit: Duration,
    steps: Vec<(Step, StepReport)>,
    /// The steps that failed, and those that were skipped because of them.
    blocked: Vec<Step>,
}

impl Doctor {
    async fn examine(
        &mut self,
        server: &Server,
        mut probe: Probe,
        claims: Option<&Claims>,
        joiner: &Joiner,
    ) -> Result<(), Failure> {
        self.printer.title(probe.url())?;
        let addresses = self.reach(&mut probe).await?;
        let ahead = self.meet(&probe).await?;
        let now = seconds() + ahead.unwrap_or(0);
        self.take(Step::Token, async {
            let report = match (&joiner.token, &joiner.key) {
                (Some(token), _) => {
                    let looked = claims.map(|claims| token::signature(token, claims, server.signer()));
                    let signature = looked.unwrap_or(token::Signature::NotChecked);
                    diagnosis::token::given(claims, &signature, now)
                }
                (None, key) => diagnosis::token::made(key.as_ref().map_or("", |key| key.key()), &joiner.room),
            };
            (report, ())
        })
        .await?;
        self.enter(server, &probe, &addresses, joiner).await?;
        let verdict = diagnosis::verdict::verdict(&self.steps);
        self.printer.verdict(&verdict)?;
        if verdict.works { Ok(()) } else { Err(Failure::Reported(Failure::FAILED)) }
    }

    /// Checks name, connection and TLS of the server or its proxy. Returns the server's addresses.
    async fn reach(&mut self, probe: &mut Probe) -> Result<Vec<SocketAddr>, Failure> {
        let (limit, proxy) = (self.limit, probe.proxy());
        let named = self.take(Step::Name, async {
            if let Some(fault) = probe.proxy_fault() {
                return (network::route(fault, limit), Vec::new());
            }
            let (host, is_address) = probe.first_host();
            let found = probe.resolve().await;
            (network::name(&host, is_address, proxy.as_deref(), &found, limit), found.unwrap_or_default())
        });
        let addresses = named.await?.unwrap_or_default();

        let reached = self.take(Step::Connection, async {
            let tried = probe.connect(&addresses).await;
            let report = network::connection(&tried, proxy.as_deref(), limit);
            let report = match &proxy {
                Some(proxy) if tried.iter().any(|(_, result)| result.is_ok()) => match probe.reach().await {
                    Ok(()) => StepReport::ok(format!("through the proxy {proxy}")),
                    Err(fault) => network::route(&fault, limit),
                },
                _ => report,
            };
            (report, ())
        });
        reached.await?;

        self.take(Step::Tls, async {
            if !probe.is_encrypted() {
                let is_here = proxy.is_none() && addresses.iter().all(|it| is_own(it.ip()));
                return (plain(is_here), ());
            }
            (network::tls(&probe.host(), &probe.encrypt().await, seconds(), limit), ())
        })
        .await?;
        Ok(if proxy.is_none() { addresses } else { Vec::new() })
    }

    /// Checks what answers at the address, and its clock.
    async fn meet(&mut self, probe: &Probe) -> Result<Option<i64>, Failure> {
        let (limit, encrypted) = (self.limit, probe.is_encrypted());
        let asked = self.take(Step::Http, async {
            let (front, check) = tokio::join!(probe.get("/", None), probe.get("/rtc/validate", None));
            let ahead = [&check, &front].into_iter().find_map(|it| it.as_ref().ok().and_then(|it| it.ahead));
            (network::http(&front, &check, encrypted, limit), ahead)
        });
        let ahead = asked.await?.flatten();
        self.take(Step::Clock, async { (network::clock(ahead), ()) }).await?;
        Ok(ahead)
    }

    /// Checks the join, the network paths and the data channels.
    async fn enter(
        &mut self,
        server: &Server,
        probe: &Probe,
        addresses: &[SocketAddr],
        joiner: &Joiner,
    ) -> Result<(), Failure> {
        let made_here = joiner.token.is_none();
        let joined = self.take(Step::Join, async {
            match joiner.join("joins", joiner.options.clone()).await {
                Ok(room) => {
                    (diagnosis::room::joined(&room.room(), room.local().identity().as_str()), Some(room))
                }
                Err(error) => {
                    let why = match &error {
                        ConnectError::Unauthorized { reason: TokenRefusal::Unknown, .. } => {
                            refusal(probe, joiner).await
                        }
                        ConnectError::Unauthorized { reason, .. } => *reason,
                        _ => TokenRefusal::Unknown,
                    };
                    (diagnosis::room::not_joined(&error, why, made_here), None)
                }
            }
        });
        let room = joined.await?.flatten();
        let works = room.is_some();
        let permissions = room.as_ref().map(joins::permissions);
        self.take(Step::Permissions, async {
            let report = match &permissions {
                Some(permissions) => diagnosis::room::permissions(permissions, made_here),
                None => StepReport::skipped("permissions are known only after a path for packets was found"),
            };
            // The next join may use the same identity.
            if let Some(mut room) = room {
                room.close().await;
            }
            (report, ())
        })
        .await?;

        let mut works_directly = false;
        let ips: Vec<_> = addresses.iter().map(SocketAddr::ip).collect();
        for (step, path, word, options) in [
            (Step::Udp, Path::Udp, "udp", joiner.options.clone().udp_only().direct_only()),
            (Step::Tcp, Path::Tcp, "tcp", joiner.options.clone().tcp_only().direct_only()),
        ] {
            let tried = self.take(step, async {
                if server.relay_only {
                    return (StepReport::skipped("--relay-only was given"), false);
                }
                let result = joiner.try_path(word, options).await;
                (diagnosis::room::path(path, &result, works, &ips), result.is_ok())
            });
            works_directly |= tried.await?.unwrap_or_default();
        }

        self.take(Step::Relay, async {
            let result = joiner.try_path("relay", joiner.options.clone().relay_only()).await;
            (diagnosis::room::relay(&result, works_directly), ())
        })
        .await?;

        self.take(Step::Echo, async {
            let report = match (&joiner.key, &permissions) {
                (_, None) => StepReport::skipped("no path for packets was found"),
                (_, Some(permissions)) if !permissions.may_send => {
                    StepReport::skipped("the token does not allow sending data")
                }
                (None, _) => StepReport::skipped(
                    "a second participant needs the API key and secret that signed the token",
                ),
                (Some(key), _) => match joiner.echo(key).await {
                    Ok(echoes) => diagnosis::room::echo(&echoes),
                    Err(error) => diagnosis::room::no_echo(&error),
                },
            };
            (report, ())
        })
        .await?;
        Ok(())
    }

    /// Runs a step, unless a step that it depends on failed, and prints the result.
    async fn take<T>(
        &mut self,
        step: Step,
        work: impl Future<Output = (StepReport, T)>,
    ) -> Result<Option<T>, Failure> {
        let began = Instant::now();
        let (report, value) = match step.needs().iter().find(|need| self.blocked.contains(need)) {
            Some(need) => {
                self.blocked.push(step);
                (StepReport::skipped(format!("depends on the step `{}`", need.title())), None)
            }
            // A step makes at most three attempts in sequence.
            None => match timeout(3 * self.limit + GRACE, work).await {
                Ok((report, value)) => (report, Some(value)),
                Err(_) => {
                    let advice = "try again, or pass a longer --limit";
                    (StepReport::failed("the step did not finish in time", advice), None)
                }
            },
        };
        if report.state == State::Failed {
            self.blocked.push(step);
        }
        self.printer.step(step, &report, began.elapsed())?;
        self.steps.push((step, report));
        Ok(value)
    }
}

/// Asks the server why it refused the token.
async fn refusal(probe: &Probe, joiner: &Joiner) -> TokenRefusal {
    let Some(token) = joiner.any_token() else { return TokenRefusal::Unknown };
    let answer = probe.get("/rtc/validate", Some(&token)).await;
    answer.map_or(TokenRefusal::Unknown, |answer| TokenRefusal::read(&answer.body))
}

fn plain(is_here: bool) -> StepReport {
    if is_here {
        return StepReport::skipped("ws:// is not encrypted, which is safe on this machine");
    }
    StepReport::warning(
        "ws:// is not encrypted: anyone on the network path can read and use the token",
        "use wss:// with a certificate, except on a network that you trust",
    )
}

/// Seconds since 1970.
fn seconds() -> i64 {
    i64::try_from(clock::unix_millis() / 1000).unwrap_or(i64::MAX)
}
