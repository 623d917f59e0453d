//! Implements the client side of WebSocket framing ([RFC
//! 6455](https://www.rfc-editor.org/rfc/rfc6455#section-5)).
//!
//! Nothing here logs, because the server sends refreshed tokens and relay passwords in these frames.

use std::io;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest payload of a control frame, in bytes.
const MAX_CONTROL: usize = 125;
/// The size of one read when a frame is incomplete, in bytes.
const READ: usize = 16 * 1024;

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// A message from the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// A complete binary message.
    Binary(Vec<u8>),
    /// A ping, whose bytes must be returned.
    Ping(Vec<u8>),
    /// The server closes the connection, with this status if it gave one.
    Close(Option<u16>),
    /// A text message or a pong, which are ignored.
    Nothing,
}

/// Reads messages of at most `limit` bytes.
pub(crate) struct Reader<S> {
    stream: S,
    /// Bytes of an incomplete frame.
    buffer: BytesMut,
    /// The received parts of a fragmented message, and whether it is a binary one.
    message: Option<(bool, Vec<u8>)>,
    limit: usize,
}

/// A complete frame header.
struct Header {
    is_last: bool,
    opcode: u8,
    /// The size of the header itself, in bytes.
    size: usize,
    payload: usize,
}

impl<S: AsyncRead + Unpin> Reader<S> {
    /// Creates a reader for the bytes after the upgrade. `early` arrived together with the server's response.
    pub(super) fn new(stream: S, early: BytesMut, limit: usize) -> Self {
        Self { stream, buffer: early, message: None, limit }
    }

    /// Returns the next message from the server.
    ///
    /// # Errors
    /// The connection failed or ended, or the server broke the protocol or the size limit. Nothing can be read
    /// afterwards.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> io::Result<Incoming> {
        loop {
            let missing = match self.header()? {
                Some(header) => {
                    let size = header.size + header.payload;
                    if self.buffer.len() >= size {
                        self.buffer.advance(header.size);
                        let payload = self.buffer.split_to(header.payload);
                        if let Some(incoming) = self.take(&header, &payload)? {
                            return Ok(incoming);
                        }
                        continue;
                    }
                    size - self.buffer.len()
                }
                None => 1,
            };
            // Memory is allocated as bytes arrive, not for the length that a header announces.
            self.buffer.reserve(missing.clamp(1, READ));
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the connection ended without a close frame",
                ));
            }
        }
    }

    /// Returns the header of the frame at the start of the buffer, if it is complete.
    fn header(&self) -> io::Result<Option<Header>> {
        let &[first, second, ..] = &self.buffer[..] else { return Ok(None) };
        let (is_last, opcode) = (first & FIN != 0, first & 0x0f);
        if first & RESERVED != 0 {
            return Err(broken("a frame uses an extension that was not negotiated"));
        }
        // A client must fail the connection then (RFC 6455, section 5.1).
        if second & MASKED != 0 {
            return Err(broken("a frame from the server is masked"));
        }
        let (size, payload) = match second & 0x7f {
            126 => match self.buffer.get(2..4) {
                Some(mut bytes) => (4, u64::from(bytes.get_u16())),
                None => return Ok(None),
            },
            127 => match self.buffer.get(2..10) {
                Some(mut bytes) => (10, bytes.get_u64()),
                None => return Ok(None),
            },
            length => (2, u64::from(length)),
        };
        let limit = match opcode {
            CONTINUATION if self.message.is_none() => {
                return Err(broken("a continuation frame without a message"));
            }
            TEXT | BINARY if self.message.is_some() => {
                return Err(broken("a message starts before the previous one has ended"));
            }
            // Each would cost a turn, and none would come nearer to the limit.
            CONTINUATION if payload == 0 && !is_last => return Err(broken("a part of a message is empty")),
            CONTINUATION | TEXT | BINARY => self.limit - self.message.as_ref().map_or(0, |it| it.1.len()),
            CLOSE | PING | PONG if is_last => MAX_CONTROL,
            CLOSE | PING | PONG => return Err(broken("a control frame is fragmented")),
            _ => return Err(broken("a frame has an unknown opcode")),
        };
        match usize::try_from(payload) {
            Ok(payload) if payload <= limit => Ok(Some(Header { is_last, opcode, size, payload })),
            _ => Err(broken("a frame is too large")),
        }
    }

    /// Handles a frame; returns `None` if more of its message follows.
    fn take(&mut self, header: &Header, payload: &[u8]) -> io::Result<Option<Incoming>> {
        match header.opcode {
            PING => return Ok(Some(Incoming::Ping(payload.to_vec()))),
            PONG => return Ok(Some(Incoming::Nothing)),
            CLOSE => {
                let status = match *payload {
                    [] => None,
                    [high, low, ..] => Some(u16::from_be_bytes([high, low])),
                    [_] => return Err(broken("a close frame has half a status")),
                };
                return Ok(Some(Incoming::Close(status)));
            }
            _ => {}
        }
        let (is_binary, mut message) =
            self.message.take().unwrap_or_else(|| (header.opcode == BINARY, Vec::new()));
        message.extend_from_slice(payload);
        // Control frames may come between the parts of a message, so the parts are kept apart from them.
        if !header.is_last {
            self.message = Some((is_binary, message));
            return Ok(None);
        }
        Ok(Some(if is_binary { Incoming::Binary(message) } else { Incoming::Nothing }))
    }
}

