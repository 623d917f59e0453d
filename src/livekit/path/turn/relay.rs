//! Runs one relay: a task that connects to it, allocates an address, and carries datagrams until it is no
//! longer needed.

use std::{
    future::{Future, pending},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rustls::pki_types::CertificateDer;
use tokio::{sync::mpsc, time};

use super::{
    allocation::{Allocation, Event, Ids, MAX_PEERS},
    connection::{self, RelayConnection},
    credentials::Credentials,
    error::RelayError,
    url::IceUrl,
};

/// The time limit of the release on a full stream.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long to wait for an allocation while another address of the relay is left: some address families do not work,
/// without any error. Two round trips suffice for a success.
const PATIENCE: Duration = Duration::from_secs(3);

/// The URL of a relay and how to reach it.
#[derive(Clone, Debug)]
pub(super) struct RelayConfig {
    pub(super) url: IceUrl,
    pub(super) credentials: Credentials,
    pub(super) from: Option<IpAddr>,
    pub(super) roots: Vec<CertificateDer<'static>>,
}

/// A command to a relay's task.
pub(super) enum Command {
    /// Allow datagrams from and to this address.
    Permit(SocketAddr),
    /// Send a datagram to this address.
    Send(SocketAddr, Vec<u8>),
}

/// An event of a relay's task.
#[derive(Debug)]
pub(super) enum RelayReport {
    /// The relay has allocated addresses; the second field is the local address of the connection to it.
    Opened(Vec<SocketAddr>, SocketAddr),
    /// A datagram from this address arrived through the relay.
    Datagram(SocketAddr, Vec<u8>),
    /// The relay refuses to reach this address.
    Denied(SocketAddr, RelayError),
    /// The relay cannot be used, or no longer.
    Failed(RelayError),
}

/// A report, with the relay and the attempt that it belongs to.
#[derive(Debug)]
pub(super) struct Reported {
    pub(super) number: usize,
    pub(super) attempt: u64,
    pub(super) report: RelayReport,
}

/// Sends the reports of a relay: all relays share one queue.
pub(super) struct Reports {
    pub(super) number: usize,
    pub(super) attempt: u64,
    pub(super) queue: mpsc::Sender<Reported>,
}

impl Reports {
    fn signed(&self, report: RelayReport) -> Reported {
        Reported { number: self.number, attempt: self.attempt, report }
    }
}

/// Runs until the relay fails, or its command channel closes.
pub(super) async fn run(place: RelayConfig, mut commands: mpsc::Receiver<Command>, reports: Reports) {
    let mut peers = Vec::new();
    let found = noting(connection::resolve(&place.url, place.from), &mut commands, &mut peers).await;
    let ended = match found {
        None => None,
        Some(Err(error)) => Some(error),
        Some(Ok(addresses)) => try_each(&addresses, PATIENCE, &place, peers, &mut commands, &reports).await,
    };
    if let Some(error) = ended {
        tracing::debug!(relay = %place.url, %error, "a relay cannot be used");
        let _ = reports.queue.send(reports.signed(RelayReport::Failed(error))).await;
    }
}

/// Uses the first address of the relay that allocates. Returns why none does, or no longer; `None` if the relay is no
/// longer needed.
pub(super) async fn try_each(
    addresses: &[SocketAddr],
    patience: Duration,
    place: &RelayConfig,
    mut peers: Vec<SocketAddr>,
    commands: &mut mpsc::Receiver<Command>,
    reports: &Reports,
) -> Option<RelayError> {
    let mut why = None;
    for (at, remote) in addresses.iter().enumerate() {
        let opening = connection::open(&place.url, *remote, place.from, &place.roots);
        let error = match noting(opening, commands, &mut peers).await? {
            Err(error) => error,
            Ok(connection) => {
                // The last address has the whole time of its request: there is nothing better to do with it.
                let patience = (at + 1 < addresses.len()).then_some(patience);
                match carry(connection, place, patience, &mut peers, commands, reports).await {
                    Carried::Unwanted => return None,
                    Carried::Ended(error) => return Some(error),
                    Carried::Nothing(error) => error,
                }
            }
        };
        tracing::debug!(relay = %place.url, %remote, %error, "an address of a relay cannot be used");
        // An address family that this machine lacks is the less informative error.
        if why.is_none() || !matches!(error, RelayError::Unreachable(_)) {
            why = Some(error);
        }
    }
    Some(why.unwrap_or_else(|| RelayError::NotFound("no address of a supported family".into())))
}

/// Runs a future and meanwhile collects the addresses to permit. Returns `None` if the relay is no longer needed.
async fn noting<T>(
    work: impl Future<Output = T>,
    commands: &mut mpsc::Receiver<Command>,
    peers: &mut Vec<SocketAddr>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            command = commands.recv() => note(&command?, peers),
        }
    }
}

