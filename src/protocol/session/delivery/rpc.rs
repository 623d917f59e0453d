//! Sends the messages and texts of LiveKit's RPC (`wire.md`, section 10).

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;

use super::{Context, Counter, Delivery, Purpose, Sent};
use crate::{
    protocol::{rpc, session::peers::Peers},
    transport::{Compression, Identity, Packet, Participant, RpcMessage, RpcRequest, TextStream},
};

/// The timeout in a ping. The acknowledgement, which is sent at once, shows enough.
const PING_TIMEOUT_MS: u32 = 1_000;

/// The shortest text that is compressed, in bytes. A shorter one gains nothing in a packet.
#[cfg(feature = "deflate")]
const WORTH_COMPRESSING: usize = 200;

impl Delivery {
    /// Sends an acknowledgement or a refusal of RPC, which nobody else keeps. One for a participant without rights is not sent
    /// again.
    pub(crate) fn send_rpc(&mut self, cx: &mut Context, peers: &Peers, mut packet: Packet) {
        packet.id = self.next_packet();
        let may_call = packet.to.first().is_some_and(|to| peers.may_call_by_rpc(cx, to));
        self.emit_kept(cx, packet, 0, if may_call { Purpose::Once } else { Purpose::Never });
    }

    /// Pings a participant by a request for a method that nobody has, under this id. The ping is followed by the next.
    pub(crate) fn ping_by_rpc(&mut self, cx: &mut Context, to: &Identity, id: String) {
        let request = RpcRequest::new(id, rpc::PING, Bytes::new(), PING_TIMEOUT_MS);
        let mut packet = Packet::rpc(to.clone(), RpcMessage::Request(request));
        packet.overtakes = true;
        packet.id = self.next_packet();
        cx.count(Counter::Pings);
        self.emit_packet(cx, packet);
    }

    /// Sends the request of a call by RPC, or the answer. Its stanza is not on the wire: it identifies the record, as that of a
    /// frame does. An answer has one that no frame reaches, so that frames have the same stanzas whatever was answered.
    pub(crate) fn post_rpc(&mut self, cx: &mut Context, mut packet: Packet, purpose: Purpose) -> Sent {
        packet.id = self.next_packet();
        let stanza = match purpose {
            Purpose::Result(_) => i32::MAX - i32::try_from(packet.id % (1 << 30)).unwrap_or(0),
            _ => self.use_stanza(cx),
        };
        if packet.stream.is_some() {
            self.large.note(packet.id, &packet.to, stanza);
        }
        let sent = Sent { stanza, size: packet.size() };
        self.emit_kept(cx, packet, stanza, purpose);
        sent
    }
}

/// Returns the packet that carries a text of RPC as a stream: in its header if the receiver announces that it reads that,
/// compressed if it can expand it and it is then shorter.
pub(crate) fn text_packet(
    cx: &mut Context,
    to: &Identity,
    described: Option<&Participant>,
    topic: impl Into<Cow<'static, str>>,
    attributes: BTreeMap<String, String>,
    payload: Bytes,
) -> Packet {
    let mut stream = TextStream::new(payload.len());
    stream.attributes = attributes;
    let reads_headers = described.is_some_and(|it| it.protocol() >= 2);
    let can_inflate = reads_headers && described.is_some_and(Participant::can_inflate);
    let (payload, compression) = compressed(payload, can_inflate);
    stream.compression = compression;
    stream.inline = reads_headers && payload.len() <= rpc::MAX_INLINE;
    let mut packet = Packet::text(to.clone(), topic, payload, stream);
    // SDKs do not look at the sender of a chunk, so others must not be able to guess the id.
    packet.stream = Some(cx.ids.next().into());
    packet
}

/// Returns the payload, compressed if its receiver can expand it and it is then shorter.
#[cfg_attr(not(feature = "deflate"), expect(unused_variables, reason = "nothing is compressed"))]
fn compressed(payload: Bytes, can_inflate: bool) -> (Bytes, Compression) {
    #[cfg(feature = "deflate")]
    if can_inflate
        && payload.len() > WORTH_COMPRESSING
        && let Some(smaller) = crate::protocol::deflate::compressed(&payload)
    {
        return (smaller.into(), Compression::Deflate);
    }
    (payload, Compression::None)
}
