//! Carries ICE over TCP. Clients connect, and datagrams are framed with a two-byte length ([RFC
//! 4571](https://www.rfc-editor.org/rfc/rfc4571)).
//!
//! Each connection has its own task and bounded queues. A datagram that does not fit is dropped.

use std::{collections::HashMap, io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinSet,
    time::{self, Instant},
};

use crate::net::{
    connections::{Connection, HalfOpen, WRITE_LIMIT},
    host,
};

/// The maximum number of connections; others wait.
const MAX_CONNECTIONS: usize = 128;
/// The maximum number of connections without a datagram. Beyond it the oldest is closed, so that idle connections cannot
/// block others.
const MAX_HALF_OPEN: usize = 32;
/// The maximum frame size, in bytes: several DTLS records.
const MAX_FRAME: usize = 8192;
/// The maximum number of datagrams queued for a connection.
const WRITE_QUEUE: usize = 256;
/// The maximum number of received datagrams, of all connections, that wait for the server.
const READ_QUEUE: usize = 256;
/// The pause after a failed `accept`, for example when no socket is available.
const PAUSE: Duration = Duration::from_millis(50);
/// The idle timeout. A connected client sends every few seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// An event of a connection.
#[derive(Debug)]
pub(super) enum TcpEvent {
    /// A datagram was received.
    Datagram(SocketAddr, Vec<u8>),
    /// The connection ended.
    Closed(SocketAddr),
}

/// The listener and its connections. Dropping it closes them.
#[derive(Debug)]
pub(super) struct IceTcp {
    listener: TcpListener,
    writers: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>,
    half_open: HalfOpen,
    tasks: JoinSet<()>,
    events: mpsc::Receiver<TcpEvent>,
    sender: mpsc::Sender<TcpEvent>,
    /// When to accept again after a failure.
    pause: Option<Instant>,
}

impl IceTcp {
    pub(super) fn new(listener: TcpListener) -> Self {
        let (sender, events) = mpsc::channel(READ_QUEUE);
        let half_open = HalfOpen::new(MAX_HALF_OPEN);
        Self {
            listener,
            writers: HashMap::new(),
            half_open,
            tasks: JoinSet::new(),
            events,
            sender,
            pause: None,
        }
    }

    /// Returns the next event.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(super) async fn next(&mut self) -> TcpEvent {
        loop {
            let accepts = self.writers.len() < MAX_CONNECTIONS && self.pause.is_none();
            tokio::select! {
                accepted = self.listener.accept(), if accepts => self.handle_accepted(accepted),
                () = time::sleep_until(self.pause.unwrap_or_else(Instant::now)), if self.pause.is_some() => {
                    self.pause = None;
                }
                Some(event) = self.events.recv() => {
                    if let TcpEvent::Closed(from) = &event {
                        self.writers.remove(from);
                    }
                    while self.tasks.try_join_next().is_some() {}
                    return event;
                }
            }
        }
    }

    fn handle_accepted(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        match accepted {
            Ok((stream, from)) if host::is_own(from.ip()) => self.carry(stream, from),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "accepting an ICE connection over TCP failed");
                self.pause = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// Sends a datagram. It is dropped if the queue is full.
    pub(super) fn send(&self, to: SocketAddr, datagram: Vec<u8>) {
        if let Some(writer) = self.writers.get(&to)
            && writer.try_send(datagram).is_err()
        {
            tracing::trace!(%to, "a datagram was dropped: the queue of the TCP connection is full");
        }
    }

    fn carry(&mut self, stream: TcpStream, from: SocketAddr) {
        let (writer, queue) = mpsc::channel(WRITE_QUEUE);
        self.writers.insert(from, writer);
        let (sender, place) = (self.sender.clone(), self.half_open.enter());
        self.tasks.spawn(async move {
            let carried = tokio::select! {
                carried = carry(stream, from, &place, queue, &sender) => carried,
                () = place.gave_way() => Err(io::Error::other("it sent no datagram, and gave way to another one")),
            };
            if let Err(error) = carried {
                tracing::debug!(%from, %error, "an ICE-TCP connection ended");
            }
            // Sending fails only if the server has ended.
            let _ = sender.send(TcpEvent::Closed(from)).await;
        });
    }
}

/// Transfers datagrams in both directions until one side ends.
async fn carry(
    stream: TcpStream,
    from: SocketAddr,
    place: &Connection,
    queue: mpsc::Receiver<Vec<u8>>,
    sender: &mpsc::Sender<TcpEvent>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    tokio::select! {
        ended = read(reader, from, place, sender) => ended,
        ended = write(writer, queue) => ended,
    }
}

