//! A network between a participant and the server that can be cut, slowed down, narrowed, made to lose and to
//! reorder, separately for the signaling, the datagrams and the streams of the media.
//!
//! It rewrites the server's candidates, so that the participant sends its packets here too. Participants that join by
//! the server's own address are not affected.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::pending,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::ensure;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::server::Server;
use link::{Direction, Link};

mod link;

/// How many datagrams or pieces of a stream wait in one direction.
const QUEUE: usize = 4096;
/// How many sockets of participants have a path at once: the oldest loses its own.
const WAYS: usize = 8;
/// The size of one read, in bytes: more than any datagram or signaling frame of a test.
const READ: usize = 64 * 1024;

/// A relay in front of one server. Dropping it cuts everything.
pub(crate) struct Relay {
    signaling: Arc<Link>,
    media: Media,
    port: u16,
    _tasks: JoinSet<()>,
}

impl Relay {
    pub(crate) async fn start(server: &Server) -> anyhow::Result<Self> {
        Self::start_for(server, Ipv4Addr::LOCALHOST.into()).await
    }

    /// Starts a relay whose packets use this address, of either family: 127.0.0.1 or ::1.
    pub(crate) async fn start_for(server: &Server, packets: IpAddr) -> anyhow::Result<Self> {
        let signal = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (tcp, udp) = (TcpListener::bind((packets, 0)).await?, UdpSocket::bind((packets, 0)).await?);
        let signaling = Arc::new(Link::new());
        let media = Media { udp: Arc::new(Link::new()), tcp: Arc::new(Link::new()) };
        let announced =
            [(server.udp_port(), udp.local_addr()?.port()), (server.tcp_port(), tcp.local_addr()?.port())]
                .map(|(theirs, ours)| {
                    (candidate(Ipv4Addr::LOCALHOST.into(), theirs), candidate(packets, ours))
                });
        ensure!(
            announced.iter().all(|(theirs, ours)| theirs.len() == ours.len()),
            "the ports have different numbers of digits"
        );
        let port = signal.local_addr()?.port();
        let mut tasks = JoinSet::new();
        tasks.spawn(relay_tcp(signal, server.port(), signaling.clone(), Some(Arc::new(announced))));
        tasks.spawn(relay_tcp(tcp, server.tcp_port(), media.tcp.clone(), None));
        tasks.spawn(relay_udp(udp, server.udp_port(), media.udp.clone()));
        Ok(Self { signaling, media, port, _tasks: tasks })
    }

    /// The address to join.
    pub(crate) fn url(&self) -> String {
        format!("ws://127.0.0.1:{}", self.port)
    }

    /// The signaling: a WebSocket.
    pub(crate) fn signaling(&self) -> &Link {
        &self.signaling
    }

    /// The media: UDP and ICE over TCP.
    pub(crate) fn media(&self) -> &Media {
        &self.media
    }

    /// The media over UDP.
    pub(crate) fn udp(&self) -> &Link {
        &self.media.udp
    }

    /// The media over ICE-TCP.
    pub(crate) fn tcp(&self) -> &Link {
        &self.media.tcp
    }

    /// Ends the signaling and accepts no other for the same join: a participant behind it must rejoin.
    pub(crate) fn evict(&self) {
        self.signaling.refuse_next(1);
        self.signaling.sever();
    }

    /// Cuts signaling and media.
    pub(crate) fn cut(&self) {
        self.signaling.cut();
        self.media.cut();
    }

    /// Restores signaling and media.
    pub(crate) fn restore(&self) {
        self.signaling.restore();
        self.media.restore();
    }
}

/// The media over UDP and TCP.
pub(crate) struct Media {
    udp: Arc<Link>,
    tcp: Arc<Link>,
}

impl Media {
    /// From now on nothing passes: see [`Link::cut`].
    pub(crate) fn cut(&self) {
        self.each(Link::cut);
    }

    /// Everything passes again.
    pub(crate) fn restore(&self) {
        self.each(Link::restore);
    }

    /// From now on everything takes this much longer in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.each(|link| link.delay(delay));
    }

    /// From now on everything takes up to this much longer: see [`Link::jitter`].
    pub(crate) fn jitter(&self, most: Duration) {
        self.each(|link| link.jitter(most));
    }

    /// From now on this many bytes a second pass in each direction, of datagrams and of streams; 0 is no limit.
    pub(crate) fn rate(&self, bytes: u64) {
        self.each(|link| link.rate(bytes));
    }

    /// From now on this many of a thousand datagrams are lost in each direction. A stream loses nothing.
    pub(crate) fn lose(&self, permille: u32) {
        self.udp.lose(permille);
    }

    /// The next datagrams are lost, in either direction.
    pub(crate) fn lose_next(&self, datagrams: u32) {
        self.udp.lose_next(datagrams);
    }

    /// Simulates a NAT that loses its mappings: see [`Link::rebind`].
    pub(crate) fn rebind(&self) {
        self.udp.rebind();
    }

    /// Waits until a datagram from the server has passed after that.
    pub(crate) async fn until_heard_from_server(&self) {
        self.udp.until_heard_from_server().await;
    }

    fn each(&self, change: impl Fn(&Link)) {
        change(&self.udp);
        change(&self.tcp);
    }
}

