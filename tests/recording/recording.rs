//! Recordings: written entries are read back, whatever happens to the file.

use std::{fs, path::Path, sync::atomic::Ordering};

use bytes::Bytes;
use toolbridge::{
    Assistant, Client, ClientBuilder, CloseReason, Identity, JoinError, Outcome, Role, Tool, ToolContext,
    ToolError, ToolName, ToolOptions, ToolSource, Value, memory,
    recording::{
        Direction, Entry, Happened, Moment, RecordError, Recorded, Recorder, RecorderOptions, Recording,
        Redact, RoomEvent, redact, repair,
    },
    tools::Visibility,
    transport::{Lane, Packet, Peer, SendError, Sid, Transport},
};

use crate::folder::Folder;

pub(crate) fn packet(direction: Direction, from: &Peer, to: &[&str], payload: impl Into<Bytes>) -> Happened {
    Happened::Packet(with!(
        Recorded::new(direction, from.clone(), payload),
        to = to.iter().map(|it| (*it).into()).collect()
    ))
}

pub(crate) fn here() -> Entry {
    let (identity, sid): (Identity, Sid) = ("phone".into(), "PA_1".into());
    let event = RoomEvent::Here { identity, sid, room: "kitchen".to_owned() };
    Entry::new(Moment(1_000), Happened::Event(event))
}

/// A phone's session: this many packets, sent and received in turn, and participants that join and leave.
pub(crate) fn session(packets: u64) -> Vec<Entry> {
    let (phone, assistant) = (Peer::new("phone", "PA_1"), Peer::new("assistant", "PA_2"));
    let joined = RoomEvent::Joined {
        identity: "assistant".into(),
        sid: "PA_2".into(),
        agent: true,
        role: Some("assistant".to_owned()),
        protocol: 0,
    };
    let mut entries = vec![here(), Entry::new(Moment(1_001), Happened::Event(joined))];
    for n in 0..packets {
        let payload = vec![n as u8; 1 + (n as usize * 37) % 300];
        let what = match n % 2 {
            0 => packet(Direction::Heard, &assistant, &[], payload),
            _ => packet(Direction::Sent, &phone, &["assistant"], payload),
        };
        entries.push(Entry::new(Moment(2_000 + n), what));
    }
    let left = RoomEvent::Left { identity: "assistant".into(), sid: "PA_2".into() };
    entries.push(Entry::new(Moment(9_000), Happened::Event(left)));
    entries
}

/// Returns the entries without the numbers that the file assigns.
pub(crate) fn without_numbers(entries: impl IntoIterator<Item = Entry>) -> Vec<Entry> {
    let without_numbers = |mut entry: Entry| {
        if let Happened::Packet(packet) = &mut entry.what {
            (packet.channel, packet.sequence) = (0, 0);
        }
        entry
    };
    entries.into_iter().map(without_numbers).collect()
}

pub(crate) fn read(path: &Path) -> Vec<Entry> {
    let mut entries = Recording::open(path).unwrap().entries();
    let read = entries.by_ref().collect();
    assert_eq!((entries.damage(), entries.foreign()), (None, 0));
    read
}

fn record(path: &Path, entries: Vec<Entry>) -> Recorder {
    let recorder = Recorder::create(path, RecorderOptions::default().role(Role::Client)).unwrap();
    for entry in entries {
        recorder.record(entry);
    }
    recorder
}

#[test]
fn recorded_entries_are_read_in_order() {
    let folder = Folder::new();
    let path = folder.file("session.mcap");
    let recorder = record(&path, session(40));
    recorder.finish().unwrap();
    assert_eq!(recorder.stats().recorded, 40);
    let about = Recording::open(&path).unwrap().about().clone();
    assert_eq!(
        (about.identity.clone().unwrap().as_str(), about.sid.clone().unwrap().as_str(), &*about.room),
        ("phone", "PA_1", "kitchen")
    );
    assert_eq!((about.role, about.begun, &*about.version), (Some(Role::Client), Moment(1_000), "0.1.0"));
    assert!(about.finished);
    assert_eq!(fs::read_dir(folder.file("")).unwrap().count(), 1, "a temporary file is left");
    let read = read(&path);
    assert_eq!(without_numbers(read.clone()), session(40));
    let numbers: Vec<_> = read
        .iter()
        .filter_map(|entry| match &entry.what {
            Happened::Packet(packet) if packet.direction == Direction::Sent => {
                Some((packet.channel, packet.sequence))
            }
            _ => None,
        })
        .collect();
    let channel = numbers[0].0;
    assert_eq!(numbers, (0..20).map(|n| (channel, n)).collect::<Vec<_>>());
}

