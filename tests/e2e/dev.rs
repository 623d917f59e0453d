//! The same tests over the embedded development server, which must behave like LiveKit's for toolbridge participants.

use libtest_mimic::Trial;

use crate::{
    assistant, calls, cli, doctor, endings, flat, forged, matrix, network, observe, rejoin, replay, restart,
    results, resume, room,
    server::{self, Kind},
    several, storm, streams, survival, trial,
};

/// The files that do not run there, and why.
const FILES_NOT_HERE: &[(&str, &str)] = &[
    ("judges", "they judge recordings, whichever server they were made over"),
    ("moves", "it serves this machine alone, and somebody who moves is at another host"),
    ("peers", "it is for our own participants only"),
    ("proxy", "they are about the way to a server, whichever it is"),
    ("recordings", "they make the fixtures, and those are of LiveKit's server"),
    ("report", "a browser shows recordings, whichever server they were made over"),
    ("turn", "it has no relays to tell of"),
];

/// The tests that cannot run there, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("room::seventy_idle_seconds_cut_nothing", "it only waits, and makes a run longer"),
    ("endings::seventy_idle_seconds_and_a_call_still_works", "it only waits, and makes a run longer"),
    ("room::seventy_idle_seconds_cut_nothing_of_an_ice_lite_server", "it is no ICE-lite server"),
    ("room::server_with_tcp_only_is_reachable", "it cannot be told to offer TCP alone"),
    ("calls::named_participants_need_no_announcement", "it announces at once, so nobody comes before it"),
    ("several::plain_clients_are_unaffected_by_frames_between_others", "it is for our own participants only"),
    ("streams::a_client_in_python_takes_and_sends_one", "it is for our own participants only"),
    ("streams::a_client_in_node_takes_and_sends_one", "it is for our own participants only"),
    ("doctor::healthy_server_passes_every_step", "it does not tell the time"),
    ("doctor::server_over_tcp_only_is_a_warning", "it cannot be told to offer TCP alone"),
    ("doctor::missing_room_without_auto_create_is_named", "it cannot be told to make no rooms"),
    ("doctor::failed_relay_is_reported_with_its_reason", "it has no relays to tell of"),
];

/// The prefix of their names.
const PREFIX: &str = "dev::";

/// The tests that run there too, of all those over LiveKit's server, and those that run only there.
pub(crate) fn trials(all: &[Trial]) -> Vec<Trial> {
    server::set_kind(Kind::Dev);
    let files = [
        room::trials(),
        rejoin::trials(),
        resume::trials(),
        endings::trials(),
        several::trials(),
        streams::trials(),
        calls::trials(),
        flat::trials(),
        storm::trials(),
        matrix::trials(),
        survival::trials(),
        results::trials(),
        restart::trials(),
        network::trials(),
        assistant::trials(),
        cli::trials(),
        doctor::trials(),
        observe::trials(),
        replay::trials(),
        forged::trials(),
        // LiveKit's server ignores this request.
        vec![trial("resume::requested_rejoin_is_performed", resume::requested_rejoin_is_performed)],
    ];
    server::set_kind(Kind::LiveKit);
    let (mut here, mut left_out) = (Vec::new(), 0);
    for trial in files.into_iter().flatten() {
        let name = trial.name().trim_start_matches(PREFIX);
        if NOT_HERE.iter().any(|(it, _)| *it == name) {
            left_out += 1;
        } else {
            here.push(trial);
        }
    }
    assert_eq!(left_out, NOT_HERE.len(), "a test that is left out by name has another name now");
    for trial in all {
        let runs = here.iter().any(|it| file(it) == file(trial));
        let left_out = FILES_NOT_HERE.iter().any(|(it, _)| *it == file(trial));
        assert!(runs != left_out, "{}: either its file runs here, or it says why not", trial.name());
    }
    here
}

/// Returns the file of a test.
fn file(trial: &Trial) -> &str {
    let name = trial.name().trim_start_matches(PREFIX);
    name.split("::").next().unwrap_or(name)
}

/// Returns the name of a test for this thread's server.
pub(crate) fn name(name: &str) -> String {
    match server::kind() {
        Kind::LiveKit => name.to_owned(),
        Kind::Dev => format!("{PREFIX}{name}"),
    }
}