/// An address and a port in a candidate, with the same number of bytes for both families.
fn candidate(address: IpAddr, port: u16) -> Vec<u8> {
    let address = if address.is_ipv4() { "127.0.0.1" } else { "::0:0:0:1" };
    format!(" {address} {port} ").into_bytes()
}

/// Replacements in the server's signaling frames, each by the same number of bytes.
type Rewrites = Arc<[(Vec<u8>, Vec<u8>); 2]>;

async fn relay_tcp(listener: TcpListener, target: u16, link: Arc<Link>, rewrites: Option<Rewrites>) {
    let mut connections = JoinSet::new();
    while let Ok((inside, _)) = listener.accept().await {
        // A test that waits for the connection may sever it at once.
        let severed = link.severed();
        link.connected();
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(inside, severed, target, link.clone(), rewrites.clone()));
    }
}

/// Carries one TCP connection until either end closes it.
async fn carry(
    mut participant: TcpStream,
    mut severed: watch::Receiver<u64>,
    target: u16,
    link: Arc<Link>,
    rewrites: Option<Rewrites>,
) {
    let carried = async {
        let Some(early) = hold_until_open(&mut participant, &link).await? else { return Ok(()) };
        if link.refuses() {
            return refuse(participant, early).await;
        }
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
        server.write_all(&early).await?;
        participant.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_participant, to_participant) = participant.into_split();
        let (from_server, to_server) = server.into_split();
        let forth = async {
            let carried = stream(Pieces::raw(from_participant), to_server, &link, Direction::ToServer).await;
            if carried.is_err() {
                // The server reads no more: its last messages may be in flight.
                pending().await
            }
        };
        let back = stream(Pieces::new(from_server, rewrites), to_participant, &link, Direction::FromServer);
        let ended: std::io::Result<()> = tokio::select! {
            () = forth => Ok(()),
            ended = back => ended,
        };
        // While the path is cut the other end cannot detect this.
        link.until_open().await;
        ended
    };
    tokio::select! {
        _ = carried => {}
        _ = severed.changed() => {}
    }
}

/// Answers a request with 404.
async fn refuse(mut participant: TcpStream, mut request: Vec<u8>) -> std::io::Result<()> {
    while !request.ends_with(b"\r\n\r\n") && participant.read_buf(&mut request).await? > 0 {}
    participant.write_all(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n").await?;
    participant.shutdown().await
}

/// Holds the first data of a connection that is opened while the path is cut, unless the connection is closed. On a
/// real network its first packet would not even be answered.
async fn hold_until_open(participant: &mut TcpStream, link: &Link) -> std::io::Result<Option<Vec<u8>>> {
    let mut held = Vec::new();
    loop {
        tokio::select! {
            () = link.until_open() => return Ok(Some(held)),
            read = participant.read_buf(&mut held) => if read? == 0 { return Ok(None) },
        }
    }
}

/// Carries one direction, in order, each piece when it is due and the path is open.
async fn stream<R: AsyncRead + Unpin>(
    mut pieces: Pieces<R>,
    mut to: impl AsyncWriteExt + Unpin,
    link: &Link,
    direction: Direction,
) -> std::io::Result<()> {
    let (queue, mut queued) = mpsc::channel(QUEUE);
    let reading = async move {
        loop {
            link.until_free(direction).await;
            // However it ends, earlier data is forwarded first.
            let piece = pieces.next().await.unwrap_or_default();
            let due = link.piece(direction, piece.len());
            if piece.is_empty() || queue.send((due, piece)).await.is_err() {
                // This closes the queue, and the writer ends once it has written all queued data.
                return Ok(());
            }
        }
    };
    let writing = async {
        while let Some((due, piece)) = queued.recv().await {
            sleep_until(due).await;
            link.until_open().await;
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}

/// A stream in pieces: as it arrives, or frame by frame after the head of a WebSocket response.
struct Pieces<R> {
    from: BufReader<R>,
    rewrites: Option<Rewrites>,
    in_head: bool,
}

impl<R: AsyncRead + Unpin> Pieces<R> {
    fn raw(from: R) -> Self {
        Self::new(from, None)
    }

    fn new(from: R, rewrites: Option<Rewrites>) -> Self {
        Self { from: BufReader::with_capacity(READ, from), rewrites, in_head: true }
    }

    /// Returns the next piece; empty at the end.
    async fn next(&mut self) -> std::io::Result<Vec<u8>> {
        let Some(rewrites) = self.rewrites.clone() else { return self.some().await };
        if self.in_head {
            return self.head().await;
        }
        let mut frame = self.frame().await?;
        for (theirs, ours) in rewrites.iter() {
            while let Some(at) = frame.windows(theirs.len()).position(|it| it == theirs) {
                frame[at..at + ours.len()].copy_from_slice(ours);
            }
        }
        Ok(frame)
    }

    async fn some(&mut self) -> std::io::Result<Vec<u8>> {
        let mut piece = Vec::with_capacity(READ);
        self.from.read_buf(&mut piece).await?;
        Ok(piece)
    }

    /// Returns the response's head. One that opens no WebSocket is followed by no frames.
    async fn head(&mut self) -> std::io::Result<Vec<u8>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.from.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return Ok(head),
            }
        }
        self.in_head = false;
        if !head.starts_with(b"HTTP/1.1 101") {
            self.rewrites = None;
        }
        Ok(head)
    }

    /// Returns a frame of the server, which is never masked ([RFC 6455](https://www.rfc-editor.org/rfc/rfc6455)).
    async fn frame(&mut self) -> std::io::Result<Vec<u8>> {
        let mut frame = vec![0; 2];
        if self.from.read_exact(&mut frame).await.is_err() {
            return Ok(Vec::new());
        }
        let more = match frame[1] {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        frame.resize(2 + more, 0);
        self.from.read_exact(&mut frame[2..]).await?;
        let long = frame[2..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let length = if more == 0 { usize::from(frame[1]) } else { long };
        let head = frame.len();
        frame.resize(head + length, 0);
        self.from.read_exact(&mut frame[head..]).await?;
        Ok(frame)
    }
}

/// Opens a socket towards the server for each socket of a participant, as a NAT does.
async fn relay_udp(socket: UdpSocket, target: u16, link: Arc<Link>) {
    let (socket, mut buffer) = (Arc::new(socket), vec![0; READ]);
    let mut ways: VecDeque<Way> = VecDeque::new();
    let mut rebound = link.rebound();
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            _ = rebound.changed() => {
                ways.clear();
                link.forgotten();
                continue;
            }
        };
        // An error is the ICMP reply to an earlier datagram to a closed socket.
        let Ok((size, from)) = received else { continue };
        let Some(due) = link.datagram(Direction::ToServer, size) else { continue };
        if !ways.iter().any(|way| way.from == from) {
            let Ok(way) = Way::open(from, &socket, target, &link).await else { return };
            ways.push_back(way);
            ways.drain(..ways.len().saturating_sub(WAYS));
        }
        if let Some(way) = ways.iter().find(|way| way.from == from) {
            let _ = way.queue.try_send((due, buffer[..size].to_vec()));
        }
    }
}

