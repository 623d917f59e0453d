//! Tests the peer connection against another str0m, over sockets on loopback.

use std::time::Duration;

use livekit_protocol::IceServer;
use str0m::{Candidate, change::SdpOffer};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, UdpSocket},
};

use super::{candidates::MAX_CANDIDATES, *};
use crate::livekit::path::ice_tcp::Pair;

const FROM: &str = "127.0.0.1:4000";
/// A binding request from an unknown sender, and the starts of a DTLS record and of RTP.
const STUN: &[u8] = b"\0\x01\0\0\x21\x12\xa4\x42123456789012";
const DTLS: &[u8] = &[22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const RTP: &[u8] = &[0x80, 96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn connection() -> PeerConnection {
    PeerConnection::new(Instant::now(), None, true, true).unwrap().0
}

#[tokio::test]
async fn both_channels_are_offered_and_no_media() {
    let (connection, offer) = PeerConnection::new(Instant::now(), None, true, true).unwrap();
    assert_eq!(offer.matches("m=").count(), 1, "{offer}");
    assert!(offer.contains("m=application") && offer.contains("a=setup:actpass"), "{offer}");
    assert!(!connection.is_open() && !connection.has_path());
}

#[tokio::test]
async fn datagrams_from_unknown_addresses_are_dropped_and_keep_no_path_alive() {
    let mut connection = connection();
    let (from, local) = (FROM.parse().unwrap(), "127.0.0.1:5000".parse().unwrap());
    let heard = connection.heard();
    for datagram in [STUN, DTLS, RTP, b"", &[0xff; 40]] {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            connection.receive(protocol, from, local, datagram, Admit::All).unwrap();
        }
    }
    assert_eq!(connection.rejected, 10);
    assert_eq!(connection.heard(), heard);
}

#[tokio::test]
async fn unusable_candidates_are_ignored_and_bounded() {
    let mut connection = connection();
    connection.pending = None;
    for line in [
        "",
        "candidate:",
        "candidate:1 1 udp 1 some-name.local 9 typ host",
        "candidate:1 1 tcp 1 127.0.0.1 9 typ host",
        "candidate:1 1 udp 1 127.0.0.1 0 typ host",
        "candidate:1 1 udp 1 169.254.1.1 9 typ host",
        "candidate:1 1 udp 1 255.255.255.255 9 typ host",
        "candidate:1 1 udp 1 224.0.0.1 9 typ host",
        "candidate:1 1 udp 1 0.0.0.0 9 typ host",
        "candidate:1 1 udp 1 fe80::1 9 typ host",
        "candidate:1 1 udp 1 ff02::1 9 typ host",
        "candidate:1 1 udp 1 ::ffff:127.0.0.1 9 typ host",
        "candidate:1 1 udp 1 :: 9 typ host",
    ] {
        connection.handle_candidate(line);
    }
    assert!(connection.remotes().is_empty(), "{:?}", connection.remotes());
    for port in 1..=2 * MAX_CANDIDATES {
        connection.handle_candidate(&format!("candidate:1 1 udp 1 127.0.0.1 {port} typ host"));
    }
    assert_eq!(connection.remotes().len(), MAX_CANDIDATES);
}

#[tokio::test]
async fn candidates_before_the_answer_wait_for_it() {
    let mut connection = connection();
    for port in 1..=2 * MAX_CANDIDATES {
        connection.handle_candidate(&format!("candidate:1 1 udp 1 127.0.0.1 {port} typ host"));
    }
    assert_eq!((connection.candidates.early.len(), connection.remotes().len()), (MAX_CANDIDATES, 0));
    assert!(connection.handle_answer("v=0", 1).is_err(), "an answer that is none");
}

#[tokio::test]
async fn late_candidate_is_tried_at_once() {
    let (mut connection, offer) = PeerConnection::new(Instant::now(), None, true, true).unwrap();
    let (_remote, answer) = Remote::answer(&offer).await;
    let without: Vec<_> = answer.split("\r\n").filter(|line| !line.starts_with("a=candidate:")).collect();
    connection.handle_answer(&without.join("\r\n"), 0).unwrap();
    // Handles all due timers, until there is nothing left but waiting.
    while connection.wake_at <= Instant::now() {
        connection.handle(None, Admit::All).unwrap();
    }
    connection.handle_candidate("candidate:1 1 udp 1 127.0.0.1 9 typ host");
    assert!(connection.wake_at <= Instant::now());
}

/// The other end: answers an offer, and receives on the channels.
struct Remote {
    rtc: Rtc,
    socket: UdpSocket,
    /// Another source for its packets, and how many it has sent from there.
    elsewhere: Option<(UdpSocket, usize)>,
    local: SocketAddr,
    wake_at: Instant,
    channels: Vec<ChannelId>,
    heard: Vec<Vec<u8>>,
}

impl Remote {
    async fn answer(offer: &str) -> (Self, String) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let local = socket.local_addr().unwrap();
        let mut rtc =
            Rtc::builder().set_crypto_provider(crypto::provider()).clear_codecs().build(Instant::now());
        rtc.add_local_candidate(Candidate::host(local, Protocol::Udp).unwrap());
        let offer = SdpOffer::from_sdp_string(offer).unwrap();
        let answer = rtc.sdp_api().accept_offer(offer).unwrap().to_sdp_string();
        let (elsewhere, wake_at) = (None, Instant::now());
        let remote = Self { rtc, socket, elsewhere, local, wake_at, channels: vec![], heard: vec![] };
        (remote, answer)
    }

    async fn wait(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let received =
            tokio::time::timeout_at(self.wake_at.into(), self.socket.recv_from(&mut buffer)).await.ok()?;
        let (size, from) = received.unwrap();
        buffer.truncate(size);
        Some((buffer, from))
    }

    fn handle(&mut self, datagram: Option<&(Vec<u8>, SocketAddr)>) {
        let now = Instant::now();
        let input = match datagram {
            Some((bytes, from)) => {
                Input::Receive(now, Receive::new(Protocol::Udp, *from, self.local, bytes).unwrap())
            }
            None => Input::Timeout(now),
        };
        self.rtc.handle_input(input).unwrap();
        loop {
            match self.rtc.poll_output().unwrap() {
                Output::Timeout(at) => return self.wake_at = at,
                Output::Transmit(transmit) => {
                    let socket = self.elsewhere.as_mut().map_or(&self.socket, |(socket, sent)| {
                        *sent += 1;
                        socket
                    });
                    let _ = socket.try_send_to(&transmit.contents, transmit.destination);
                }
                Output::Event(Event::ChannelOpen(id, _)) => self.channels.push(id),
                Output::Event(Event::ChannelData(data)) => self.heard.push(data.data),
                Output::Event(_) => {}
            }
        }
    }
}