#[test]
fn unfinished_file_is_readable_and_repairable() {
    let folder = Folder::new();
    let (path, dead, whole) = (folder.file("live.mcap"), folder.file("dead.mcap"), folder.file("whole.mcap"));
    let recorder = record(&path, session(20));
    let last = RoomEvent::Closed { reason: "closed".to_owned() };
    // An entry is in the file as soon as the thread has written it, even if the file is not finished.
    while !fs::read(&path).unwrap().ends_with(br#""sid":"PA_2"}"#) {
        std::thread::yield_now();
    }
    fs::copy(&path, &dead).unwrap();
    assert_eq!(without_numbers(read(&dead)), session(20));
    assert!(!Recording::open(&dead).unwrap().about().finished);
    let mut torn = fs::read(&dead).unwrap();
    let size = torn.len() as u64;
    torn.extend_from_slice(&[5, 40, 0, 0, 0, 0, 0, 0, 0, 1]);
    fs::write(&dead, torn).unwrap();

    let repaired = repair(&dead, &whole, false).unwrap();
    assert_eq!((repaired.entries, repaired.damage.unwrap().at_byte), (23, size));
    assert_eq!(without_numbers(read(&whole)), session(20));
    assert!(Recording::open(&whole).unwrap().about().finished);
    assert!(matches!(repair(&dead, &whole, false), Err(RecordError::Exists { .. })));
    assert_eq!(repair(&whole, &whole, true).unwrap().entries, 23);
    assert_eq!(without_numbers(read(&whole)), session(20));
    recorder.record(Entry::new(Moment(9_001), Happened::Event(last)));
    recorder.finish().unwrap();
    assert_eq!(read(&path).len(), 24);
}

#[cfg(unix)]
#[test]
fn sec_p3_recording_is_private_follows_no_link_and_replaces_nothing() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = Folder::new();
    let path = folder.file("session.mcap");
    record(&path, session(1)).finish().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = Recorder::create(&path, RecorderOptions::default());
    assert!(matches!(again, Err(RecordError::Exists { .. })), "{again:?}");
    let (link, pipe) = (folder.file("link.mcap"), Path::new("/dev/null"));
    symlink(&path, &link).unwrap();
    for odd in [&*link, pipe] {
        let error = Recorder::create(odd, RecorderOptions::default().force(true));
        assert!(matches!(error, Err(RecordError::Create { .. })), "{error:?}");
    }
    assert_eq!(without_numbers(read(&path)), session(1));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let recorder = Recorder::create(&path, RecorderOptions::default().force(true)).unwrap();
    session(2).into_iter().for_each(|entry| recorder.record(entry));
    drop(recorder.clone());
    recorder.finish().unwrap();
    assert_eq!(without_numbers(read(&path)), session(2));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn dropped_entries_are_counted_in_the_file() {
    let folder = Folder::new();
    let path = folder.file("session.mcap");
    let recorder = Recorder::create(&path, RecorderOptions::default().queue(0, 0)).unwrap();
    session(5).into_iter().for_each(|entry| recorder.record(entry));
    recorder.finish().unwrap();
    assert_eq!((recorder.stats().recorded, recorder.stats().unrecorded), (0, 5));
    let said: u64 = read(&path)
        .iter()
        .map(|entry| match entry.what {
            Happened::Event(RoomEvent::Unrecorded { packets }) => packets,
            _ => 0,
        })
        .sum();
    assert_eq!(said, 5);
}

