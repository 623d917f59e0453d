//! Replays of files that record events later than they happened, as real rooms cause it with late announcements and
//! lanes of different speeds.

use toolbridge::{
    Config, Progress, ToolOptions,
    frame::{Kind, Message, Meta, ToolUseResult},
    recording::{Direction, Entry, Happened, RoomEvent},
    transport::Lane,
};

use crate::replay::{both_are_same, dry, ended, noted, places};
use crate::session_tape::file;
use crate::session_world::{MS, SECOND, World, request, tool, value};

#[test]
fn call_that_waited_for_a_plain_peer_replays_equally() {
    for called_after in [0, 300, 990, 1_100, 2_500] {
        let mut world = World::new();
        world.notes = Some(Vec::new());
        world.assistant("a", Config::default().admit("old"));
        world.run(5 * SECOND);
        world.stranger("old");
        world.run(called_after * MS);
        let key = world.call("a", request("beep").to("old").timeout(20 * SECOND)).unwrap();
        world.run(3 * SECOND);
        let Some(Message::ToolUseRequest(asked)) = world.received("old", Kind::TOOL_USE_REQUEST).pop() else {
            panic!("no request was sent")
        };
        let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(4)));
        world.send("old", &["a"], &Meta::new(), &Message::ToolUseResult(result));
        world.run(SECOND);
        assert!(world.settled("a", key).unwrap().is_ok());
        let report = dry(&file(&ended(world), "a"));
        assert!(report.is_same() && report.compared > 3, "{called_after} ms: {report}");
    }
}

#[test]
fn progress_overtaken_by_its_result_replays_equally_at_both_ends() {
    let lossy = || Config::default().lossy(true);
    let mut world = noted(lossy(), lossy(), &["slow"]);
    world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    world.with("phone", |session, now| session.progress(now, job, Progress::started().content(value(1))));
    world.run(SECOND);
    world.with("phone", |session, now| session.progress(now, job, Progress::started().content(value(2))));
    world.finish("phone", Ok(value(9)));
    let world = ended(world);
    let ends = [("phone", Direction::Sent), ("a", Direction::Heard)];
    for ((name, direction), first_copy_is_lost) in
        ends.into_iter().flat_map(|end| [(end, false), (end, true)])
    {
        let mut file = file(&world, name);
        let copies = places(&file, direction, Kind::TOOL_PROGRESS);
        let progress = *copies.last().unwrap();
        let result = places(&file, direction, Kind::TOOL_USE_RESULT)[0];
        assert_eq!(progress + 1, result);
        let (earlier, later) = (file[progress].at, file[result].at);
        file.swap(progress, result);
        (file[progress].at, file[result].at) = (earlier, later);
        if first_copy_is_lost {
            file.remove(copies[copies.len() - 2]);
        }
        let report = dry(&file);
        assert!(report.is_same(), "{name}, first copy lost: {first_copy_is_lost}: {report}");
    }
}

#[test]
fn progress_overtaken_by_a_later_update_replays_equally() {
    let lossy = || Config::default().lossy(true);
    let mut world = noted(lossy(), lossy(), &["slow"]);
    world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    for step in 1..=2 {
        let progress = Progress::started().content(value(step));
        world.with("phone", |session, now| session.progress(now, job, progress));
        world.run(SECOND);
    }
    world.finish("phone", Ok(value(9)));
    let world = ended(world);
    let mut file = file(&world, "a");
    let copies = places(&file, Direction::Heard, Kind::TOOL_PROGRESS);
    let (first, last) = (copies[0], *copies.last().unwrap());
    let mut update = file[first].clone();
    update.at = file[last].at;
    file.insert(last + 1, update);
    // The later one came on the faster lane.
    let Happened::Packet(packet) = &mut file[last].what else { panic!("it is a packet") };
    packet.lane = Lane::Lossy;
    copies.iter().rev().filter(|at| **at != last).for_each(|at| drop(file.remove(*at)));
    let report = dry(&file);
    assert!(report.is_same(), "{report}");
}

#[test]
fn tool_run_before_a_client_offered_it_replays_equally_at_both_ends() {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    let shared = tool("lookup").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    world.ask("a", request("lookup")).unwrap();
    world.run(SECOND);
    world.client("phone", Config::default(), &["lookup"]);
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn registration_processed_before_its_record_replays_equally() {
    let client = Config::default().assistant("a");
    let mut world = noted(Config::default().admit("phone"), client, &["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    let mut file = file(&ended(world), "phone");
    // The phone was not announced yet when it sent this.
    let is_of_a = |entry: &Entry| match &entry.what {
        Happened::Event(RoomEvent::Joined { identity, .. }) => identity == "a",
        _ => false,
    };
    file.retain(|entry| !is_of_a(entry));
    let registered = places(&file, Direction::Sent, Kind::TOOLS_REGISTER)[0];
    let seen = places(&file, Direction::Heard, Kind::CONFIGURATION)[0];
    assert!(registered < seen, "{file:#?}");
    let report = dry(&file);
    assert!(report.is_same() && report.compared > 5, "{report}");
}