/// Lets both run until `done`, or fails.
async fn drive(
    connection: &mut PeerConnection,
    remote: &mut Remote,
    admit: Admit,
    mut done: impl FnMut(&mut PeerConnection, &Remote) -> bool,
) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done(connection, remote) {
        assert!(Instant::now() < until, "it never happened");
        connection.flush().unwrap();
        tokio::select! {
            woken = connection.wait(until) => connection.handle(woken, admit).unwrap(),
            datagram = remote.wait() => remote.handle(datagram.as_ref()),
        }
    }
}

async fn connected() -> (PeerConnection, Remote) {
    let (mut connection, offer) = PeerConnection::new(Instant::now(), None, true, true).unwrap();
    let (mut remote, answer) = Remote::answer(&offer).await;
    connection.handle_answer(&answer, 0).unwrap();
    drive(&mut connection, &mut remote, Admit::All, |it, remote| it.is_open() && remote.channels.len() == 2)
        .await;
    (connection, remote)
}

#[tokio::test]
async fn messages_pass_once_both_channels_are_open() {
    let (mut connection, mut remote) = connected().await;
    assert!(connection.has_path());
    assert!(connection.write(Lane::Reliable, b"reliable").unwrap());
    assert!(connection.write(Lane::Lossy, b"lossy").unwrap());
    drive(&mut connection, &mut remote, Admit::All, |_, remote| remote.heard.len() == 2).await;
    for id in remote.channels.clone() {
        assert!(remote.rtc.channel(id).unwrap().write(true, b"back").unwrap());
    }
    remote.handle(None);
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.messages.len() == 2).await;
    assert_eq!(connection.poll_message().unwrap().1, b"back");
}

