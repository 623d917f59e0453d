//! Tests relays over real sockets, against a server that the test plays.

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    time,
};

use super::{
    stun::{Class, Message, Method, Writer, attribute},
    *,
};

const PEER: &str = "192.0.2.9:7882";
const RELAYED: &str = "198.51.100.1:50000";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn server(urls: &[String]) -> IceServer {
    IceServer { urls: urls.to_vec(), username: "user".into(), credential: "pass".into() }
}

/// Relays at this address, over this transport.
fn relays(at: SocketAddr, transport: &str) -> Relays {
    let mut relays = Relays::new(None);
    relays.use_servers(&[server(&[format!("turn:{at}?transport={transport}")])], true, &[]);
    relays
}

/// The response of a server that needs no credentials.
fn answer(request: &[u8]) -> Option<Vec<u8>> {
    let message = Message::read(request)?;
    let answer = Writer::new(Class::Success, message.method, message.transaction());
    let answer = match message.method {
        Method::Allocate => answer
            .address(attribute::XOR_RELAYED_ADDRESS, address(RELAYED))
            .put(attribute::LIFETIME, &600_u32.to_be_bytes()),
        _ => answer,
    };
    (message.class == Class::Request).then(|| answer.finish())
}

/// Reads requests off a stream and answers them, until one of this method was answered.
async fn serve(stream: &mut TcpStream, last: Method) {
    let mut buffer = BytesMut::new();
    loop {
        while let Some(request) = frame::split(&mut buffer).unwrap() {
            let method = Message::read(&request).map(|it| it.method);
            stream.write_all(&answer(&request).unwrap()).await.unwrap();
            if method == Some(last) {
                return;
            }
        }
        assert_ne!(stream.read_buf(&mut buffer).await.unwrap(), 0);
    }
}

/// A relay over TCP that has allocated an address.
async fn open() -> (Relays, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut relays = relays(listener.local_addr().unwrap(), "tcp");
    let (mut stream, _) = listener.accept().await.unwrap();
    serve(&mut stream, Method::Allocate).await;
    let RelayEvent::Opened(relayed, local) = relays.next().await else { panic!("not opened") };
    assert_eq!((relayed, local), (vec![address(RELAYED)], stream.peer_addr().unwrap()));
    (relays, stream)
}

fn error(relays: &Relays) -> RelayError {
    relays.failures(Duration::ZERO).remove(0).error
}

#[tokio::test]
async fn relayed_datagrams_pass_in_both_directions() {
    let (mut relays, mut stream) = open().await;
    relays.permit(address(PEER));
    serve(&mut stream, Method::ChannelBind).await;
    for datagram in [&b"one"[..], b"", b"fours"] {
        let frame = frame::write_channel(0x4000, datagram).unwrap();
        // In two pieces, as a network may split it.
        stream.write_all(&frame[..3]).await.unwrap();
        stream.write_all(&frame[3..]).await.unwrap();
        let RelayEvent::Datagram { relayed, from, datagram: got } = relays.next().await else { panic!() };
        assert_eq!((relayed, from, &got[..]), (address(RELAYED), address(PEER), datagram));
    }
    relays.send(address(RELAYED), address(PEER), b"hello".to_vec());
    let expected = frame::write_channel(0x4000, b"hello").unwrap();
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).await.unwrap();
    assert_eq!(got, expected);
}

#[tokio::test]
async fn server_of_another_kind_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut relays = relays(listener.local_addr().unwrap(), "tcp");
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    assert!(matches!(relays.next().await, RelayEvent::Failed(_)));
    assert!(matches!(error(&relays), RelayError::Malformed(_)), "{:?}", error(&relays));
    assert!(!relays.is_hopeful());
}