#[test]
fn more_channels_than_a_file_may_have_are_counted() {
    let folder = Folder::new();
    let path = folder.file("session.mcap");
    let recorder = Recorder::create(&path, RecorderOptions::default()).unwrap();
    recorder.record(here());
    for n in 0..5_000 {
        let from = Peer::new(format!("stranger-{n}"), "PA_3");
        recorder.record(Entry::new(Moment(n), packet(Direction::Heard, &from, &[], "x")));
    }
    recorder.finish().unwrap();
    let stats = recorder.stats();
    assert_eq!((stats.recorded, stats.unrecorded), (4_095, 905));
    let packets = read(&path).iter().filter(|entry| matches!(entry.what, Happened::Packet(_))).count();
    assert_eq!(packets, 4_095);
}

#[test]
fn foreign_file_is_distinguished_from_a_damaged_one() {
    assert!(matches!(Recording::read(&b"GIF89a, and more of it"[..]), Err(RecordError::NotMcap)));
    assert!(matches!(Recording::read(std::io::Cursor::new(mcap_of_another())), Err(RecordError::Foreign)));
    assert!(matches!(Recording::read(&b""[..]), Err(RecordError::NoBeginning { .. })));
    let missing = Recording::open("/nowhere/session.mcap");
    assert!(matches!(missing, Err(RecordError::Open { .. })));
}

/// An MCAP file with a channel and a message, as other programs write it.
fn mcap_of_another() -> Vec<u8> {
    let mut file = b"\x89MCAP0\r\n".to_vec();
    let mut record = |code: u8, body: &[u8]| {
        file.push(code);
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(body);
    };
    record(1, &[0; 8]);
    record(4, &[1, 0, 0, 0, 1, 0, 0, 0, b't', 0, 0, 0, 0, 0, 0, 0, 0]);
    record(5, &[[1, 0, 0, 0, 0, 0].as_slice(), &[0; 16], b"x"].concat());
    file
}

fn packets(entries: &[Entry]) -> Vec<&Recorded> {
    entries
        .iter()
        .filter_map(|entry| match &entry.what {
            Happened::Packet(packet) => Some(packet),
            _ => None,
        })
        .collect()
}

async fn get_battery() -> Result<f32, ToolError> {
    Ok(0.8)
}

#[tokio::test]
async fn both_ends_of_a_call_record_the_same_frames() {
    let folder = Folder::new();
    let (phone, assistant) = (folder.file("phone.mcap"), folder.file("assistant.mcap"));
    let room = memory::MemoryRoom::named("kitchen");
    let (of_phone, of_assistant) = (
        Recorder::create(&phone, RecorderOptions::default()).unwrap(),
        Recorder::create(&assistant, RecorderOptions::default()).unwrap(),
    );
    let client = Client::builder()
        .tool("get_battery", "Battery level", get_battery)
        .join_over(of_phone.tap(room.client("phone")))
        .await
        .unwrap();
    let caller = Assistant::builder().join_over(of_assistant.tap(room.assistant("assistant"))).await.unwrap();
    assert!(caller.call("get_battery", ()).await.is_ok());
    caller.close().await;
    client.close().await;
    of_phone.finish().unwrap();
    of_assistant.finish().unwrap();

    let about = Recording::open(&phone).unwrap().about().clone();
    assert_eq!(
        (about.role, &*about.room, about.identity.as_ref().unwrap().as_str()),
        (Some(Role::Client), "kitchen", "phone")
    );
    let (phone, assistant) = (read(&phone), read(&assistant));
    for (here, there, sender) in [(&phone, &assistant, "phone"), (&assistant, &phone, "assistant")] {
        let sent: Vec<_> = packets(here).into_iter().filter(|it| it.direction == Direction::Sent).collect();
        let heard: Vec<_> =
            packets(there).into_iter().filter(|it| it.direction == Direction::Heard).collect();
        assert!(sent.len() > 2 && sent.iter().all(|it| it.sender().unwrap() == sender));
        for lane in [Lane::Reliable, Lane::Lossy] {
            let of = |list: &[&Recorded]| -> Vec<Bytes> {
                list.iter().filter(|it| it.lane == lane).map(|it| it.payload.clone()).collect()
            };
            let (sent, heard) = (of(&sent), of(&heard));
            // A participant that has left receives no more.
            assert!(sent.starts_with(&heard) && !(heard.is_empty() && lane == Lane::Reliable), "{sent:?}");
        }
    }
    let closed = |entry: &Entry| matches!(entry.what, Happened::Event(RoomEvent::Closed { .. }));
    assert!(phone.iter().any(closed) && assistant.iter().any(closed));
}