#[tokio::test]
async fn full_reliable_channel_leaves_room_for_a_lossy_packet() {
    let (mut connection, mut remote) = connected().await;
    let mut written = 0;
    while connection.write(Lane::Reliable, &[7; 15_000]).unwrap() {
        written += 1;
        assert!(written < 100, "there is no limit");
    }
    assert!(connection.write(Lane::Lossy, &[8; 15_000]).unwrap());
    drive(&mut connection, &mut remote, Admit::All, |_, remote| remote.heard.len() == written + 1).await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.unacknowledged() == 0).await;
    assert!(connection.write(Lane::Reliable, &[7; 15_000]).unwrap());
}

#[tokio::test]
async fn noise_from_any_address_ends_no_connection() {
    let (mut connection, mut remote) = connected().await;
    let local = connection.sockets.local_udp();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let noise = [
        STUN,
        DTLS,
        RTP,
        b"",
        &[0xff; 40],
        &[22, 254, 253, 0, 1, 0, 0, 0, 0, 0, 9, 0, 3, 1, 2, 3],
        &[21, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0],
    ];
    for datagram in noise {
        // From the server's own socket, like a forged source address.
        remote.socket.send_to(datagram, local).await.unwrap();
        stranger.send_to(datagram, local).await.unwrap();
    }
    assert!(connection.write(Lane::Reliable, b"all the same").unwrap());
    drive(&mut connection, &mut remote, Admit::All, |it, remote| {
        it.rejected >= 6 && !remote.heard.is_empty()
    })
    .await;
    assert_eq!(connection.lost(), None);
}

/// Anyone can send from the server's address. Such datagrams must not keep a dead path alive.
#[tokio::test]
async fn forged_datagrams_keep_no_path_alive() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some()).await;
    let (local, server) = connection.path.chosen().unwrap();
    let heard = connection.heard();
    // Unacknowledged lossy packets expire meanwhile.
    assert!(connection.write(Lane::Lossy, b"lossy").unwrap());
    assert!(connection.write(Lane::Reliable, b"reliable").unwrap());
    connection.flush().unwrap();
    let record = |kind: u8, epoch: u8| {
        let mut record = vec![kind, 254, 253, 0, epoch, 0, 0, 0, 0, 0, 99, 0, 64];
        record.extend([7; 64]);
        record
    };
    let given_up = |connection: &mut PeerConnection| {
        connection.unacknowledged() > 0 && {
            let lossy = connection.lossy;
            connection.rtc.channel(lossy).unwrap().buffered_amount() == 0
        }
    };
    let until = Instant::now() + Duration::from_secs(20);
    let mut rounds = 0;
    while rounds < 50 || !given_up(&mut connection) {
        assert!(Instant::now() < until, "the lossy packet was never given up");
        for datagram in [STUN, DTLS, RTP, &record(23, 1), &record(22, 1), &record(21, 0), &[0x2f; 80]] {
            for admit in [Admit::All, Admit::KeepAlive] {
                connection.receive(Protocol::Udp, server, local, datagram, admit).unwrap();
            }
        }
        rounds += 1;
        tokio::task::yield_now().await;
    }
    assert_eq!((connection.heard(), connection.lost()), (heard, None));
    // The server's own datagrams count as received.
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.unacknowledged() == 0).await;
    assert!(connection.heard() > heard);
}

#[tokio::test]
async fn every_kind_of_datagram_of_the_server_counts_as_received() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some()).await;
    // An acknowledgement alone.
    let heard = connection.heard();
    assert!(connection.write(Lane::Reliable, b"acknowledge").unwrap());
    drive(&mut connection, &mut remote, Admit::All, |it, _| !it.waits()).await;
    assert!(connection.heard() > heard);
    for id in remote.channels.clone() {
        let heard = connection.heard();
        assert!(remote.rtc.channel(id).unwrap().write(true, b"message").unwrap());
        remote.handle(None);
        drive(&mut connection, &mut remote, Admit::All, |it, _| it.poll_message().is_some()).await;
        assert!(connection.heard() > heard);
    }
    let heard = connection.heard();
    drive(&mut connection, &mut remote, Admit::KeepAlive, |it, _| it.heard() > heard).await;
}

