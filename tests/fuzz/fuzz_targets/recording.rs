//! Reads arbitrary files, and checks, folds and replays arbitrary recorded sessions: no panic and no endless loop.
//!
//! The first byte selects the form of the rest: the bytes of a file, or a list of events, each one byte followed by
//! its parameters.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use toolbridge::{
    recording::{
        Direction, Entry, Happened, Moment, Recorded, Recording, RoomEvent, calls, check, entry_json,
        entry_text, info, report,
    },
    replay::Replay,
    transport::{Lane, Peer},
};

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

/// The most events of a session: longer ones find no more.
const ENTRIES: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Some((form, rest)) = data.split_first() else { return };
    if form % 2 == 0 {
        if let Ok(recording) = Recording::read(Cursor::new(rest.to_vec())) {
            let mut entries = recording.entries();
            read(&entries.by_ref().take(10_000).collect::<Vec<_>>());
            let _ = (entries.damage(), entries.foreign());
        }
    } else {
        read(&told(rest));
    }
});

fn read(entries: &[Entry]) {
    for (index, entry) in entries.iter().enumerate() {
        let _ = (entry_text(entry, None), entry_json(index, entry));
    }
    let _ = (check(entries.to_vec()), info(entries.to_vec()), Replay::dry(entries.to_vec()));
    let folded = calls(entries.to_vec());
    let _ = report(entries.to_vec(), &folded.calls, "fuzz");
}

/// A session of the local participant and three others, which join, leave and send.
fn told(mut rest: &[u8]) -> Vec<Entry> {
    let mut byte = || {
        let (first, more) = rest.split_first()?;
        rest = more;
        Some(*first)
    };
    let names = ["a", "phone", "other", ""];
    let mut entries = Vec::new();
    let mut at = 1_u64 << 60;
    while entries.len() < ENTRIES {
        let (Some(what), Some(who), Some(later)) = (byte(), byte(), byte()) else { break };
        // Mostly milliseconds; seldom hours, and seldom backwards.
        at = match later {
            0..=200 => at.saturating_add(u64::from(later) * 1_000_000),
            201..=250 => at.saturating_add(u64::from(later) * 10_000_000_000),
            _ => at.saturating_sub(1_000_000_000),
        };
        let (identity, sid) = (names[usize::from(who % 4)], ["PA_1", "PA_2"][usize::from(who >> 2 & 1)]);
        let happened = match what % 8 {
            0 => Happened::Event(RoomEvent::Here {
                identity: identity.into(),
                sid: sid.into(),
                room: "r".to_owned(),
            }),
            1 => {
                let role =
                    [None, Some("assistant"), Some("client"), Some("observer")][usize::from(who >> 4 & 3)];
                let (agent, role) = (who > 127, role.map(str::to_owned));
                Happened::Event(RoomEvent::Joined {
                    identity: identity.into(),
                    sid: sid.into(),
                    agent,
                    role,
                    protocol: 0,
                })
            }
            2 => Happened::Event(RoomEvent::Left { identity: identity.into(), sid: sid.into() }),
            3 => Happened::Event(RoomEvent::Link { up: who > 127 }),
            _ => {
                let length = usize::from(byte().unwrap_or_default());
                let payload: Vec<u8> = std::iter::from_fn(&mut byte).take(length).collect();
                let direction = if what & 16 == 0 { Direction::Sent } else { Direction::Heard };
                Happened::Packet(with!(
                    Recorded::new(direction, Peer::new(identity, sid), payload),
                    to = if what & 32 == 0 { vec![names[usize::from(who >> 6)].into()] } else { Vec::new() },
                    lane = if what & 64 == 0 { Lane::Reliable } else { Lane::Lossy },
                    stream = what & 128 != 0,
                    channel = u16::from(what),
                    sequence = entries.len() as u32
                ))
            }
        };
        entries.push(Entry::new(Moment(at), happened));
    }
    entries
}