#[tokio::test]
async fn ended_connection_is_reopened_a_few_times() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut relays = relays(listener.local_addr().unwrap(), "tcp");
    for again in 0..=MAX_AGAIN {
        let (mut stream, _) = listener.accept().await.unwrap();
        serve(&mut stream, Method::Allocate).await;
        assert!(matches!(relays.next().await, RelayEvent::Opened(..)));
        assert!(relays.gave(address(RELAYED)) && !relays.is_awaited());
        drop(stream);
        let RelayEvent::Failed(gone) = relays.next().await else { panic!("not failed") };
        assert_eq!(gone, [address(RELAYED)]);
        assert!(!relays.gave(address(RELAYED)));
        assert_eq!(relays.is_awaited(), again < MAX_AGAIN);
    }
    // Then it is abandoned, until the server lists it again.
    assert!(!relays.is_hopeful());
    assert!(matches!(error(&relays), RelayError::Closed(_)), "{:?}", error(&relays));
    let url = relays.relays[0].place.url.to_string();
    relays.use_servers(&[server(&[url])], true, &[]);
    assert!(relays.is_hopeful() && relays.relays.len() == 1);
    // A relay that allocates nothing at all is abandoned at once.
    drop(listener.accept().await.unwrap());
    assert!(matches!(relays.next().await, RelayEvent::Failed(gone) if gone.is_empty()));
    assert!(!relays.is_hopeful());
}

#[tokio::test]
async fn relays_asked_again_release_their_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut relays = relays(listener.local_addr().unwrap(), "tcp");
    let (mut first, _) = listener.accept().await.unwrap();
    serve(&mut first, Method::Allocate).await;
    assert!(matches!(relays.next().await, RelayEvent::Opened(..)));
    assert_eq!(relays.locals().count(), 1);
    relays.contact_again();
    let (mut second, _) = listener.accept().await.unwrap();
    serve(&mut second, Method::Allocate).await;
    // The release of the first, and no datagram here.
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).await.unwrap();
    assert_eq!(Message::read(&rest).unwrap().number(attribute::LIFETIME), Some(0));
    assert!(matches!(relays.next().await, RelayEvent::Opened(..)));
    assert!(relays.gave(address(RELAYED)));
}

#[tokio::test]
async fn blocked_relay_has_a_bounded_queue() {
    let (mut relays, mut stream) = open().await;
    for _ in 0..100_000 {
        relays.send(address(RELAYED), address(PEER), vec![7; 1200]);
    }
    assert_eq!(relays.relays[0].commands.capacity(), 0, "what does not fit is dropped");
    // Its messages are handled nevertheless.
    serve(&mut stream, Method::ChannelBind).await;
    stream.write_all(&frame::write_channel(0x4000, b"still here").unwrap()).await.unwrap();
    assert!(matches!(relays.next().await, RelayEvent::Datagram { .. }));
}

#[tokio::test]
async fn unneeded_relay_releases_its_address() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut relays = relays(socket.local_addr().unwrap(), "udp");
    let mut buffer = [0; 2048];
    let (size, from) = socket.recv_from(&mut buffer).await.unwrap();
    socket.send_to(&answer(&buffer[..size]).unwrap(), from).await.unwrap();
    assert!(matches!(relays.next().await, RelayEvent::Opened(..)));
    drop(relays);
    let (size, _) = socket.recv_from(&mut buffer).await.unwrap();
    let goodbye = Message::read(&buffer[..size]).unwrap();
    assert_eq!((goodbye.method, goodbye.number(attribute::LIFETIME)), (Method::Refresh, Some(0)));
}

#[tokio::test]
async fn stalled_unneeded_relay_is_dropped() {
    let (relays, mut stream) = open().await;
    let relay = relays.relays[0].commands.clone();
    while relay.send(Command::Send(address(PEER), vec![7; 60_000])).await.is_ok() {
        if relay.capacity() == 0 && time::timeout(Duration::from_millis(100), relay.reserve()).await.is_err()
        {
            break;
        }
    }
    drop(relays);
    // It releases the allocation if it can, within a second, and ends.
    relay.closed().await;
    let mut rest = Vec::new();
    let _end_or_reset = stream.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn datagrams_of_others_than_the_relay_are_ignored() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut relays = relays(socket.local_addr().unwrap(), "udp");
    let mut buffer = [0; 2048];
    let (size, from) = socket.recv_from(&mut buffer).await.unwrap();
    let forged = answer(&buffer[..size]).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(&forged, from).await.unwrap();
    // Its response comes second, and is the one that counts.
    let message = Message::read(&buffer[..size]).unwrap();
    let refusal = Writer::new(Class::Error, message.method, message.transaction())
        .put(attribute::ERROR_CODE, b"\0\0\x04\x56Quota")
        .finish();
    socket.send_to(&refusal, from).await.unwrap();
    assert!(matches!(relays.next().await, RelayEvent::Failed(_)));
    assert_eq!(error(&relays), RelayError::Refused { code: 486, words: "Quota".into() });
}