/// The path of one socket of a participant.
struct Way {
    from: SocketAddr,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
    _tasks: JoinSet<()>,
}

impl Way {
    async fn open(
        from: SocketAddr,
        socket: &Arc<UdpSocket>,
        target: u16,
        link: &Arc<Link>,
    ) -> std::io::Result<Self> {
        let towards = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        towards.connect((Ipv4Addr::LOCALHOST, target)).await?;
        let (queue, queued) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(send_on(queued, towards.clone(), None, link.clone()));
        tasks.spawn(answers(towards, socket.clone(), from, link.clone()));
        Ok(Self { from, queue, _tasks: tasks })
    }
}

/// Sends each datagram when it is due, whichever arrived first.
async fn send_on(
    mut queued: mpsc::Receiver<(Instant, Vec<u8>)>,
    socket: Arc<UdpSocket>,
    to: Option<SocketAddr>,
    link: Arc<Link>,
) {
    let (mut waiting, mut came) = (BinaryHeap::<Reverse<(Instant, u64, Vec<u8>)>>::new(), 0);
    loop {
        let due = waiting.peek().map(|Reverse((due, ..))| *due);
        tokio::select! {
            biased;
            () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {
                let Some(Reverse((_, number, datagram))) = waiting.pop() else { continue };
                if waiting.iter().any(|Reverse((_, other, _))| *other < number) {
                    link.was_overtaking();
                }
                let _ = match to {
                    Some(to) => socket.send_to(&datagram, to).await,
                    None => socket.send(&datagram).await,
                };
            }
            next = queued.recv(), if waiting.len() < QUEUE => match next {
                Some((due, datagram)) => {
                    came += 1;
                    waiting.push(Reverse((due, came, datagram)));
                }
                None => return,
            },
        }
    }
}

async fn answers(from: Arc<UdpSocket>, socket: Arc<UdpSocket>, to: SocketAddr, link: Arc<Link>) {
    let (queue, queued) = mpsc::channel(QUEUE);
    let mut buffer = vec![0; READ];
    let reading = async {
        loop {
            // An error means that the server's port is closed; it may open again.
            match from.recv(&mut buffer).await {
                Ok(size) => {
                    if let Some(due) = link.datagram(Direction::FromServer, size) {
                        let _ = queue.try_send((due, buffer[..size].to_vec()));
                        link.answered();
                    }
                }
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = send_on(queued, socket, Some(to), link.clone()) => {}
    }
}