#[tokio::test]
async fn refused_packet_is_recorded_as_unsent_and_a_stream_completely() {
    let folder = Folder::new();
    let (a_file, b_file) = (folder.file("a.mcap"), folder.file("b.mcap"));
    let room = memory::MemoryRoom::new();
    let of_a = Recorder::create(&a_file, RecorderOptions::default()).unwrap();
    let of_b = Recorder::create(&b_file, RecorderOptions::default()).unwrap();
    let (a, mut b) = (of_a.tap(room.client("a")), of_b.tap(room.client("b")));
    assert!(matches!(a.send(Packet::new([], "nobody")).await, Err(SendError::NoDestination)));
    drop(a.send(Packet::new(["b".into()], "given up")));
    let mut other = Packet::new(["b".into()], "an app's own");
    other.topic = "chat".into();
    a.send(other).await.unwrap();
    a.send(Packet::new(["b".into()], vec![0xc0; 40_000])).await.unwrap();
    a.send(Packet::new(["b".into()], "last")).await.unwrap();
    loop {
        let event = b.recv().await.unwrap();
        if matches!(event, toolbridge::transport::TransportEvent::Packet(packet) if packet.payload == "last")
        {
            break;
        }
    }
    drop((a, b));
    of_a.finish().unwrap();
    of_b.finish().unwrap();

    let (a, b) = (read(&a_file), read(&b_file));
    let sizes = |entries: &[Entry]| -> Vec<(usize, bool)> {
        packets(entries).iter().map(|it| (it.payload.len(), it.stream)).collect()
    };
    assert_eq!(sizes(&a), [(6, false), (8, false), (40_000, true), (4, false)]);
    assert_eq!(sizes(&b), [(40_000, true), (4, false)]);
    assert!(packets(&a).iter().zip([0, 1]).all(|(it, to)| it.stream || it.to.len() >= to));
    let unsent: Vec<_> = a
        .iter()
        .filter_map(|entry| match &entry.what {
            Happened::Event(RoomEvent::Unsent { channel, sequence, .. }) => Some((*channel, *sequence)),
            _ => None,
        })
        .collect();
    let first: Vec<_> = packets(&a)[..2].iter().map(|it| (it.channel, it.sequence)).collect();
    assert_eq!(unsent, first);
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Login {
    /// Who
    user: String,
    /// Secret
    password: String,
}

async fn sign_in(login: Login) -> Result<serde_json::Value, ToolError> {
    Ok(serde_json::json!({"user": login.user, "sessionToken": format!("{}-planted", login.password)}))
}

async fn read_diary() -> Result<&'static str, ToolError> {
    Ok("a planted thought")
}

#[tokio::test]
async fn sec_p3_builder_records_no_secret_and_close_finishes_the_file() {
    let folder = Folder::new();
    let (phone, assistant) = (folder.file("phone.mcap"), folder.file("assistant.mcap"));
    let room = memory::MemoryRoom::new();
    let hidden = ToolOptions::default().disclose(Visibility::Name);
    let client = Client::builder()
        .tool("sign_in", "Sign in", sign_in)
        .tool("read_diary", "A page of the diary", hidden.on(read_diary))
        .record(&phone)
        .join_over(room.client("phone"))
        .await
        .unwrap();
    let caller = Assistant::builder()
        .record(&assistant)
        .record_options(RecorderOptions::default().redact(Redact::nothing()))
        .join_over(room.assistant("assistant"))
        .await
        .unwrap();
    let login = serde_json::json!({"user": "ada", "password": "hunter2"});
    let answer = caller.call("sign_in", login).await.unwrap().to_json();
    assert_eq!(answer["sessionToken"], "hunter2-planted");
    caller.call("read_diary", ()).await.unwrap();
    caller.close().await;
    client.close().await;

    let secrets = ["hunter2", "planted"];
    let holds = |path: &Path, secret: &str| {
        let found = |it: &&Recorded| it.payload.windows(secret.len()).any(|part| part == secret.as_bytes());
        packets(&read(path)).iter().any(found)
    };
    assert!(Recording::open(&phone).unwrap().about().finished, "close waits until the file is finished");
    assert!(secrets.iter().all(|it| holds(&assistant, it)) && !secrets.iter().any(|it| holds(&phone, it)));
    assert!(holds(&phone, "ada") && holds(&phone, "bridge.redacted"));
    let shared = folder.file("shared.mcap");
    let redacted = redact(&assistant, &shared, Redact::everything().keep("sign_in"), false).unwrap();
    assert_eq!(redacted.entries, read(&assistant).len() as u64);
    assert!(!secrets.iter().any(|it| holds(&shared, it)) && holds(&shared, "ada"));
    assert!(holds(&assistant, "thought") && !holds(&shared, "thought"));
}