fn note(command: &Command, peers: &mut Vec<SocketAddr>) {
    match command {
        Command::Permit(peer) if peers.len() < MAX_PEERS => peers.push(*peer),
        // Nothing can be sent yet.
        Command::Permit(_) | Command::Send(..) => {}
    }
}

/// The result of one address of a relay.
enum Carried {
    /// The relay is no longer needed.
    Unwanted,
    /// The relay refused, or its connection ended.
    Ended(RelayError),
    /// No response arrived, so another address may be better.
    Nothing(RelayError),
}

/// Carries datagrams in both directions. `patience` limits the wait for the allocation. `peers` are to be permitted,
/// and are kept for the next attempt.
async fn carry(
    connection: RelayConnection,
    place: &RelayConfig,
    patience: Option<Duration>,
    peers: &mut Vec<SocketAddr>,
    commands: &mut mpsc::Receiver<Command>,
    reports: &Reports,
) -> Carried {
    let RelayConnection { mut reader, mut writer, local, remote } = connection;
    let (now, mut seed) = (Instant::now(), [0; 32]);
    if let Err(error) = getrandom::fill(&mut seed) {
        return Carried::Ended(RelayError::Unreachable(format!("no random numbers available: {error}")));
    }
    let is_stream = reader.is_stream();
    let mut relay = Allocation::new(now, is_stream, place.credentials.clone(), Ids::new(seed));
    // Collected while the connection opened. The server's candidates come only once, so none of them may be
    // lost to a relay that is slow.
    for peer in peers.iter() {
        relay.permit(now, *peer);
    }
    let mut patience = std::pin::pin!(async {
        match patience {
            Some(patience) => time::sleep(patience).await,
            None => pending().await,
        }
        patience.unwrap_or_default()
    });
    let (mut buffer, mut is_open) = (BytesMut::new(), false);
    // The next report. Until there is room for it, nothing more is read.
    let mut report = None;
    loop {
        // Handles the bytes frame by frame, each after the previous one was reported.
        while report.is_none() {
            let frame = match reader.take(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Carried::Ended(error),
            };
            report = relay
                .handle(Instant::now(), &frame)
                .map(|(peer, datagram)| RelayReport::Datagram(peer, datagram.to_vec()));
        }
        while let Some(frame) = relay.poll_transmit() {
            writer.push(&frame);
        }
        if report.is_none() {
            report = match relay.poll_event() {
                None => None,
                Some(Event::Failed(error @ RelayError::Silent(_))) if !is_open => {
                    return Carried::Nothing(error);
                }
                Some(Event::Failed(error)) => return Carried::Ended(error),
                Some(Event::Denied(peer, error)) => Some(RelayReport::Denied(peer, error)),
                Some(Event::Opened(relayed)) => {
                    tracing::debug!(relay = %place.url, %remote, ?relayed, "a relay allocated an address");
                    is_open = true;
                    Some(RelayReport::Opened(relayed, local))
                }
            };
        }
        let due = relay.poll_timeout();
        tokio::select! {
            permit = reports.queue.reserve(), if report.is_some() => match permit {
                Ok(permit) => if let Some(report) = report.take() { permit.send(reports.signed(report)) },
                Err(_) => break,
            },
            read = reader.read(&mut buffer), if report.is_none() => match read {
                Ok(()) => {}
                // An ICMP error for an earlier datagram: the port is closed now. It may open again.
                Err(_) if is_open && !is_stream => {}
                Err(error) if is_open => return Carried::Ended(RelayError::Closed(error.to_string())),
                Err(error) => return Carried::Nothing(RelayError::Unreachable(error.to_string())),
            },
            written = writer.flush(), if writer.waits() => if let Err(error) = written {
                let error = RelayError::Closed(error.to_string());
                return if is_open { Carried::Ended(error) } else { Carried::Nothing(error) };
            },
            command = commands.recv(), if writer.has_room() => match command {
                Some(Command::Permit(peer)) => {
                    relay.permit(Instant::now(), peer);
                    note(&Command::Permit(peer), peers);
                }
                Some(Command::Send(to, datagram)) => {
                    if let Some(frame) = relay.send(Instant::now(), to, &datagram) {
                        // Requests are written before the datagrams that need them.
                        while let Some(request) = relay.poll_transmit() {
                            writer.push(&request);
                        }
                        writer.push(&frame);
                    }
                }
                None => break,
            },
            waited = &mut patience, if !is_open => return Carried::Nothing(RelayError::Silent(waited)),
            () = until(due) => relay.handle_timeout(Instant::now()),
            // Also detected when the stream is blocked, so that no commands are read.
            () = reports.queue.closed() => break,
        }
    }
    if let Some(goodbye) = relay.release() {
        writer.push(&goodbye);
        let _ = time::timeout(GOODBYE, writer.flush()).await;
    }
    Carried::Unwanted
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => time::sleep_until(due.into()).await,
        None => pending().await,
    }
}