#[tokio::test]
async fn relay_cannot_claim_the_address_of_another() {
    let (mut relays, _first) = open().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("turn:{}?transport=tcp", listener.local_addr().unwrap());
    relays.use_servers(&[server(&[url])], true, &[]);
    let (mut second, _) = listener.accept().await.unwrap();
    serve(&mut second, Method::Allocate).await;
    let RelayEvent::Opened(relayed, _) = relays.next().await else { panic!() };
    assert!(relayed.is_empty());
    assert!(relays.relays[0].gave(address(RELAYED)) && !relays.relays[1].gave(address(RELAYED)));
}

#[tokio::test]
async fn relays_are_bounded_and_other_servers_ignored() {
    let mut relays = Relays::new(None);
    let url = |port: usize| format!("turn:127.0.0.1:{port}?transport=tcp");
    let odd = ["stun:127.0.0.1", "turn:", "http://127.0.0.1", "turns:127.0.0.1?transport=udp"];
    let mut urls: Vec<_> = odd.map(str::to_owned).into();
    urls.extend([url(1), url(1), "turn:127.0.0.1:1?transport=udp".into()]);
    let too_long = IceServer { credential: "x".repeat(10_000), ..server(&[url(2)]) };
    relays.use_servers(&[too_long, server(&urls)], false, &[]);
    assert_eq!(relays.relays.len(), 1, "without UDP: {:?}", relays.relays);
    relays.use_servers(&[server(&(1..100).map(url).collect::<Vec<_>>())], true, &[]);
    assert_eq!(relays.relays.len(), MAX_RELAYS);
}

/// Relays that have failed, one for each listener.
async fn failed(listeners: &[TcpListener]) -> Relays {
    let mut relays = Relays::new(None);
    relays.use_servers(&[server(&urls(listeners))], true, &[]);
    for listener in listeners {
        drop(listener.accept().await.unwrap());
    }
    for _ in listeners {
        assert!(matches!(relays.next().await, RelayEvent::Failed(_)));
    }
    relays
}

fn urls(listeners: &[TcpListener]) -> Vec<String> {
    listeners.iter().map(|it| format!("turn:{}?transport=tcp", it.local_addr().unwrap())).collect()
}

async fn listeners(count: usize) -> Vec<TcpListener> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    listeners
}

fn places(relays: &Relays) -> Vec<String> {
    relays.relays.iter().map(|relay| relay.place.url.to_string()).collect()
}

#[tokio::test]
async fn relays_of_another_node_replace_failed_ones() {
    let (old, new) = (listeners(MAX_RELAYS).await, listeners(MAX_RELAYS).await);
    let mut relays = failed(&old).await;
    let (old_urls, new_urls) = (urls(&old), urls(&new));
    // One of them is listed again, and stays.
    relays.use_servers(&[server(&[&old_urls[..1], &new_urls[..2]].concat())], true, &[]);
    let expected = [&old_urls[0], &new_urls[0], &new_urls[1], &old_urls[3]];
    assert_eq!(places(&relays).iter().collect::<Vec<_>>(), expected);
    for listener in [&old[0], &new[0], &new[1]] {
        listener.accept().await.unwrap();
    }
    // Relays that have not answered and are no longer listed are replaced too.
    relays.use_servers(&[server(&new_urls)], true, &[]);
    let mut there = places(&relays);
    there.sort();
    let mut expected = new_urls.clone();
    expected.sort();
    assert_eq!(there, expected);
    for listener in &new[2..] {
        listener.accept().await.unwrap();
    }
}

