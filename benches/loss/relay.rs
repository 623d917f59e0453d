//! A network in front of a server's UDP port: it delays, and it loses by a seed, separately for each participant.
//!
//! The server listens on 127.0.0.1 and announces 127.0.0.2, where this relay listens on the same port.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::UdpSocket,
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// The address that the server announces.
pub(crate) const ANNOUNCED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Larger than any datagram.
const DATAGRAM: usize = 2048;

/// The links of all participants, by the address that each sends from.
#[derive(Clone, Default)]
pub(crate) struct Network(Arc<Mutex<HashMap<IpAddr, Arc<Link>>>>);

/// One participant's path to the server and back.
#[derive(Debug, Default)]
pub(crate) struct Link {
    delay_us: AtomicU64,
    loss_permille: AtomicU32,
    /// The mean number of datagrams that are lost in a row; 1 if each is lost or not by itself.
    burst: AtomicU32,
    /// Whether the last datagram in each direction was lost in a burst that has not ended.
    in_burst: [AtomicBool; 2],
    random: AtomicU64,
    datagrams: AtomicU64,
}

/// The direction of a datagram: to the server, or to the participant.
#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

impl Link {
    /// From now on each direction has this delay and this loss, in permille, in bursts of this mean length (the model of
    /// Gilbert and Elliott, in whose bad state every datagram is lost).
    pub(crate) fn impair(&self, delay: Duration, loss_permille: u32, burst: u32, seed: u64) {
        self.delay_us.store(delay.as_micros() as u64, Relaxed);
        self.loss_permille.store(loss_permille, Relaxed);
        self.burst.store(burst, Relaxed);
        self.random.store(seed, Relaxed);
    }

    /// Returns the number of datagrams with data (DTLS records, not STUN checks) so far, in both directions,
    /// including lost ones.
    pub(crate) fn datagrams(&self) -> u64 {
        self.datagrams.load(Relaxed)
    }

    /// Returns when a datagram arrives, if it does.
    fn arrival(&self, direction: Direction, datagram: &[u8]) -> Option<Instant> {
        /// The first bytes of DTLS records ([RFC 7983](https://www.rfc-editor.org/rfc/rfc7983)).
        const DTLS: std::ops::RangeInclusive<u8> = 20..=63;
        if datagram.first().is_some_and(|first| DTLS.contains(first)) {
            self.datagrams.fetch_add(1, Relaxed);
        }
        // SplitMix64: each datagram has its own draw.
        let seed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        let mut bits = seed ^ (seed >> 30);
        bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let draw = ((bits ^ (bits >> 31)) % 1_000_000) as f64 / 1_000_000.0;
        let loss = f64::from(self.loss_permille.load(Relaxed)) / 1000.0;
        let burst = f64::from(self.burst.load(Relaxed).max(1));
        let in_burst = &self.in_burst[direction as usize];
        let lost = match (burst > 1.0, in_burst.load(Relaxed)) {
            (false, _) => draw < loss,
            (true, true) => draw >= 1.0 / burst,
            (true, false) => draw < loss / (1.0 - loss) / burst,
        };
        in_burst.store(lost, Relaxed);
        (!lost).then(|| Instant::now() + Duration::from_micros(self.delay_us.load(Relaxed)))
    }
}

impl Network {
    /// Returns the link of the participant that sends from this address.
    pub(crate) fn link(&self, from: IpAddr) -> Arc<Link> {
        self.0.lock().expect("no panic while locked").entry(from).or_default().clone()
    }

    /// Starts to relay to the server's port.
    pub(crate) async fn start(port: u16) -> io::Result<Self> {
        let network = Self::default();
        let outside = Arc::new(UdpSocket::bind((ANNOUNCED, port)).await?);
        tokio::spawn(network.clone().relay(outside, port));
        Ok(network)
    }

    async fn relay(self, outside: Arc<UdpSocket>, port: u16) {
        let mut ways: HashMap<SocketAddr, (Arc<Link>, Way)> = HashMap::new();
        let mut buffer = [0; DATAGRAM];
        loop {
            // An error is the ICMP reply to a datagram to a closed socket.
            let Ok((size, from)) = outside.recv_from(&mut buffer).await else { continue };
            let (link, way) = match ways.entry(from) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let link = self.link(from.ip());
                    let Ok(way) = open(from, port, &outside, &link).await else { return };
                    new.insert((link, way))
                }
            };
            if let Some(at) = link.arrival(Direction::Up, &buffer[..size]) {
                let _ = way.send((at, buffer[..size].to_vec()));
            }
        }
    }
}

/// Datagrams in flight in one direction.
type Way = mpsc::UnboundedSender<(Instant, Vec<u8>)>;

/// Opens a socket towards the server for one socket of a participant, as a NAT does.
async fn open(from: SocketAddr, port: u16, outside: &Arc<UdpSocket>, link: &Arc<Link>) -> io::Result<Way> {
    let inside = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    inside.connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (to_server, mut waiting) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let sender = inside.clone();
    tokio::spawn(async move {
        while let Some((at, datagram)) = waiting.recv().await {
            sleep_until(at).await;
            let _ = sender.send(&datagram).await;
        }
    });
    let (to_participant, mut waiting) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let sender = outside.clone();
    tokio::spawn(async move {
        while let Some((at, datagram)) = waiting.recv().await {
            sleep_until(at).await;
            let _ = sender.send_to(&datagram, from).await;
        }
    });
    let link = link.clone();
    tokio::spawn(async move {
        let mut buffer = [0; DATAGRAM];
        loop {
            let Ok(size) = inside.recv(&mut buffer).await else { continue };
            if let Some(at) = link.arrival(Direction::Down, &buffer[..size])
                && to_participant.send((at, buffer[..size].to_vec())).is_err()
            {
                return;
            }
        }
    });
    Ok(to_server)
}
