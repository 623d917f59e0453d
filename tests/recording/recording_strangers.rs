//! What participants without rights add to a recording, and what its readers say of the rest.

use std::io::Write as _;

use serde_json::{Value, json};
use toolbridge::{
    Assistant, Client, ToolError,
    memory::MemoryRoom,
    recording::{
        Direction, Happened, LeftOutLimit, RecorderOptions, Recording, Redact, RoomEvent, check, entry_json,
        entry_text, info, redact, report as report_page,
    },
    replay::{Replay, Skipped},
    transport::{Packet, Participant, Transport},
};

use crate::folder::Folder;

/// A frame of 262 kB in the few hundred bytes that it has when it is compressed.
fn bomb() -> Vec<u8> {
    let frame = vec![b'a'; 262_000];
    let head = [&[0xc1], &(frame.len() as u32).to_be_bytes()[..]].concat();
    let mut writer = flate2::write::DeflateEncoder::new(head, flate2::Compression::best());
    writer.write_all(&frame).unwrap();
    writer.finish().unwrap()
}

async fn get_battery() -> Result<Value, ToolError> {
    Ok(json!({"level": 0.8}))
}

#[tokio::test]
async fn sec_r7_stranger_adds_its_bytes_within_a_limit_and_the_rest_is_counted() {
    const SENT: usize = 400;
    const LIMIT: usize = 100_000;
    let folder = Folder::new();
    let file = folder.file("phone.mcap");
    let room = MemoryRoom::new();
    let options = RecorderOptions::default().strangers(LIMIT, 2 * LIMIT).redact(Redact::nothing());
    let phone = Client::builder().tool("get_battery", "", get_battery).record(&file).record_options(options);
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let stranger = room.join(|sid| Participant::new("stranger", sid));
    let bomb = bomb();
    for _ in 0..SENT {
        stranger.send(Packet::new(["phone".into()], bomb.clone())).await.unwrap();
    }
    // The assistant comes after the flood, and is recorded as ever.
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    assistant.call("get_battery", ()).await.unwrap();
    let stats = phone.recording().unwrap();
    assistant.close().await;
    phone.close().await;

    let entries = || Recording::open(&file).unwrap().entries();
    let (mut heard, mut bytes, mut events) = (0, 0, Vec::new());
    for entry in entries() {
        match entry.what {
            Happened::Packet(packet)
                if packet.direction == Direction::Heard
                    && packet.from.as_ref().is_some_and(|from| from.identity().as_str() == "stranger") =>
            {
                assert!(packet.payload == bomb && !packet.compressed, "as it was received");
                (heard, bytes) = (heard + 1, bytes + packet.payload.len());
            }
            Happened::Event(event @ RoomEvent::LeftOut { .. }) => events.push(event),
            _ => {}
        }
    }
    assert!(bytes <= LIMIT && heard > LIMIT / (bomb.len() + 256) - 2, "{heard} packets of {bytes} bytes");
    assert!(events.len() < 12, "{events:?}");
    let Some(RoomEvent::LeftOut { identity, packets, bytes, limit, most, .. }) = events.last() else {
        panic!("nothing says that packets were left out")
    };
    assert_eq!(identity.as_ref().map(|it| it.as_str()), Some("stranger"));
    assert_eq!((*limit, *most), (LeftOutLimit::Sender, LIMIT as u64));
    let missing = (SENT - heard) as u64;
    assert!(*packets >= missing && *bytes >= missing * bomb.len() as u64, "{events:?}");
    assert!(stats.left_out >= missing && stats.unrecorded == 0, "{stats:?}");

    // The readers say so, and nothing of it is held against anybody.
    let info = info(entries());
    assert_eq!((info.left_out, info.not_expanded, info.malformed), (*packets, heard as u64, 0));
    assert!(info.finished && info.unrecorded == 0);
    assert!(info.to_string().contains("stranger has no rights"), "{info}");
    let checked = check(entries());
    let rules: Vec<_> = checked.findings.iter().map(|it| it.rule.as_str()).collect();
    assert_eq!((checked.errors, rules), (0, vec!["not-expanded"]), "{:?}", checked.findings);
    let texts: Vec<_> = entries().map(|entry| entry_text(&entry, None)).collect();
    assert!(texts.iter().any(|it| it.contains("left out so far: one without rights may add 100000 B")));
    assert!(texts.iter().any(|it| it.contains("a compressed frame that was not expanded")));
    let json: Vec<_> = entries().enumerate().map(|(at, entry)| entry_json(at, &entry)).collect();
    assert!(json.iter().any(|it| it["event"] == "left_out" && it["most"] == LIMIT));
    let report = Replay::dry(entries()).unwrap();
    assert!(report.is_same() && report.compared > 5, "{report}");
    let page = report_page(entries(), &[], "phone");
    assert!(page.contains(&format!("\"leftOut\":{packets}")) && page.contains("\"malformed\":0"));

    // A copy without data says the same.
    let copy = folder.file("copy.mcap");
    redact(&file, &copy, Redact::everything(), false).unwrap();
    let entries = || Recording::open(&copy).unwrap().entries();
    let copied = toolbridge::recording::info(entries());
    assert_eq!((copied.left_out, copied.not_expanded, copied.malformed), (*packets, heard as u64, 0));
    assert_eq!(copied.peers, info.peers, "with the sizes of the original");
    let report = Replay::dry(entries()).unwrap();
    assert!(report.is_same(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn refusals_to_a_stranger_that_was_left_out_are_no_differences_in_a_replay() {
    let folder = Folder::new();
    let file = folder.file("phone.mcap");
    let room = MemoryRoom::new();
    let options = RecorderOptions::default().strangers(4_000, 8_000);
    let phone = Client::builder().tool("get_battery", "", get_battery).record(&file).record_options(options);
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let mut stranger = room.join(|sid| Participant::new("stranger", sid));
    for n in 0..30 {
        let body = json!({"id": format!("call-{n}-V1StGXR8_Z5jdHi6"), "toolName": "get_battery", "parameters": {}, "execution": "client"});
        let frame =
            json!({"type": 6, "stanzaId": n + 1, "conversationId": "memory", "body": body}).to_string();
        let frame = toolbridge::frame::Frame::from_json(&frame).unwrap().into_bytes();
        stranger.send(Packet::new(["phone".into()], frame)).await.unwrap();
    }
    for _ in 0..30 {
        while !matches!(stranger.recv().await, Some(toolbridge::transport::TransportEvent::Packet(_))) {}
    }
    // What was due when the file ends is not compared anyway.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    phone.close().await;
    let entries = || Recording::open(&file).unwrap().entries();
    let info = info(entries());
    let stranger = info.peers.iter().find(|peer| peer.identity == "stranger").unwrap();
    assert!(stranger.left_out.packets > 30, "also those to it: {stranger:?}");
    assert_eq!(check(entries()).errors, 0, "{:?}", check(entries()).findings);
    let report = Replay::dry(entries()).unwrap();
    assert!(report.is_same() && report.skipped.contains_key(&Skipped::LeftOut), "{report}");
}
