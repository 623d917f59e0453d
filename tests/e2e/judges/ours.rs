//! The content of a recording by toolbridge's own reader, to compare with that of others.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use toolbridge::recording::{Happened, Recording};

use crate::soon;

/// The channel of entries that are not packets.
const EVENTS: u16 = 1;

/// What the built program and the library's reader find in a file.
pub(super) struct Ours {
    pub(super) info: Value,
    /// By number: encoding, messages, digest.
    channels: BTreeMap<u16, (&'static str, u64, String)>,
    /// The digest of all messages.
    messages: String,
}

impl Ours {
    pub(super) async fn of(file: &Path) -> anyhow::Result<Self> {
        let mut info = Command::new(env!("CARGO_BIN_EXE_toolbridge"));
        let info = soon("info", info.arg("info").arg(file).arg("--json").output()).await??;
        ensure!(info.status.success(), "{info:?}");
        let info: Value = serde_json::from_slice(&info.stdout)?;

        let (mut channels, mut all) = (BTreeMap::<u16, (&str, u64, Sha256)>::new(), Sha256::new());
        let mut entries = Recording::open(file)?.entries();
        for entry in &mut entries {
            let (channel, encoding, bytes) = match &entry.what {
                Happened::Packet(packet) => (packet.channel, "msgpack", packet.payload.to_vec()),
                Happened::Event(event) => (EVENTS, "json", serde_json::to_vec(event)?),
                other => bail!("{other:?}"),
            };
            let (_, count, digest) = channels.entry(channel).or_insert_with(|| (encoding, 0, Sha256::new()));
            let mut message = (*count as u32).to_le_bytes().to_vec();
            message.extend(entry.at.0.to_le_bytes());
            message.extend((bytes.len() as u64).to_le_bytes());
            message.extend(bytes);
            *count += 1;
            digest.update(&message);
            all.update(channel.to_le_bytes());
            all.update(&message);
            if let Happened::Packet(packet) = &entry.what {
                ensure!(u64::from(packet.sequence) + 1 == *count, "{packet:?}");
            }
        }
        let channels: BTreeMap<_, _> = channels
            .into_iter()
            .map(|(id, (encoding, count, digest))| (id, (encoding, count, hex(digest))))
            .collect();
        let ours = Self { info, channels, messages: hex(all) };
        ensure!(ours.info["entries"] == ours.count() && entries.damage().is_none(), "{}", ours.info);
        let frames = ours.info["frames"].as_object().context("frames")?.values();
        let frames: u64 =
            frames.chain([&ours.info["malformed"], &ours.info["foreign"]]).filter_map(Value::as_u64).sum();
        let events = ours.channels.get(&EVENTS).map_or(0, |(_, count, _)| *count);
        ensure!(frames + events == ours.count(), "{}", ours.info);
        Ok(ours)
    }

    pub(super) fn count(&self) -> u64 {
        self.channels.values().map(|(_, count, _)| count).sum()
    }

    /// Asserts that a reader found the same messages, of the same bytes, on the same channels.
    pub(super) fn are_in(&self, said: &Value) -> anyhow::Result<()> {
        let found = said["channels"].as_object().context("no channels")?;
        for (id, (encoding, count, digest)) in &self.channels {
            let channel = &said["channels"][id.to_string()];
            ensure!(channel["messages"] == *count && channel["encoding"] == *encoding, "{id}: {channel}");
            ensure!(channel["sha256"] == *digest, "{id}: the bytes in {channel} differ");
            let topic = channel["topic"].as_str().context("no topic")?;
            let events = topic == "room/events";
            ensure!(
                events == (*id == EVENTS)
                    && (events || topic.starts_with("sent/") || topic.starts_with("heard/"))
            );
        }
        ensure!(found.len() == self.channels.len(), "{} channels instead of the expected ones", found.len());
        ensure!(said["messages"] == self.messages, "the order of the messages differs");
        Ok(())
    }

    /// Asserts that `pymcap-cli info` counts the same, channel by channel.
    pub(super) fn are_counted_in(&self, said: &Value) -> anyhow::Result<()> {
        let of_file = &said["statistics"];
        ensure!(of_file["message_count"] == self.count(), "{of_file}");
        let begun = of_file["message_start_time"].as_u64().map(|nanos| (nanos / 1_000) as f64 / 1e3);
        ensure!(begun.is_some() && begun == self.info["begunMs"].as_f64(), "{of_file}");
        let found = said["channels"].as_array().context("no channels")?;
        let found =
            found.iter().map(|it| (it["id"].as_u64().unwrap_or_default(), it["message_count"].clone()));
        let wanted = self.channels.iter().map(|(id, (_, count, _))| (u64::from(*id), json!(count)));
        ensure!(
            found.clone().collect::<BTreeMap<_, _>>() == wanted.collect(),
            "{:?}",
            found.collect::<Vec<_>>()
        );
        Ok(())
    }
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
