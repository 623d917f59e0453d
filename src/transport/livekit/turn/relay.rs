//! One relay: a task that looks for it, gets an address of it, and carries datagrams until nobody wants it any more.

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

/// How long a goodbye may take on a stream that is full.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long a relay may give us no address where another way to it is left: some families lead nowhere, and nobody says
/// so. Two round trips are enough for a yes.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where a relay is and how it is reached.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) url: IceUrl,
    pub(super) credentials: Credentials,
    pub(super) from: Option<IpAddr>,
    pub(super) roots: Vec<CertificateDer<'static>>,
}

/// What a relay is asked for.
pub(super) enum Command {
    /// To let pass what comes from and goes to this address.
    Permit(SocketAddr),
    /// To pass this on.
    Send(SocketAddr, Vec<u8>),
}

/// What a relay tells.
#[derive(Debug)]
pub(super) enum RelayReport {
    /// It gave us addresses. Ours towards it is the second.
    Opened(Vec<SocketAddr>, SocketAddr),
    /// A datagram came through it from there.
    Datagram(SocketAddr, Vec<u8>),
    /// It will not reach this address.
    Denied(SocketAddr, RelayError),
    /// It cannot be used, or not any more.
    Failed(RelayError),
}

/// A report, and of which attempt at which relay it is.
#[derive(Debug)]
pub(super) struct Reported {
    pub(super) number: usize,
    pub(super) attempt: u64,
    pub(super) report: RelayReport,
}

/// Where reports of a relay go: all of them share one queue.
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

/// Runs until the relay fails, or its commands end.
pub(super) async fn run(place: Place, mut commands: mpsc::Receiver<Command>, reports: Reports) {
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

/// Uses the first address of the relay at which it gives us one. Why there is none, or not any more; nothing if nobody
/// wants it any more.
pub(super) async fn try_each(
    addresses: &[SocketAddr],
    patience: Duration,
    place: &Place,
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
                let patience = (at + 1 < addresses.len()).then_some(patience);
                match carry(connection, place, patience, &mut peers, commands, reports).await {
                    Carried::Unwanted => return None,
                    Carried::Ended(error) => return Some(error),
                    Carried::Nothing(error) => error,
                }
            }
        };
        tracing::debug!(relay = %place.url, %remote, %error, "an address of a relay cannot be used");
        // A family that we do not have at all says less than the other.
        if why.is_none() || !matches!(error, RelayError::Unreachable(_)) {
            why = Some(error);
        }
    }
    Some(why.unwrap_or_else(|| RelayError::NotFound("no address of a kind that we have".into())))
}

/// Does something, and notes meanwhile who is to be permitted. Nothing, if nobody waits for the relay any more.
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

/// How it went with one address of a relay.
enum Carried {
    /// Nobody wants the relay any more.
    Unwanted,
    /// The relay said no, or is gone.
    Ended(RelayError),
    /// Nothing was heard there, so another address may be better.
    Nothing(RelayError),
}

/// Carries datagrams both ways. With `patience` it waits only so long for an address of the relay's. The peers are to
/// be permitted, and are kept for the next attempt.
async fn carry(
    connection: RelayConnection,
    place: &Place,
    patience: Option<Duration>,
    peers: &mut Vec<SocketAddr>,
    commands: &mut mpsc::Receiver<Command>,
    reports: &Reports,
) -> Carried {
    let RelayConnection { mut reader, mut writer, local, remote } = connection;
    let (now, mut seed) = (Instant::now(), [0; 32]);
    if let Err(error) = getrandom::fill(&mut seed) {
        return Carried::Ended(RelayError::Unreachable(format!(
            "this system gives no random numbers: {error}"
        )));
    }
    let is_stream = reader.is_stream();
    let mut relay = Allocation::new(now, is_stream, place.credentials.clone(), Ids::new(seed));
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
    // The next thing to be told. Until there is room for it nothing more is read.
    let mut report = None;
    loop {
        // What was read is taken frame by frame, each when the one before was told.
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
                    tracing::debug!(relay = %place.url, %remote, ?relayed, "a relay gave an address");
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
                // The answer to an earlier datagram: nobody listens there now. It may be there again.
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
                        // What it asked for goes before what needs it.
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
            // Also when the stream takes nothing, and so no commands are read.
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