#[tokio::test]
async fn unwritable_file_fails_the_join_and_leaves_the_room() {
    let room = memory::MemoryRoom::new();
    let joined = Client::builder().record("/nowhere/at/all.mcap").join_over(room.client("phone")).await;
    assert!(matches!(joined, Err(JoinError::Record(RecordError::Create { .. }))), "{joined:?}");
    assert!(room.assistant("assistant").present().is_empty());
}

async fn nothing() -> Result<(), ToolError> {
    Ok(())
}

/// A client with more tools than can be offered.
fn too_many_tools() -> ClientBuilder {
    (0..200).fold(Client::builder(), |builder, n| builder.tool(&format!("tool{n}"), "One of many", nothing))
}

#[tokio::test]
async fn failed_join_leaves_no_new_file_and_an_old_one_as_it_was() {
    let folder = Folder::new();
    let (path, room) = (folder.file("kept.mcap"), memory::MemoryRoom::new());
    let first = Client::builder().record(&path).join_over(room.client("first")).await.unwrap();
    first.close().await;
    let before = fs::read(&path).unwrap();
    let forced = || RecorderOptions::default().force(true);
    let join = too_many_tools().record(&path).record_options(forced()).join_over(room.client("second"));
    assert!(matches!(join.await, Err(JoinError::Register(_))));
    let fresh = folder.file("fresh.mcap");
    let join = too_many_tools().record(&fresh).join_over(room.client("third"));
    assert!(matches!(join.await, Err(JoinError::Register(_))));
    assert_eq!((fs::read(&path).unwrap(), fresh.exists()), (before, false));
    let again = Client::builder().record(&fresh).join_over(room.client("third")).await.unwrap();
    again.close().await;
    assert!(Recording::open(&fresh).unwrap().about().finished);
}

#[cfg(feature = "livekit")]
#[tokio::test]
async fn local_faults_are_found_before_the_server_is_contacted() {
    use toolbridge::livekit::AccessKey;
    // Nothing listens there, so that a join that reaches the network fails in another way.
    let url = "ws://127.0.0.1:1";
    let key = AccessKey::new("devkey", "a secret of thirty-two characters");
    let (client, assistant) =
        (key.client("r", "phone").sign().unwrap(), key.assistant("r", "brain").sign().unwrap());
    let folder = Folder::new();
    let (old, fresh) = (folder.file("old.mcap"), folder.file("fresh.mcap"));
    fs::write(&old, "an old recording").unwrap();

    let exists = |joined: Option<JoinError>| match joined {
        Some(JoinError::Record(error @ RecordError::Exists { .. })) => {
            assert!(
                !error.to_string().contains("--"),
                "a library's error names no option of a program: {error}"
            );
        }
        other => panic!("{other:?}"),
    };
    exists(Client::builder().record(&old).join(url, &client).await.err());
    exists(Assistant::builder().record(&old).join(url, &assistant).await.err());
    let registers =
        |joined: Option<JoinError>| assert!(matches!(joined, Some(JoinError::Register(_))), "{joined:?}");
    registers(too_many_tools().join(url, &client).await.err());
    registers(too_many_tools().record(&fresh).join(url, &client).await.err());
    let twice = || Assistant::builder().tool("a", "", nothing).tool("a", "", nothing);
    registers(twice().record(&fresh).join(url, &assistant).await.err());
    assert!(!fresh.exists());

    let forced = || RecorderOptions::default().force(true);
    for (path, options) in [(&old, forced()), (&fresh, RecorderOptions::default())] {
        let joined = Client::builder().record(path).record_options(options).join(url, &client).await;
        assert!(matches!(joined, Err(JoinError::Connect(_))), "{joined:?}");
    }
    let unwritable = Client::builder().record("/nowhere/at/all.mcap").join("no address", &client).await;
    assert!(matches!(unwritable, Err(JoinError::Connect(_))), "{unwritable:?}");
    assert!(!fresh.exists());
    assert_eq!(fs::read_to_string(&old).unwrap(), "an old recording");
}