/// A stranger's datagrams of every kind to the port of a live connection.
#[tokio::test]
async fn sixty_thousand_forged_datagrams_are_only_counted() {
    const COUNT: u64 = 60_000;
    let (mut connection, mut remote) = connected().await;
    let (stranger, local) = ("192.0.2.1:9".parse().unwrap(), connection.sockets.local_udp());
    let (heard, before) = (connection.heard(), connection.rejected);
    for n in 0..COUNT {
        let mut datagram =
            [STUN, DTLS, RTP, b"\x40\0\0\x08", b"\0\x17\0\0\x21\x12\xa4\x42"][n as usize % 5].to_vec();
        datagram.extend((0..n % 64).map(|at| (n * 31 + at * 7) as u8));
        connection.receive(Protocol::Udp, stranger, local, &datagram, Admit::All).unwrap();
    }
    assert_eq!(connection.rejected - before, COUNT);
    assert_eq!((connection.heard(), connection.lost()), (heard, None));
    assert!(connection.messages.is_empty());
    assert!(connection.write(Lane::Reliable, b"all the same").unwrap());
    drive(&mut connection, &mut remote, Admit::All, |_, remote| !remote.heard.is_empty()).await;
}

#[tokio::test]
async fn rejected_data_arrives_later() {
    let (mut connection, mut remote) = connected().await;
    let id = remote.channels[0];
    assert!(remote.rtc.channel(id).unwrap().write(true, b"later").unwrap());
    remote.handle(None);
    let heard = connection.heard();
    drive(&mut connection, &mut remote, Admit::KeepAlive, |it, _| it.heard() > heard).await;
    assert!(connection.messages.is_empty());
    drive(&mut connection, &mut remote, Admit::All, |it, _| !it.messages.is_empty()).await;
}

#[tokio::test]
async fn close_by_the_server_is_reported() {
    let (mut connection, mut remote) = connected().await;
    remote.rtc.close().unwrap();
    remote.handle(None);
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.lost().is_some()).await;
}

/// A second path does not prove that the first one is alive: waiting for it would be in vain.
#[tokio::test]
async fn only_the_selected_path_counts_as_received() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some()).await;
    // Noise after the datagrams, which is rejected, shows that they were read.
    let (stranger, local) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), connection.sockets.local_udp());
    let mut noise = 0;
    remote.elsewhere = Some((UdpSocket::bind("127.0.0.1:0").await.unwrap(), 0));
    stranger.send_to(DTLS, local).await.unwrap();
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.rejected == 1).await;
    let heard = connection.heard();
    drive(&mut connection, &mut remote, Admit::All, |it, remote| {
        let sent = remote.elsewhere.as_ref().map_or(0, |(_, sent)| *sent);
        if sent > 1 && noise == 0 {
            noise += stranger.try_send_to(DTLS, local).unwrap();
        }
        it.rejected == 2
    })
    .await;
    assert_eq!(connection.heard(), heard);
}

#[tokio::test]
async fn relay_only_sends_no_direct_datagrams() {
    let mut connection = connection();
    connection.pending = None;
    connection.use_relays(&[], true, &[]);
    connection.handle_candidate("candidate:1 1 udp 1 127.0.0.1 9 typ host");
    connection.handle_candidate("candidate:1 1 tcp 1 127.0.0.1 9 typ host tcptype passive");
    assert!(connection.sockets.is_empty());
    assert_eq!(connection.without_relay(Duration::ZERO), Some(Vec::new()), "and there is none");
}

#[tokio::test]
async fn direct_only_uses_no_relay_unless_the_server_demands_one_also_at_a_resume() {
    let mut connection = connection();
    connection.restrict(false, true);
    let server = IceServer { urls: vec!["turn:127.0.0.1:9?transport=udp".into()], ..Default::default() };
    for (demanded, is_used) in [(false, false), (false, false), (true, true)] {
        connection.use_relays(std::slice::from_ref(&server), demanded, &[]);
        assert_eq!(connection.sockets.relays.is_hopeful(), is_used);
    }
}

