//! Runs ICE over TCP: connects to the server's passive candidates.
//!
//! Datagrams are sent in a stream, each after its length in two bytes ([RFC
//! 4571](https://www.rfc-editor.org/rfc/rfc4571)). Each connection has its own task and bounded queues, so that a
//! stalled connection delays no other; a datagram that does not fit is dropped, as a network would drop it.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinSet,
    time,
};

/// The time limit of opening a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The largest frame that is read, in bytes: several times the size of a DTLS record with its header.
const MAX_FRAME: usize = 8192;
/// The most addresses that are dialed in one join.
const MAX_DIALS: usize = 16;
/// The most datagrams that wait for a connection that does not accept them.
const WRITE_QUEUE: usize = 256;
/// The most received datagrams of all connections that wait to be read.
const READ_QUEUE: usize = 256;
/// The most bytes that are written at once, when many datagrams wait.
const WRITE_BATCH: usize = 32 * 1024;

/// Identifies a connection by its local and remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// An event of a connection.
#[derive(Debug)]
pub(crate) enum TcpEvent {
    /// The connection is open.
    Opened(Pair, mpsc::Sender<Vec<u8>>),
    /// A datagram arrived.
    Datagram(Pair, Vec<u8>),
    /// The connection has ended.
    Closed(Pair),
}

/// The TCP connections of one peer connection. Dropping it closes them.
#[derive(Debug)]
pub(crate) struct IceTcp {
    writers: HashMap<Pair, Writer>,
    dialled: HashSet<SocketAddr>,
    /// How often ICE was restarted.
    beginning: u32,
    tasks: JoinSet<()>,
    events: mpsc::Receiver<TcpEvent>,
    report: mpsc::Sender<TcpEvent>,
}

/// The queue of a connection's datagrams, and the ICE restart in which it was opened.
#[derive(Debug)]
struct Writer {
    queue: mpsc::Sender<Vec<u8>>,
    beginning: u32,
}

impl IceTcp {
    pub(crate) fn new() -> Self {
        let (report, events) = mpsc::channel(READ_QUEUE);
        let (writers, dialled) = (HashMap::new(), HashSet::new());
        Self { writers, dialled, beginning: 0, tasks: JoinSet::new(), events, report }
    }

    /// Returns the local addresses of the connections.
    pub(crate) fn locals(&self) -> impl Iterator<Item = IpAddr> {
        self.writers.keys().map(|pair| pair.local.ip())
    }

    /// Opens a connection to an address unless there is one, from the given local address if any.
    pub(crate) fn dial(&mut self, remote: SocketAddr, from: Option<IpAddr>) {
        // Needed even where UDP works. If ICE fails soon after a join, livekit-server prefers TCP for that
        // room and identity for minutes, and sends no other candidates: a participant without TCP could not
        // come back.
        if self.dialled.len() >= MAX_DIALS || !self.dialled.insert(remote) {
            return;
        }
        // Nobody waits for these tasks, so their results would pile up.
        while self.tasks.try_join_next().is_some() {}
        let report = self.report.clone();
        self.tasks.spawn(async move {
            match time::timeout(CONNECT_LIMIT, connect(remote, from)).await {
                Ok(Ok((stream, local))) => carry(stream, Pair { local, remote }, report).await,
                Ok(Err(error)) => tracing::debug!(%remote, %error, "ICE-TCP connection failed"),
                Err(_) => {
                    tracing::debug!(%remote, limit = ?CONNECT_LIMIT, "ICE-TCP connection timed out")
                }
            }
        });
    }

    /// Returns whether an open connection has this local address.
    pub(crate) fn has(&self, local: SocketAddr) -> bool {
        self.writers.keys().any(|pair| pair.local == local)
    }

    /// Returns whether no address was dialed.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.dialled.is_empty()
    }

    /// Allows every address to be dialed once more after an ICE restart, because the server accepts a connection only
    /// for the ICE session in which it was opened.
    pub(crate) fn begin_restart(&mut self) {
        self.dialled.clear();
        self.beginning = self.beginning.wrapping_add(1);
    }

    /// Closes the connections from before the ICE restart, except the one with the used local address: the server no
    /// longer knows them, and ICE would try each of them with every other address.
    pub(crate) fn end_earlier(&mut self, used: SocketAddr) {
        self.writers.retain(|pair, writer| writer.beginning == self.beginning || pair.local == used);
    }

    /// Closes all connections, because a path is in use that is better than any of them.
    pub(crate) fn end_all(&mut self) {
        self.writers.clear();
    }

    /// Returns the next event of a connection.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> TcpEvent {
        let event = match self.events.recv().await {
            Some(event) => event,
            // Never reached: this struct holds a sender itself.
            None => std::future::pending().await,
        };
        self.note(event)
    }

    /// Returns the next event if one is waiting.
    pub(crate) fn try_next(&mut self) -> Option<TcpEvent> {
        let event = self.events.try_recv().ok()?;
        Some(self.note(event))
    }

    /// Sends a datagram. One that does not fit is dropped, as a network would drop it.
    pub(crate) fn send(&self, pair: Pair, datagram: Vec<u8>) {
        if let Some(writer) = self.writers.get(&pair)
            && writer.queue.try_send(datagram).is_err()
        {
            tracing::trace!(remote = %pair.remote, "a datagram was dropped: the queue of the TCP connection is full");
        }
    }

    fn note(&mut self, event: TcpEvent) -> TcpEvent {
        match &event {
            TcpEvent::Opened(pair, queue) => {
                let writer = Writer { queue: queue.clone(), beginning: self.beginning };
                self.writers.insert(*pair, writer);
            }
            TcpEvent::Closed(pair) => {
                self.writers.remove(pair);
                // A connection from before an ICE restart may still lead to the same address.
                if self.writers.keys().all(|other| other.remote != pair.remote) {
                    self.dialled.remove(&pair.remote);
                }
            }
            TcpEvent::Datagram(..) => {}
        }
        event
    }
}