/// Queues frames, each with its own mask, as the protocol requires from clients, and writes them.
pub(crate) struct Writer<S> {
    stream: S,
    /// Frames that are not completely written yet.
    out: BytesMut,
    is_flushed: bool,
    is_closed: bool,
}

impl<S: AsyncWrite + Unpin> Writer<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, out: BytesMut::new(), is_flushed: true, is_closed: false }
    }

    /// Queues a binary message.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn message(&mut self, message: &[u8]) -> io::Result<()> {
        self.put(BINARY, message)
    }

    /// Queues the answer to a ping.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.put(PONG, payload)
    }

    /// Queues a close frame, once. Nothing can be sent afterwards.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn close(&mut self, status: Option<u16>) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let payload = status.map(u16::to_be_bytes);
        let closed = self.put(CLOSE, payload.as_ref().map_or(&[], |status| &status[..]));
        self.is_closed = true;
        closed
    }

    /// Returns the size of what was queued and not written yet, in bytes.
    pub(crate) fn unwritten(&self) -> usize {
        self.out.len()
    }

    /// Returns true if the other end can have everything.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_flushed
    }

    /// Writes everything that is queued.
    ///
    /// # Errors
    /// The connection failed.
    ///
    /// # Cancel safety
    /// The bytes that a dropped future has not written are written by the next call.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            if self.stream.write_buf(&mut self.out).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        // TLS keeps encrypted bytes that the socket did not take. Only a flush writes them, so `is_flushed`
        // is more than an empty `out`.
        self.stream.flush().await?;
        self.is_flushed = true;
        Ok(())
    }

    fn put(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        if self.is_closed {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection is closed"));
        }
        let mut mask = [0; 4];
        // Unpredictable, so that nobody who chooses a payload chooses the bytes that a proxy in between sees
        // (RFC 6455, section 10.3).
        getrandom::fill(&mut mask).map_err(io::Error::other)?;
        put(&mut self.out, opcode, payload, mask);
        self.is_flushed = false;
        Ok(())
    }
}

