//! Serves an open signaling connection: reads, writes, and keeps it alive.

use std::{
    io,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use livekit_protocol::{
    DisconnectReason, JoinResponse, LeaveRequest, Ping, SignalRequest, leave_request, signal_request,
    signal_response,
};
use prost::Message as _;
use tokio::{
    sync::mpsc,
    time::{self, MissedTickBehavior},
};

use super::{
    server_event::{ServerEvent, server_event},
    websocket::{DialFailure, FrameLimits, Incoming, Socket, SocketReader, SocketWriter, Unread, weight},
};
use crate::clock::Spelled;

/// The time limit of leaving and closing, for the case that the socket is dead.
pub(super) const GOODBYE: Duration = Duration::from_secs(1);
/// The status of a normal closure.
const NORMAL: u16 = 1000;
/// The size of unwritten bytes from which nothing more is read or taken. Otherwise a server that sends pings and reads no
/// answer could fill the memory.
const MAX_UNWRITTEN: usize = 64 * 1024;

/// An open signaling connection.
pub(super) struct OpenLink {
    reader: SocketReader,
    writer: SocketWriter,
    limits: FrameLimits,
    pub(super) keep_alive: KeepAlive,
}

/// How often to send a ping, and how long the server may be silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeepAlive {
    interval: Duration,
    timeout: Duration,
}

impl KeepAlive {
    /// Returns the times that the server asks for.
    pub(super) fn of(response: &JoinResponse) -> Self {
        let seconds = |given: i32, default: Duration| {
            u64::try_from(given).ok().filter(|it| *it > 0).map_or(default, Duration::from_secs)
        };
        let default = Self::default();
        Self {
            interval: seconds(response.ping_interval, default.interval),
            timeout: seconds(response.ping_timeout, default.timeout),
        }
    }
}

impl Default for KeepAlive {
    /// Returns the times of LiveKit's server without a configuration of its own.
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), timeout: Duration::from_secs(15) }
    }
}

impl OpenLink {
    pub(super) fn new(socket: Socket, limits: FrameLimits, keep_alive: KeepAlive) -> Self {
        let Socket { reader, writer } = socket;
        Self { reader, writer, limits, keep_alive }
    }

    /// Waits for the server's first message.
    pub(super) async fn first(&mut self) -> Result<signal_response::Message, DialFailure> {
        loop {
            match self.reader.next().await.map_err(DialFailure::of_io)? {
                Incoming::Binary(frame) => {
                    if let Some(message) = self.limits.take(&frame).map_err(DialFailure::Unfit)? {
                        return Ok(message);
                    }
                }
                Incoming::Ping(payload) => {
                    self.writer.pong(&payload).map_err(DialFailure::of_io)?;
                    self.writer.flush().await.map_err(DialFailure::of_io)?;
                }
                Incoming::Nothing => {}
                Incoming::Close(_) => {
                    return Err(DialFailure::unreachable("the connection was closed during the join"));
                }
            }
        }
    }

