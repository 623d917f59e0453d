//! Recordings of participants that compress: they have the frames before compression.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolbridge::{
    Assistant, Client, ToolError,
    frame::{Frame, Kind},
    memory::{MemoryRoom, MemoryTransport},
    recording::{Happened, Recording, check},
    replay::Replay,
    transport::{Capabilities, Lane, Packet, Participant, SendError, Transport, TransportEvent},
};

use crate::folder::Folder;

const MARK: u8 = 0xc1;

/// A transport as over a network. It counts the compressed packets that are sent.
struct Network {
    inner: MemoryTransport,
    compressed: Arc<AtomicUsize>,
}

impl Transport for Network {
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
        with!(self.inner.capabilities(), compress = true)
    }

    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        if packet.payload.first() == Some(&MARK) {
            self.compressed.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.send(packet)
    }

    fn recv(&mut self) -> impl Future<Output = Option<TransportEvent>> + Send {
        self.inner.recv()
    }

    fn close(&mut self) -> impl Future<Output = ()> + Send {
        self.inner.close()
    }
}

#[derive(Deserialize, JsonSchema)]
struct Wanted {
    count: usize,
}

async fn records(wanted: Wanted) -> Result<Value, ToolError> {
    let record = |n: usize| json!({"id": n, "name": format!("lamp {n}"), "level": n * 7_919 % 1_000});
    Ok(json!({"records": (0..wanted.count).map(record).collect::<Vec<_>>()}))
}

#[tokio::test]
async fn recording_of_compressed_frames_has_plain_ones_and_replays_without_differences() {
    let folder = Folder::new();
    let (phone_file, assistant_file) = (folder.file("phone.mcap"), folder.file("assistant.mcap"));
    let room = MemoryRoom::new();
    let compressed = Arc::new(AtomicUsize::new(0));
    let over = |inner| Network { inner, compressed: Arc::clone(&compressed) };
    let phone = Client::builder().tool("records", "", records).record(&phone_file);
    let phone = phone.join_over(over(room.client("phone"))).await.unwrap();
    let assistant = Assistant::builder().record(&assistant_file);
    let assistant = assistant.join_over(over(room.assistant("assistant"))).await.unwrap();
    // In one packet; compressed on the lossy lane; compressed above it; longer than a packet; a stream in each form.
    for count in [1, 60, 300, 1_000, 10_000] {
        let result = assistant.call("records", json!({"count": count})).await.unwrap();
        let result = result.to_json();
        assert_eq!(result["records"].as_array().unwrap().len(), count);
    }
    assistant.close().await;
    phone.close().await;
    assert!(compressed.load(Ordering::Relaxed) >= 4, "the large results are sent compressed");

    for file in [&phone_file, &assistant_file] {
        let entries = || Recording::open(file).unwrap().entries();
        let mut large = Vec::new();
        for entry in entries() {
            let Happened::Packet(packet) = entry.what else { continue };
            assert_ne!(packet.payload.first(), Some(&MARK), "the frame before compression");
            assert_eq!(packet.compressed, packet.payload.len() > 1_200);
            if packet.compressed {
                large.push(packet);
            }
        }
        assert!(large.iter().any(|packet| packet.lane == Lane::Lossy), "one was small when compressed");
        assert!(large.iter().any(|packet| !packet.stream && packet.payload.len() > Capabilities::MAX_PACKET));
        assert!(large.iter().any(|packet| packet.stream), "one was too long for a packet");
        assert_eq!(check(entries()).findings.len(), 0, "{:?}", check(entries()).findings);
        let report = Replay::dry(entries()).unwrap();
        assert!(report.is_same() && report.compared > 0, "{report}");
    }
}

#[tokio::test]
async fn recorded_compressed_frame_that_the_session_dropped_is_dropped_in_the_replay() {
    let folder = Folder::new();
    let file = folder.file("phone.mcap");
    let room = MemoryRoom::new();
    let phone = Client::builder().tool("records", "", records).record(&file);
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let mut agent = room.assistant("agent");
    let request = |id: &str, stanza: u32| {
        let body =
            json!({"id": id, "toolName": "records", "parameters": {"count": 1}, "execution": "client"});
        let text =
            json!({"type": 6, "stanzaId": stanza, "conversationId": "memory", "body": body}).to_string();
        Frame::from_json(&text).unwrap().into_bytes()
    };
    // It has sent no Configuration, so its plain request is read, and the compressed one is not.
    let frame = request("V1StGXR8_Z5jdHi6B-myT", 1);
    let head = [&[MARK], &(frame.len() as u32).to_be_bytes()[..]].concat();
    let mut writer = flate2::write::DeflateEncoder::new(head, flate2::Compression::fast());
    writer.write_all(&frame).unwrap();
    agent.send(Packet::new(["phone".into()], writer.finish().unwrap())).await.unwrap();
    agent.send(Packet::new(["phone".into()], request("Uakgb_J5m9g-0JDMbcJqL", 2))).await.unwrap();
    loop {
        let TransportEvent::Packet(packet) = agent.recv().await.unwrap() else { continue };
        let frame = Frame::decode(packet.payload).unwrap();
        if frame.kind() == Kind::TOOL_USE_RESULT {
            assert_eq!(frame.to_json().unwrap()["body"]["id"], "Uakgb_J5m9g-0JDMbcJqL");
            break;
        }
    }
    phone.close().await;

    let entries = || Recording::open(&file).unwrap().entries();
    let packets = entries().filter_map(|entry| match entry.what {
        Happened::Packet(packet) => Some(packet),
        _ => None,
    });
    let dropped: Vec<_> = packets.filter(|packet| packet.compressed).collect();
    assert!(dropped.len() == 1 && dropped[0].payload == frame, "{dropped:?}");
    let report = Replay::dry(entries()).unwrap();
    assert!(report.is_same() && report.compared > 0, "{report}");
}