/// Appends a frame that is a complete message.
fn put(out: &mut BytesMut, opcode: u8, payload: &[u8], mask: [u8; 4]) {
    out.reserve(payload.len() + 14);
    out.put_u8(FIN | opcode);
    match payload.len() {
        length @ ..126 => out.put_u8(MASKED | length as u8),
        length @ ..0x1_0000 => {
            out.put_u8(MASKED | 126);
            out.put_u16(length as u16);
        }
        length => {
            out.put_u8(MASKED | 127);
            out.put_u64(length as u64);
        }
    }
    out.put_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::{
        WebSocketStream,
        tungstenite::{Message, protocol::Role},
    };

    use super::*;

    const LIMIT: usize = 200_000;

    /// Reads these bytes up to the first error.
    async fn read(bytes: &[u8]) -> (Vec<Incoming>, io::Error) {
        let mut reader = Reader::new(bytes, BytesMut::new(), LIMIT);
        let mut incoming = Vec::new();
        loop {
            match reader.next().await {
                Ok(one) => incoming.push(one),
                Err(error) => return (incoming, error),
            }
        }
    }

    #[tokio::test]
    async fn messages_of_every_length_pass_to_another_implementation() {
        let (client_end, server_end) = tokio::io::duplex(64 * 1024);
        let mut server = WebSocketStream::from_raw_socket(server_end, Role::Server, None).await;
        let (reading, writing) = tokio::io::split(client_end);
        let mut reader = Reader::new(reading, BytesMut::new(), LIMIT);
        let mut writer = Writer::new(writing);
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, LIMIT] {
            let message: Vec<_> = (0..length).map(|n| n as u8).collect();
            writer.message(&message).unwrap();
            let (sent, heard) = tokio::join!(writer.flush(), server.next());
            sent.unwrap();
            assert_eq!(heard.unwrap().unwrap(), Message::Binary(message.clone().into()));
            let answer = server.send(Message::Binary(message.clone().into()));
            let (sent, heard) = tokio::join!(answer, reader.next());
            sent.unwrap();
            assert_eq!(heard.unwrap(), Incoming::Binary(message));
        }
        server.send(Message::Ping(b"still there?"[..].into())).await.unwrap();
        assert_eq!(reader.next().await.unwrap(), Incoming::Ping(b"still there?".to_vec()));
        writer.pong(b"still there?").unwrap();
        assert!(!writer.is_flushed() && writer.unwritten() > 12);
        writer.flush().await.unwrap();
        assert!(writer.is_flushed() && writer.unwritten() == 0);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::Pong(b"still there?"[..].into()));
        writer.close(Some(1000)).unwrap();
        writer.flush().await.unwrap();
        assert!(matches!(server.next().await, Some(Ok(Message::Close(Some(it)))) if it.code == 1000.into()));
        assert!(writer.message(b"late").is_err());
        // The other end answers the close frame when it is read again.
        assert!(server.next().await.is_none());
        assert_eq!(reader.next().await.unwrap(), Incoming::Close(Some(1000)));
    }

    #[tokio::test]
    async fn fragments_form_one_message_with_control_frames_in_between() {
        let bytes = [
            &[BINARY, 1, b'a', FIN | PING, 1, b'?', CONTINUATION, 1, b'b', FIN | CONTINUATION, 1, b'c'][..],
            &[FIN | TEXT, 1, b'x', FIN | PONG, 0, FIN | CLOSE, 0],
        ];
        let (incoming, error) = read(&bytes.concat()).await;
        assert_eq!(
            incoming,
            [
                Incoming::Ping(b"?".to_vec()),
                Incoming::Binary(b"abc".to_vec()),
                Incoming::Nothing,
                Incoming::Nothing,
                Incoming::Close(None)
            ]
        );
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn frames_that_break_the_protocol_or_the_limit_are_errors() {
        let huge = |length: u64| [&[FIN | BINARY, 127][..], &length.to_be_bytes()].concat();
        let filled = [&[BINARY, 127][..], &(LIMIT as u64).to_be_bytes(), &vec![0; LIMIT]].concat();
        for (bytes, why) in [
            (vec![FIN | 0x40 | BINARY, 0], "extension"),
            (vec![FIN | BINARY, MASKED], "masked"),
            (vec![FIN | CONTINUATION, 0], "without a message"),
            (vec![BINARY, 0, FIN | BINARY, 0], "previous one"),
            (vec![BINARY, 0, CONTINUATION, 0], "empty"),
            (vec![PING, 0], "fragmented"),
            (vec![FIN | PING, 126, 0, 126], "too large"),
            (vec![FIN | 0x3, 0], "opcode"),
            (vec![FIN | CLOSE, 1, 0], "status"),
            (huge(LIMIT as u64 + 1), "too large"),
            (huge(u64::MAX), "too large"),
            ([&filled[..], &[FIN | CONTINUATION, 1, 0]].concat(), "too large"),
        ] {
            let (_, error) = read(&bytes).await;
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{why}");
            assert!(error.to_string().contains(why), "{error} is not about {why}");
        }
    }

    #[tokio::test]
    async fn header_alone_allocates_no_memory_for_its_announced_length() {
        let header = [&[FIN | BINARY, 127][..], &(LIMIT as u64).to_be_bytes()].concat();
        let mut reader = Reader::new(&header[..], BytesMut::new(), LIMIT);
        assert_eq!(reader.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(reader.buffer.capacity() <= 4 * READ, "{}", reader.buffer.capacity());
    }

    #[tokio::test]
    async fn cancelled_read_or_write_loses_nothing() {
        let (client_end, server_end) = tokio::io::duplex(3);
        let mut server = WebSocketStream::from_raw_socket(server_end, Role::Server, None).await;
        let (reading, writing) = tokio::io::split(client_end);
        let mut reader = Reader::new(reading, BytesMut::new(), LIMIT);
        let mut writer = Writer::new(writing);
        writer.message(b"first").unwrap();
        let cancelled = tokio::select! {
            biased;
            sent = writer.flush() => Some(sent),
            () = async {} => None,
        };
        assert!(cancelled.is_none(), "three bytes are all that fits");
        writer.message(b"second").unwrap();
        let (sent, heard) = tokio::join!(writer.flush(), async {
            [server.next().await.unwrap().unwrap(), server.next().await.unwrap().unwrap()]
        });
        sent.unwrap();
        assert_eq!(heard.map(|it| it.into_data().to_vec()), [b"first".to_vec(), b"second".to_vec()]);
        let answering = server.send(Message::Binary(b"answer"[..].into()));
        let (sent, heard) = tokio::join!(answering, async {
            loop {
                tokio::select! {
                    biased;
                    heard = reader.next() => return heard,
                    () = tokio::task::yield_now() => {}
                }
            }
        });
        sent.unwrap();
        assert_eq!(heard.unwrap(), Incoming::Binary(b"answer".to_vec()));
    }

    #[test]
    fn every_frame_has_its_own_mask() {
        let mut out = BytesMut::new();
        put(&mut out, BINARY, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        assert_eq!(out[..], [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
    }
}
