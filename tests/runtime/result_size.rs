//! How many bytes a result takes on the wire, compared with the document that it comes from.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::json;
use toolbridge::{
    Assistant, Client, ToolError, ToolResult,
    adapter::mcp::CallToolResult,
    memory::{MemoryRoom, MemoryTransport},
    result::Media,
    transport::{
        Capabilities, Packet, Participant, SendError, StreamPart, StreamParts, Transport, TransportEvent,
    },
};

/// More bytes than LiveKit's envelope adds to a packet: the sender's sid, its receivers, and the fields' lengths.
const ENVELOPE: usize = 128;

/// Counts the bytes that a participant sends.
struct Counting {
    inner: MemoryTransport,
    sent: Arc<AtomicUsize>,
}

impl Transport for Counting {
    fn local(&self) -> Participant {
        self.inner.local()
    }

    fn room(&self) -> String {
        self.inner.room()
    }

    fn present(&self) -> Vec<Participant> {
        self.inner.present()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let bytes = if packet.payload.len() > self.capabilities().max_packet {
            StreamParts::of(&packet).map(|part| ENVELOPE + part_size(&part)).sum()
        } else {
            ENVELOPE + packet.payload.len()
        };
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.inner.send(packet)
    }

    fn recv(&mut self) -> impl Future<Output = Option<TransportEvent>> + Send {
        self.inner.recv()
    }

    fn close(&mut self) -> impl Future<Output = ()> + Send {
        self.inner.close()
    }
}

fn part_size(part: &StreamPart) -> usize {
    match part {
        StreamPart::Header(header) => 2 * header.id.len() + header.topic.len(),
        StreamPart::Chunk { id, bytes, .. } => id.len() + bytes.len(),
        StreamPart::Trailer { id, reason } => id.len() + reason.len(),
    }
}

fn document() -> String {
    let bytes: Vec<u8> = (0_u32..1 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let image = Media::encode(&bytes, "image/png");
    json!({"content": [
        {"type": "text", "text": "a picture of the garden"},
        {"type": "image", "data": image.data(), "mimeType": "image/png"},
    ]})
    .to_string()
}

async fn picture() -> Result<ToolResult, ToolError> {
    Ok(CallToolResult::read(&document()).unwrap().result)
}

/// The image is in the native document and in a block; it is sent once.
#[tokio::test(start_paused = true)]
async fn image_of_a_mebibyte_takes_at_most_a_fiftieth_more_than_its_document() {
    let room = MemoryRoom::new();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = |inner| Counting { inner, sent: Arc::clone(&sent) };
    let builder = Client::builder().tool("picture", "", picture);
    let _client = builder.join_over(counted(room.client("phone"))).await.unwrap();
    let assistant = Assistant::builder().join_over(counted(room.assistant("assistant"))).await.unwrap();
    let result = ToolResult::of(&assistant.call("picture", ()).await.unwrap());
    let bytes = sent.load(Ordering::Relaxed);

    let document = document();
    assert_eq!(result.native().unwrap().json(), document);
    assert_eq!(result.for_model(1_000).images[0].size(), 1 << 20);
    let ratio = bytes as f64 / document.len() as f64;
    assert!((1.0..=1.02).contains(&ratio), "{bytes} bytes for a document of {}: {ratio:.4}", document.len());
}