    /// Exchanges messages until the connection is lost, and returns why it was.
    pub(super) async fn serve(
        &mut self,
        requests: &mut mpsc::Receiver<signal_request::Message>,
        events: &mpsc::UnboundedSender<ServerEvent>,
        unread: &Unread,
    ) -> String {
        let KeepAlive { interval, timeout } = self.keep_alive;
        let mut ping = time::interval_at(time::Instant::now() + interval, interval);
        // After a suspension one ping is enough.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let silence = time::sleep(timeout);
        tokio::pin!(silence);
        let (mut pinged, mut round_trip) = (Instant::now(), Duration::ZERO);
        loop {
            let has_room = self.writer.unwritten() < MAX_UNWRITTEN;
            let written = tokio::select! {
                incoming = read(&mut self.reader, unread), if has_room => {
                    let incoming = match incoming {
                        Ok(incoming) => incoming,
                        Err(error) => return error.to_string(),
                    };
                    // Any frame counts and not only a pong, as in LiveKit's own clients.
                    silence.as_mut().reset(time::Instant::now() + timeout);
                    match incoming {
                        Incoming::Binary(frame) => {
                            match self.limits.take(&frame) {
                                Ok(Some(signal_response::Message::PongResp(_))) => round_trip = pinged.elapsed(),
                                Ok(Some(message)) => {
                                    let weight = weight(frame.len(), &message);
                                    if let Some(event) = server_event(message) {
                                        unread.add(weight);
                                        // An owner that no longer reads ends the connection.
                                        let _ = events.send(event);
                                    }
                                }
                                Ok(None) => {}
                                Err(why) => return why.into(),
                            }
                            Ok(())
                        }
                        Incoming::Ping(payload) => self.writer.pong(&payload),
                        Incoming::Nothing => Ok(()),
                        Incoming::Close(status) => {
                            // A peer that has left needs no reply.
                            let _ = self.writer.close(status);
                            let _ = time::timeout(GOODBYE, self.writer.flush()).await;
                            return "the server closed it".into();
                        }
                    }
                }
                Some(message) = requests.recv(), if has_room => self.put(message),
                written = self.writer.flush(), if !self.writer.is_flushed() => written,
                _ = ping.tick(), if has_room => {
                    pinged = Instant::now();
                    self.put(signal_request::Message::PingReq(Ping {
                        timestamp: milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
                        rtt: milliseconds(round_trip),
                    }))
                }
                () = &mut silence => return format!("no message for {}", Spelled(timeout)),
            };
            if let Err(error) = written {
                return error.to_string();
            }
        }
    }

    /// Writes what is left, the leave request, and a close frame.
    pub(super) async fn close(&mut self, leaves: bool) {
        if leaves {
            let leave = LeaveRequest {
                action: leave_request::Action::Disconnect.into(),
                reason: DisconnectReason::ClientInitiated.into(),
                ..Default::default()
            };
            // Without it the server would wait for a resume, and the others would see the participant stay.
            let _ = self.put(signal_request::Message::Leave(leave));
        }
        let _ = self.writer.close(Some(NORMAL));
        // A closed peer cannot be notified.
        let _ = self.writer.flush().await;
    }

    fn put(&mut self, message: signal_request::Message) -> io::Result<()> {
        self.writer.message(&SignalRequest { message: Some(message) }.encode_to_vec())
    }
}