#[tokio::test]
async fn close_after_a_removal_finishes_the_recording() {
    let folder = Folder::new();
    let room = memory::MemoryRoom::new();
    type End = fn(&memory::MemoryRoom);
    let ends: [(&str, End); 2] =
        [("evicted", |room| drop(room.client("phone"))), ("lost", |room| room.leave("phone"))];
    // So much that finishing the file takes a while: close has to wait for it.
    let mut seed = 1_u64;
    let mut noise = || {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed.to_be_bytes()
        };
        (0..8 * 1024).flat_map(|_| next()).collect::<Vec<_>>()
    };
    let bulk: Vec<_> = (0..64).map(|_| Bytes::from(noise())).collect();
    for (name, end) in ends {
        let path = folder.file(&format!("{name}.mcap"));
        let whole = RecorderOptions::default().redact(Redact::nothing());
        let recorder = Recorder::create(&path, whole).unwrap();
        let client = Client::builder().join_over(recorder.tap(room.client("phone"))).await.unwrap();
        for (at, payload) in bulk.iter().chain(&bulk).enumerate() {
            let heard = packet(Direction::Heard, &Peer::new("brain", "PA_9"), &[], payload.clone());
            recorder.record(Entry::new(Moment(at as u64), heard));
        }
        drop(recorder);
        end(&room);
        let reason = client.closed().await; // the removal comes before `close`
        assert_ne!(reason, CloseReason::Closed, "{name}");
        assert_eq!(client.close().await, reason);
        assert!(Recording::open(&path).unwrap().about().finished, "{name}: {reason:?}");
        let path = folder.file(&format!("{name}-built.mcap"));
        let client = Client::builder().record(&path).join_over(room.client("phone")).await.unwrap();
        end(&room);
        client.close().await;
        assert!(Recording::open(&path).unwrap().about().finished, "{name}");
    }
}

/// A source that offers a tool only once the test allows it.
struct Later {
    now: std::sync::Arc<(tokio::sync::Notify, std::sync::atomic::AtomicBool)>,
}

impl ToolSource for Later {
    fn list(&self) -> Vec<Tool> {
        if !self.now.1.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let options = ToolOptions::default().disclose(Visibility::Name);
        vec![Tool::new("read_letters".parse().unwrap(), "All letters").options(options)]
    }

    async fn execute(&self, _: &ToolName, _: Value, _: ToolContext) -> Outcome {
        Ok(Value::encode("a planted letter")?)
    }

    async fn changed(&self) {
        self.now.0.notified().await;
    }
}

#[tokio::test]
async fn sec_p3_tool_offered_later_is_as_secret() {
    let folder = Folder::new();
    let path = folder.file("later.mcap");
    let room = memory::MemoryRoom::new();
    let now = std::sync::Arc::default();
    let later = Later { now: std::sync::Arc::clone(&now) };
    let client = Client::builder().tools(later).record(&path).join_over(room.client("phone")).await.unwrap();
    let caller = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    now.1.store(true, Ordering::SeqCst);
    now.0.notify_one();
    let mut events = caller.events();
    while caller.tools().is_empty() {
        events.recv().await.unwrap();
    }
    let asked = serde_json::json!({"from": "the planted one"});
    let answer = caller.call("read_letters", asked).await.unwrap().to_json();
    assert_eq!(answer["value"], "a planted letter");
    caller.close().await;
    client.close().await;
    let all = read(&path);
    let packets = packets(&all);
    assert!(packets.iter().all(|it| !it.payload.windows(7).any(|part| part == b"planted")));
    assert!(packets.iter().any(|it| it.payload.windows(12).any(|part| part == b"read_letters")));
}
