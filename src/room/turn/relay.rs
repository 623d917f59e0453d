//! One relay: a task that looks for it, gets an address of it, and carries datagrams until nobody wants it any more.

use std::{
    future::pending,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use rustls::pki_types::CertificateDer;
use tokio::{sync::mpsc, time};

use super::{
    allocation::{Allocation, Event, Ids, MAX_PEERS},
    credentials::Credentials,
    error::RelayError,
    line::{self, Line},
    url::IceUrl,
};

/// How long a goodbye may take on a stream that is full.
const GOODBYE: Duration = Duration::from_secs(1);

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
pub(super) enum Report {
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
    pub(super) report: Report,
}

/// Where reports of a relay go: all of them share one queue.
pub(super) struct Reports {
    pub(super) number: usize,
    pub(super) attempt: u64,
    pub(super) queue: mpsc::Sender<Reported>,
}

impl Reports {
    fn signed(&self, report: Report) -> Reported {
        Reported { number: self.number, attempt: self.attempt, report }
    }
}

/// Runs until the relay fails, or its commands end.
pub(super) async fn run(place: Place, mut commands: mpsc::Receiver<Command>, reports: Reports) {
    let ended = match find(&place, &mut commands).await {
        Found::Line(line, peers) => carry(line, &place, peers, &mut commands, &reports).await,
        Found::Nothing(error) => Some(error),
        Found::Unwanted => None,
    };
    if let Some(error) = ended {
        tracing::debug!(relay = %place.url, %error, "a relay cannot be used");
        let _ = reports.queue.send(reports.signed(Report::Failed(error))).await;
    }
}

enum Found {
    Line(Line, Vec<SocketAddr>),
    Nothing(RelayError),
    /// Nobody waits for it any more.
    Unwanted,
}

/// Opens the connection, and notes meanwhile who is to be permitted.
async fn find(place: &Place, commands: &mut mpsc::Receiver<Command>) -> Found {
    let opening = line::open(&place.url, place.from, &place.roots);
    let (mut opening, mut peers) = (std::pin::pin!(opening), Vec::new());
    loop {
        tokio::select! {
            opened = &mut opening => return match opened {
                Ok(line) => Found::Line(line, peers),
                Err(error) => Found::Nothing(error),
            },
            command = commands.recv() => match command {
                Some(Command::Permit(peer)) if peers.len() < MAX_PEERS => peers.push(peer),
                Some(_) => {}
                None => return Found::Unwanted,
            },
        }
    }
}

/// Carries datagrams both ways. Why it ended; none if nobody wants it any more.
async fn carry(
    line: Line,
    place: &Place,
    peers: Vec<SocketAddr>,
    commands: &mut mpsc::Receiver<Command>,
    reports: &Reports,
) -> Option<RelayError> {
    let Line { mut reader, mut writer, local, remote } = line;
    let (now, mut seed) = (Instant::now(), [0; 32]);
    if let Err(error) = getrandom::fill(&mut seed) {
        return Some(RelayError::Unreachable(format!("this system gives no random numbers: {error}")));
    }
    let is_stream = reader.is_stream();
    let mut relay = Allocation::new(now, is_stream, place.credentials.clone(), Ids::new(seed));
    for peer in peers {
        relay.permit(now, peer);
    }
    let (mut buffer, mut is_open) = (BytesMut::new(), false);
    // The next thing to be told. Until there is room for it nothing more is read.
    let mut report = None;
    loop {
        // What was read is taken frame by frame, each when the one before was told.
        while report.is_none() {
            let frame = match reader.take(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Some(error),
            };
            report = relay
                .handle(Instant::now(), &frame)
                .map(|(peer, datagram)| Report::Datagram(peer, datagram.to_vec()));
        }
        while let Some(frame) = relay.poll_transmit() {
            writer.push(&frame);
        }
        if report.is_none() {
            report = match relay.poll_event() {
                None => None,
                Some(Event::Failed(error)) => return Some(error),
                Some(Event::Denied(peer, error)) => Some(Report::Denied(peer, error)),
                Some(Event::Opened(relayed)) => {
                    tracing::debug!(relay = %place.url, %remote, ?relayed, "a relay gave an address");
                    is_open = true;
                    Some(Report::Opened(relayed, local))
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
                Err(error) if is_open => return Some(RelayError::Closed(error.to_string())),
                Err(error) => return Some(RelayError::Unreachable(error.to_string())),
            },
            written = writer.flush(), if writer.waits() => if let Err(error) = written {
                return Some(RelayError::Closed(error.to_string()));
            },
            command = commands.recv(), if writer.has_room() => match command {
                Some(Command::Permit(peer)) => relay.permit(Instant::now(), peer),
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
            () = until(due) => relay.handle_timeout(Instant::now()),
            // Also when the stream takes nothing, and so no commands are read.
            () = reports.queue.closed() => break,
        }
    }
    if let Some(goodbye) = relay.release() {
        writer.push(&goodbye);
        let _ = time::timeout(GOODBYE, writer.flush()).await;
    }
    None
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => time::sleep_until(due.into()).await,
        None => pending().await,
    }
}