#[tokio::test]
async fn relay_with_an_address_is_not_replaced() {
    let (mut relays, _stream) = open().await;
    let first = places(&relays);
    let (old, new) = (listeners(MAX_RELAYS - 1).await, listeners(MAX_RELAYS).await);
    relays.use_servers(&[server(&urls(&old))], true, &[]);
    relays.use_servers(&[server(&urls(&new))], true, &[]);
    assert_eq!(places(&relays), [first, urls(&new)[..MAX_RELAYS - 1].to_vec()].concat());
    assert!(relays.gave(address(RELAYED)));
}

#[tokio::test]
async fn silent_address_is_followed_by_the_next() {
    let bound = || UdpSocket::bind("127.0.0.1:0");
    let (silent, good) = (bound().await.unwrap(), bound().await.unwrap());
    // The port of the first is closed, and the second never answers.
    let addresses = [address("127.0.0.1:1"), silent.local_addr().unwrap(), good.local_addr().unwrap()];
    let place = RelayConfig {
        url: IceUrl::parse("turn:relay.example?transport=udp").unwrap(),
        credentials: Credentials::new("user", "pass").unwrap(),
        from: None,
        roots: Vec::new(),
    };
    let (commands, mut queue) = mpsc::channel(COMMANDS);
    let (report, mut reports) = mpsc::channel(REPORTS);
    let reports_of_it = Reports { number: 0, attempt: 1, queue: report };
    commands.try_send(Command::Permit(address(PEER))).unwrap();
    // However slow this machine is: the last one has as much time as it needs.
    let patience = Duration::from_millis(50);
    let trying = relay::try_each(&addresses, patience, &place, Vec::new(), &mut queue, &reports_of_it);
    let answering = async {
        let (mut buffer, mut methods) = ([0; 2048], Vec::new());
        while methods.last() != Some(&Method::ChannelBind) {
            let (size, from) = good.recv_from(&mut buffer).await.unwrap();
            methods.push(Message::read(&buffer[..size]).unwrap().method);
            good.send_to(&answer(&buffer[..size]).unwrap(), from).await.unwrap();
        }
        let opened = reports.recv().await.unwrap().report;
        assert!(matches!(opened, RelayReport::Opened(relayed, _) if relayed == [address(RELAYED)]));
    };
    tokio::select! {
        ended = trying => panic!("{ended:?}"),
        () = answering => {}
    }
    assert!(silent.into_std().unwrap().recv(&mut [0; 2048]).is_ok(), "it was asked before");
}

#[tokio::test]
async fn refusal_is_not_retried_at_another_address() {
    let (first, second) =
        (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    let place = RelayConfig {
        url: IceUrl::parse("turn:relay.example?transport=udp").unwrap(),
        credentials: Credentials::new("user", "pass").unwrap(),
        from: None,
        roots: Vec::new(),
    };
    let (_commands, mut queue) = mpsc::channel(COMMANDS);
    let (report, _reports) = mpsc::channel(REPORTS);
    let reports = Reports { number: 0, attempt: 1, queue: report };
    let day = Duration::from_secs(86_400);
    let trying = relay::try_each(&addresses, day, &place, Vec::new(), &mut queue, &reports);
    let (ended, ()) = tokio::join!(trying, async {
        let mut buffer = [0; 2048];
        let (size, from) = first.recv_from(&mut buffer).await.unwrap();
        let message = Message::read(&buffer[..size]).unwrap();
        let refusal = Writer::new(Class::Error, message.method, message.transaction())
            .put(attribute::ERROR_CODE, b"\0\0\x04\x56Quota")
            .finish();
        first.send_to(&refusal, from).await.unwrap();
    });
    assert_eq!(ended, Some(RelayError::Refused { code: 486, words: "Quota".into() }));
    assert!(second.into_std().unwrap().recv(&mut [0; 2048]).is_err(), "nothing came there");
}