async fn connect(remote: SocketAddr, from: Option<IpAddr>) -> io::Result<(TcpStream, SocketAddr)> {
    let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(ip) = from {
        socket.bind(SocketAddr::new(ip, 0))?;
    }
    let stream = socket.connect(remote).await?;
    // Measured on loopback: half of the echoes took 43 ms with Nagle's algorithm and 0.33 ms without.
    stream.set_nodelay(true)?;
    let local = stream.local_addr()?;
    Ok((stream, local))
}

/// Transfers datagrams in both directions until either end closes.
async fn carry(stream: TcpStream, pair: Pair, report: mpsc::Sender<TcpEvent>) {
    let (writer, queue) = mpsc::channel(WRITE_QUEUE);
    if report.send(TcpEvent::Opened(pair, writer)).await.is_err() {
        return;
    }
    let (reader, writer) = stream.into_split();
    let ended = tokio::select! {
        ended = read(reader, pair, &report) => ended,
        ended = write(writer, queue) => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(remote = %pair.remote, %error, "an ICE-TCP connection ended");
    }
    let _ = report.send(TcpEvent::Closed(pair)).await;
}

async fn read(reader: OwnedReadHalf, pair: Pair, report: &mpsc::Sender<TcpEvent>) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(WRITE_BATCH, reader);
    loop {
        let size = usize::from(reader.read_u16().await?);
        if size > MAX_FRAME {
            return Err(io::Error::other(format!("a frame of {size} bytes is more than {MAX_FRAME}")));
        }
        let mut datagram = vec![0; size];
        reader.read_exact(&mut datagram).await?;
        // Waits for room, unlike the sending side. TCP then slows the server down, and nothing is lost.
        if report.send(TcpEvent::Datagram(pair, datagram)).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    let mut batch = Vec::with_capacity(WRITE_BATCH);
    while let Some(first) = queue.recv().await {
        batch.clear();
        let mut next = Some(first);
        while let Some(datagram) = next {
            // Outgoing datagrams are far below 64 KiB: str0m keeps to the network's packet size.
            if let Ok(size) = u16::try_from(datagram.len()) {
                batch.extend_from_slice(&size.to_be_bytes());
                batch.extend_from_slice(&datagram);
            }
            // One write for all that waits: without Nagle's algorithm each write is a segment of its own.
            next = if batch.len() < WRITE_BATCH { queue.try_recv().ok() } else { None };
        }
        writer.write_all(&batch).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (IceTcp, TcpStream, Pair) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut tcp = IceTcp::new();
        tcp.dial(listener.local_addr().unwrap(), None);
        let (theirs, _) = listener.accept().await.unwrap();
        let TcpEvent::Opened(pair, _) = tcp.next().await else { panic!("not opened") };
        (tcp, theirs, pair)
    }

    #[tokio::test]
    async fn datagrams_keep_their_boundaries_in_each_direction() {
        let (mut tcp, mut theirs, pair) = pair().await;
        tcp.send(pair, b"one".to_vec());
        tcp.send(pair, b"three".to_vec());
        let mut got = [0; 12];
        theirs.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"\0\x03one\0\x05three");
        theirs.write_all(b"\0\x02ab\0\x01").await.unwrap();
        theirs.write_all(b"c").await.unwrap();
        for expected in [&b"ab"[..], b"c"] {
            let TcpEvent::Datagram(from, datagram) = tcp.next().await else { panic!("no datagram") };
            assert_eq!((from, &datagram[..]), (pair, expected));
        }
    }

    #[tokio::test]
    async fn oversized_frame_ends_the_connection() {
        let (mut tcp, mut theirs, pair) = pair().await;
        theirs.write_all(&[0xff, 0xff]).await.unwrap();
        assert!(matches!(tcp.next().await, TcpEvent::Closed(closed) if closed == pair));
        assert!(tcp.writers.is_empty());
    }

    #[tokio::test]
    async fn peer_that_does_not_read_has_a_bounded_queue() {
        let (tcp, _theirs, pair) = pair().await;
        for _ in 0..100_000 {
            tcp.send(pair, vec![0; 1200]);
        }
        assert_eq!(tcp.writers[&pair].queue.capacity(), 0, "what does not fit is dropped");
    }

    #[tokio::test]
    async fn connections_from_before_a_restart_close_once_another_path_is_used() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (remote, mut tcp) = (listener.local_addr().unwrap(), IceTcp::new());
        let mut open = Vec::new();
        for _ in 0..3 {
            tcp.dial(remote, None);
            let TcpEvent::Opened(pair, _) = tcp.next().await else { panic!("not opened") };
            open.push((pair, listener.accept().await.unwrap().0));
            tcp.begin_restart();
        }
        tcp.dial(remote, None);
        let TcpEvent::Opened(newest, _) = tcp.next().await else { panic!("not opened") };
        let (used, _) = open[1];
        tcp.end_earlier(used.local);
        let mut ended = Vec::new();
        for (pair, mut theirs) in open.into_iter().filter(|(pair, _)| *pair != used) {
            assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0);
            let TcpEvent::Closed(closed) = tcp.next().await else { panic!("not closed") };
            ended.push(closed);
            assert!(!tcp.has(pair.local));
        }
        assert_eq!(ended.len(), 2);
        assert!(tcp.has(used.local) && tcp.has(newest.local));
        assert!(tcp.dialled.contains(&remote), "one to it is open");
    }
}