/// Reads a message as soon as earlier ones were read: a slow reader slows the server down.
///
/// # Cancel safety
/// Dropping the future loses nothing.
async fn read(reader: &mut SocketReader, unread: &Unread) -> io::Result<Incoming> {
    unread.room().await;
    reader.next().await
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use futures_util::{SinkExt, StreamExt};
    use livekit_protocol::{Pong, SignalResponse};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_tungstenite::{
        WebSocketStream,
        tungstenite::{Message as Frame, protocol::Role},
    };

    use super::*;
    use crate::livekit::signaling::websocket::Stream;

    type Events = mpsc::UnboundedReceiver<ServerEvent>;

    /// Serves a link, whose server is at the other end of this stream. Returns why it ended.
    async fn serve(stream: DuplexStream, requests: &mut mpsc::Receiver<signal_request::Message>) -> String {
        let (events, _reader): (_, Events) = mpsc::unbounded_channel();
        let mut limits = FrameLimits::new(true, Default::default());
        limits.take(&frame(signal_response::Message::Reconnect(Default::default()))).unwrap().unwrap();
        let stream: Box<dyn Stream> = Box::new(stream);
        let socket = Socket::new(stream, BytesMut::new());
        let mut link = OpenLink::new(socket, limits, KeepAlive::default());
        link.serve(requests, &events, &Unread::default()).await
    }

    fn frame(message: signal_response::Message) -> Vec<u8> {
        SignalResponse { message: Some(message) }.encode_to_vec()
    }

    async fn server(stream: DuplexStream) -> WebSocketStream<DuplexStream> {
        WebSocketStream::from_raw_socket(stream, Role::Server, None).await
    }

    async fn request(server: &mut WebSocketStream<DuplexStream>) -> signal_request::Message {
        let frame = server.next().await.unwrap().unwrap();
        SignalRequest::decode(frame.into_data()).unwrap().message.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_server_is_lost_and_was_asked() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (_requests, mut waiting) = mpsc::channel(1);
        let start = time::Instant::now();
        let lost = time::timeout(Duration::from_secs(60), serve(near, &mut waiting)).await.unwrap();
        assert_eq!((lost.as_str(), start.elapsed()), ("no message for 15 s", Duration::from_secs(15)));
        let mut server = server(far).await;
        for _ in 0..2 {
            assert!(matches!(request(&mut server).await, signal_request::Message::PingReq(_)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answered_ping_keeps_the_connection_and_gives_the_round_trip() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (_requests, mut waiting) = mpsc::channel(1);
        let answering = async {
            let mut server = server(far).await;
            for _ in 0..100 {
                let signal_request::Message::PingReq(ping) = request(&mut server).await else { panic!() };
                assert!((0..1_000).contains(&ping.rtt), "{} ms", ping.rtt);
                // The times of a hostile server are not used.
                let pong = Pong { last_ping_timestamp: i64::MIN, timestamp: i64::MAX };
                let pong = frame(signal_response::Message::PongResp(pong));
                server.send(Frame::Binary(pong.into())).await.unwrap();
            }
        };
        let start = time::Instant::now();
        tokio::select! {
            lost = serve(near, &mut waiting) => panic!("{lost}"),
            () = answering => {}
        }
        assert_eq!(start.elapsed().as_secs(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_floods_pings_and_reads_no_answer_is_read_up_to_a_limit() {
        let (near, far) = tokio::io::duplex(1024);
        let (_requests, mut waiting) = mpsc::channel(1);
        let (mut reading, mut writing) = tokio::io::split(far);
        let flood = async {
            let ping = [&[0x89, 125][..], &[b'x'; 125]].concat();
            let mut written = 0;
            while written < 4 * MAX_UNWRITTEN {
                let writing = time::timeout(Duration::from_secs(1), writing.write_all(&ping));
                if !matches!(writing.await, Ok(Ok(()))) {
                    break;
                }
                written += ping.len();
            }
            written
        };
        tokio::select! {
            lost = serve(near, &mut waiting) => panic!("{lost}"),
            written = flood => assert!((MAX_UNWRITTEN / 2..2 * MAX_UNWRITTEN).contains(&written), "{written} bytes"),
        }
        // It was alive until then.
        assert_eq!(reading.read_u8().await.unwrap(), 0x8a);
    }

    #[tokio::test(start_paused = true)]
    async fn last_words_are_the_queued_messages_the_leave_request_and_a_close_frame() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let socket = Socket::new(Box::new(near), BytesMut::new());
        let mut link =
            OpenLink::new(socket, FrameLimits::new(false, Default::default()), KeepAlive::default());
        link.put(signal_request::Message::SyncState(Default::default())).unwrap();
        link.close(true).await;
        drop(link);
        let mut server = server(far).await;
        assert!(matches!(request(&mut server).await, signal_request::Message::SyncState(_)));
        let signal_request::Message::Leave(leave) = request(&mut server).await else { panic!() };
        assert_eq!(leave.action(), leave_request::Action::Disconnect);
        assert!(matches!(server.next().await, Some(Ok(Frame::Close(Some(it)))) if it.code == NORMAL.into()));
    }

    #[test]
    fn times_that_make_no_sense_are_the_defaults() {
        let times = |interval, timeout| {
            let response =
                JoinResponse { ping_interval: interval, ping_timeout: timeout, ..Default::default() };
            let times = KeepAlive::of(&response);
            (times.interval.as_secs(), times.timeout.as_secs())
        };
        assert_eq!(times(7, 20), (7, 20));
        assert_eq!(times(0, i32::MIN), (5, 15));
        assert_eq!(times(i32::MAX, i32::MAX), (i32::MAX as u64, i32::MAX as u64));
    }
}