#[tokio::test]
async fn reflexive_address_is_sent_unless_it_is_a_known_one() {
    let mut connection = connection();
    let (local, mapped) = ("192.168.1.2:5000".parse().unwrap(), "203.0.113.7:4000".parse().unwrap());
    connection.handle_reflexive(local, local).unwrap();
    connection.handle_reflexive("0.0.0.0:1".parse().unwrap(), local).unwrap();
    connection.handle_reflexive("[2001:db8::1]:1".parse().unwrap(), local).unwrap();
    assert_eq!(connection.poll_candidate(), None);
    connection.handle_reflexive(mapped, local).unwrap();
    let line = connection.poll_candidate().unwrap();
    assert!(line.contains(" 203.0.113.7 4000 typ srflx") && !line.contains("192.168"), "{line}");
    assert_eq!(connection.poll_candidate(), None);
}

/// The end of a TCP connection is detected at once, without waiting for a timeout.
#[tokio::test]
async fn end_of_the_selected_tcp_connection_restarts_ice() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some()).await;
    let pair = Pair { local: "127.0.0.1:5000".parse().unwrap(), remote: FROM.parse().unwrap() };
    let (writer, _queue) = tokio::sync::mpsc::channel(1);
    let by_udp = connection.path.chosen().unwrap();
    for (chosen, restarts) in [(by_udp, false), ((pair.local, pair.remote), true)] {
        connection.handle_tcp(TcpEvent::Opened(pair, writer.clone()), Admit::All).unwrap();
        connection.path.handle_used(chosen);
        connection.handle_tcp(TcpEvent::Closed(pair), Admit::All).unwrap();
        assert_eq!(connection.wants_restart(), restarts, "{chosen:?}");
    }
}

/// An unreachable server is tried again and again, and sends the same candidates each time.
#[tokio::test]
async fn every_ice_session_has_its_own_candidate_limit_and_names_each_once() {
    let mut connection = connection();
    for beginning in 0..20 {
        if beginning > 0 {
            connection.restart_ice(Locals::Keep).unwrap();
        }
        let offer = connection.described().offer.clone();
        let (_, answer) = Remote::answer(&offer).await;
        connection.handle_answer(&answer, 0).unwrap();
        for port in 9001..=9005 {
            connection.handle_candidate(&format!("candidate:1 1 udp 1 127.0.0.1 {port} typ host"));
        }
    }
    let named = connection.remotes().iter().filter(|remote| (9001..=9005).contains(&remote.port()));
    assert_eq!(named.count(), 5, "{:?}", connection.remotes());
    assert!(!connection.candidates.is_full());
}

#[tokio::test]
async fn discarded_addresses_stay_discarded_and_reflexive_ones_are_sent_again() {
    let (mut connection, _remote) = connected().await;
    let (local, mapped) = (connection.sockets.local_udp(), "203.0.113.7:4000".parse().unwrap());
    connection.handle_reflexive(mapped, local).unwrap();
    assert!(connection.poll_candidate().is_some() && connection.poll_candidate().is_none());
    for (wanted, is_sent) in [(&[Locals::Keep][..], true), (&[Locals::Replace, Locals::Keep], false)] {
        for locals in wanted {
            connection.restart_ice(*locals).unwrap();
        }
        let (_, answer) = Remote::answer(&connection.described().offer.clone()).await;
        connection.handle_answer(&answer, 0).unwrap();
        assert_eq!(connection.poll_candidate().is_some(), is_sent, "{wanted:?}");
        assert_eq!(connection.sockets.have(local), is_sent, "{wanted:?}");
    }
}

/// Each datagram costs the server and both participants far more than its bytes.
#[tokio::test]
async fn small_messages_that_are_written_together_share_datagrams() {
    const COUNT: usize = 30;
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| !it.waits()).await;
    for _ in 0..COUNT {
        assert!(connection.write(Lane::Lossy, &[7; 100]).unwrap());
    }
    connection.flush().unwrap();
    let mut datagrams = 0;
    while remote.heard.len() < COUNT {
        let datagram = remote.wait().await;
        datagrams += usize::from(datagram.is_some());
        remote.handle(datagram.as_ref());
    }
    assert!(datagrams < COUNT / 3, "{datagrams}");
}

