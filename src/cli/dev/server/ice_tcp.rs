//! ICE over TCP: clients dial us, and datagrams travel in a stream, each behind its length in two bytes
//! ([RFC 4571](https://www.rfc-editor.org/rfc/rfc4571)).
//!
//! A connection has a task of its own and queues with caps: what does not fit is dropped like a lost datagram.

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

use crate::host;

/// How many connections there may be at once; others wait.
const MAX_CONNECTIONS: usize = 128;
/// The largest frame that is read, in bytes: a DTLS record with its head, several times over.
const MAX_FRAME: usize = 8192;
/// How many datagrams wait for a connection that does not take them.
const WRITE_QUEUE: usize = 256;
/// How many datagrams of all connections wait for us.
const READ_QUEUE: usize = 256;
/// How long to wait when the system has no socket for another connection.
const PAUSE: Duration = Duration::from_millis(50);
/// A living client is heard every few seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// What a connection tells.
#[derive(Debug)]
pub(super) enum TcpEvent {
    /// A datagram came.
    Datagram(SocketAddr, Vec<u8>),
    /// It is gone.
    Closed(SocketAddr),
}

/// The listener and all that it let in. Dropping it ends them.
#[derive(Debug)]
pub(super) struct IceTcp {
    listener: TcpListener,
    writers: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>,
    tasks: JoinSet<()>,
    events: mpsc::Receiver<TcpEvent>,
    report: mpsc::Sender<TcpEvent>,
    /// When the next connection is taken, if the last one could not be.
    pause: Option<Instant>,
}

impl IceTcp {
    pub(super) fn new(listener: TcpListener) -> Self {
        let (report, events) = mpsc::channel(READ_QUEUE);
        Self { listener, writers: HashMap::new(), tasks: JoinSet::new(), events, report, pause: None }
    }

    /// The next thing that a connection tells.
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
                tracing::debug!(%error, "no ICE connection over TCP was taken");
                self.pause = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// Sends a datagram; one that does not fit is dropped, as a network would.
    pub(super) fn send(&self, to: SocketAddr, datagram: Vec<u8>) {
        if let Some(writer) = self.writers.get(&to)
            && writer.try_send(datagram).is_err()
        {
            tracing::trace!(%to, "a datagram was dropped: the TCP connection takes no more");
        }
    }

    fn carry(&mut self, stream: TcpStream, from: SocketAddr) {
        let (writer, queue) = mpsc::channel(WRITE_QUEUE);
        self.writers.insert(from, writer);
        let report = self.report.clone();
        self.tasks.spawn(async move {
            if let Err(error) = carry(stream, from, queue, &report).await {
                tracing::debug!(%from, %error, "an ICE connection over TCP ended");
            }
            // An error means that the server has ended.
            let _ = report.send(TcpEvent::Closed(from)).await;
        });
    }
}

/// Carries datagrams both ways until either end stops.
async fn carry(
    stream: TcpStream,
    from: SocketAddr,
    queue: mpsc::Receiver<Vec<u8>>,
    report: &mpsc::Sender<TcpEvent>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    tokio::select! {
        ended = read(reader, from, report) => ended,
        ended = write(writer, queue) => ended,
    }
}

async fn read(reader: OwnedReadHalf, from: SocketAddr, report: &mpsc::Sender<TcpEvent>) -> io::Result<()> {
    let mut reader = BufReader::new(reader);
    loop {
        let size = time::timeout(SILENCE, reader.read_u16()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let size = usize::from(size);
        if size > MAX_FRAME {
            return Err(io::Error::other(format!("a frame of {size} bytes is more than {MAX_FRAME}")));
        }
        let mut datagram = vec![0; size];
        time::timeout(SILENCE, reader.read_exact(&mut datagram))
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        if report.send(TcpEvent::Datagram(from, datagram)).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(datagram) = queue.recv().await {
        // The stack keeps to a network's packet size, far below 64 KiB.
        let Ok(size) = u16::try_from(datagram.len()) else { continue };
        writer.write_all(&[&size.to_be_bytes(), datagram.as_slice()].concat()).await?;
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
    async fn datagrams_keep_their_bounds_both_ways() {
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
    async fn a_frame_over_the_limit_ends_the_connection() {
        let (mut tcp, mut theirs) = pair().await;
        theirs.write_all(&[0xff, 0xff]).await.unwrap();
        assert!(matches!(tcp.next().await, TcpEvent::Closed(from) if from == theirs.local_addr().unwrap()));
        assert!(tcp.writers.is_empty());
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_costs_a_capped_queue() {
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
    async fn without_a_socket_for_another_it_waits_and_hears_the_others_meanwhile() {
        let (mut tcp, mut first) = pair().await;
        first.write_all(b"\0\x01a").await.unwrap();
        assert!(matches!(tcp.next().await, TcpEvent::Datagram(..)));
        let mut second = TcpStream::connect(tcp.listener.local_addr().unwrap()).await.unwrap();
        second.write_all(b"\0\x01c").await.unwrap();
        let none = || Err(io::Error::other("too many open files"));
        tcp.handle_accepted(none());
        // As if it were for long, while the others are heard.
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