async fn read(
    reader: OwnedReadHalf,
    from: SocketAddr,
    place: &Connection,
    sender: &mpsc::Sender<TcpEvent>,
) -> io::Result<()> {
    let mut reader = BufReader::new(reader);
    loop {
        let size =
            time::timeout(IDLE_TIMEOUT, reader.read_u16()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let size = usize::from(size);
        if size > MAX_FRAME {
            return Err(io::Error::other(format!(
                "a frame of {size} bytes exceeds the limit of {MAX_FRAME}"
            )));
        }
        let mut datagram = vec![0; size];
        time::timeout(IDLE_TIMEOUT, reader.read_exact(&mut datagram))
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        place.leave();
        if sender.send(TcpEvent::Datagram(from, datagram)).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(datagram) = queue.recv().await {
        // The stack's packets are far smaller than 64 KiB.
        let Ok(size) = u16::try_from(datagram.len()) else { continue };
        let frame = [&size.to_be_bytes(), datagram.as_slice()].concat();
        time::timeout(WRITE_LIMIT, writer.write_all(&frame)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair() -> (IceTcp, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (IceTcp::new(listener), stream)
    }

    #[tokio::test]
    async fn datagrams_keep_their_boundaries_in_both_directions() {
        let (mut tcp, mut theirs) = pair().await;
        theirs.write_all(b"\0\x02ab\0\x01c").await.unwrap();
        let local = theirs.local_addr().unwrap();
        for expected in [&b"ab"[..], b"c"] {
            let TcpEvent::Datagram(from, datagram) = tcp.next().await else { panic!("no datagram") };
            assert_eq!((from, &*datagram), (local, expected));
        }
        tcp.send(local, b"one".to_vec());
        let mut got = [0; 5];
        theirs.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"\0\x03one");
    }

    #[tokio::test]
    async fn frame_above_the_limit_ends_the_connection() {
        let (mut tcp, mut theirs) = pair().await;
        theirs.write_all(&[0xff, 0xff]).await.unwrap();
        assert!(matches!(tcp.next().await, TcpEvent::Closed(from) if from == theirs.local_addr().unwrap()));
        assert!(tcp.writers.is_empty());
    }

    #[tokio::test]
    async fn silent_connections_give_way_to_one_that_sends() {
        let (mut tcp, oldest) = pair().await;
        let address = tcp.listener.local_addr().unwrap();
        let mut silent = vec![oldest];
        // They are accepted while they connect: the system keeps few that wait for that.
        let connecting = async {
            for _ in 0..2 * MAX_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
        };
        {
            tokio::pin!(connecting);
            loop {
                tokio::select! {
                    () = &mut connecting => break,
                    event = tcp.next() => assert!(matches!(event, TcpEvent::Closed(_)), "{event:?}"),
                }
            }
        }
        let mut sends = TcpStream::connect(address).await.unwrap();
        sends.write_all(b"\0\x01a").await.unwrap();
        let from = loop {
            match tcp.next().await {
                TcpEvent::Datagram(from, _) => break from,
                TcpEvent::Closed(_) => {}
            }
        };
        assert_eq!(from, sends.local_addr().unwrap());
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0, "the oldest was closed");
    }

    #[tokio::test]
    async fn client_that_does_not_read_has_a_bounded_queue() {
        let (mut tcp, mut theirs) = pair().await;
        theirs.write_all(b"\0\x01c").await.unwrap();
        tcp.next().await;
        let local = theirs.local_addr().unwrap();
        for _ in 0..100_000 {
            tcp.send(local, vec![0; 1200]);
        }
        assert_eq!(tcp.writers[&local].capacity(), 0, "what does not fit is dropped");
    }

    #[tokio::test]
    async fn failed_accept_pauses_while_other_connections_are_served() {
        let (mut tcp, mut first) = pair().await;
        first.write_all(b"\0\x01a").await.unwrap();
        assert!(matches!(tcp.next().await, TcpEvent::Datagram(..)));
        let mut second = TcpStream::connect(tcp.listener.local_addr().unwrap()).await.unwrap();
        second.write_all(b"\0\x01c").await.unwrap();
        let none = || Err(io::Error::other("too many open files"));
        tcp.handle_accepted(none());
        // Extend the pause to check that other connections are served.
        tcp.pause = tcp.pause.map(|until| until + Duration::from_secs(3600));
        first.write_all(b"\0\x01b").await.unwrap();
        let TcpEvent::Datagram(from, _) = tcp.next().await else { panic!("no datagram") };
        assert_eq!(from, first.local_addr().unwrap());
        let start = Instant::now();
        tcp.handle_accepted(none());
        let TcpEvent::Datagram(from, _) = tcp.next().await else { panic!("no datagram") };
        assert_eq!(from, second.local_addr().unwrap());
        assert!(start.elapsed() >= PAUSE && tcp.pause.is_none());
    }
}