#[tokio::test]
async fn datagrams_that_are_read_together_are_acknowledged_together() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some() && !it.waits()).await;
    let mut buffer = [0; MAX_DATAGRAM];
    // The first time, answers to what was before can be among them.
    for is_first in [true, false] {
        let (id, heard) = (remote.channels[0], connection.heard());
        assert!(remote.rtc.channel(id).unwrap().write(true, &[7; 4_000]).unwrap());
        remote.handle(None);
        while connection.poll_message().is_none() {
            let woken = connection.wait(Instant::now() + CHOICE).await;
            connection.handle(woken, Admit::All).unwrap();
        }
        assert!(connection.heard() > heard);
        connection.flush().unwrap();
        remote.socket.readable().await.unwrap();
        let mut answers = 0;
        while let Ok((size, from)) = remote.socket.try_recv_from(&mut buffer) {
            answers += usize::from(is_data(&buffer));
            remote.handle(Some(&(buffer[..size].to_vec(), from)));
        }
        assert!(is_first || answers == 1, "{answers}");
    }
}

#[tokio::test]
async fn acknowledgement_follows_what_is_sent_in_answer() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some() && !it.waits()).await;
    let mut buffer = [0; MAX_DATAGRAM];
    // The stack acknowledges every second datagram at once.
    for round in 0..4 {
        for _ in 0..2 {
            let id = remote.channels[0];
            assert!(remote.rtc.channel(id).unwrap().write(true, b"request").unwrap());
            remote.handle(None);
        }
        let mut received = 0;
        while received < 2 {
            let woken = connection.wait(Instant::now() + CHOICE).await;
            connection.handle(woken, Admit::All).unwrap();
            received += std::iter::from_fn(|| connection.poll_message()).count();
        }
        let holds = connection.holds();
        assert!(connection.write(Lane::Reliable, &[7; 1_000]).unwrap());
        connection.flush().unwrap();
        assert!(!connection.holds());
        let mut sizes = Vec::new();
        while sizes.len() < 1 + usize::from(holds) {
            remote.socket.readable().await.unwrap();
            while let Ok((size, from)) = remote.socket.try_recv_from(&mut buffer) {
                if is_data(&buffer) {
                    sizes.push(size);
                }
                remote.handle(Some(&(buffer[..size].to_vec(), from)));
            }
        }
        let answer = sizes.iter().position(|size| *size > 1_000).unwrap();
        assert!(round == 0 || (holds && answer == 0), "{sizes:?}");
        drive(&mut connection, &mut remote, Admit::All, |it, _| !it.waits()).await;
    }
}

#[tokio::test]
async fn held_acknowledgement_is_sent_before_the_next_wait() {
    let (mut connection, mut remote) = connected().await;
    drive(&mut connection, &mut remote, Admit::All, |it, _| it.path.chosen().is_some() && !it.waits()).await;
    let id = remote.channels[0];
    assert!(remote.rtc.channel(id).unwrap().write(true, &[7; 4_000]).unwrap());
    remote.handle(None);
    while !connection.holds() {
        let woken = connection.wait(Instant::now() + CHOICE).await;
        connection.handle(woken, Admit::All).unwrap();
    }
    connection.wait(Instant::now()).await;
    assert!(!connection.holds());
}

#[tokio::test]
async fn tcp_is_closed_once_udp_is_in_use() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut connection, offer) = PeerConnection::new(Instant::now(), None, true, true).unwrap();
    let (mut remote, answer) = Remote::answer(&offer).await;
    connection.handle_answer(&answer, 0).unwrap();
    connection.handle_candidate(&format!("candidate:1 1 tcp 1 127.0.0.1 {port} typ host tcptype passive"));
    let closed = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    };
    tokio::select! {
        () = closed => {}
        () = drive(&mut connection, &mut remote, Admit::All, |_, _| false) => {}
    }
    let (local, _) = connection.path.chosen().unwrap();
    assert!(connection.sockets.has_udp(local) && !connection.sockets.tcp.has(local));
}

#[tokio::test]
async fn unreadable_answer_is_refused_without_an_address_of_this_process() {
    let (mut connection, _) = PeerConnection::new(Instant::now(), None, true, true).unwrap();
    let error = connection.handle_answer("v=0\r\nhunter2 0x1\r\n", 1).unwrap_err().to_string();
    assert_eq!(error, "the server's answer is no session description");
}
