//! The same tests over our own server for development: what is true of our participants over LiveKit's is true over it.

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

/// What cannot be shown there, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("room::seventy_idle_seconds_cut_nothing", "it only waits, and makes a run longer"),
    ("endings::seventy_idle_seconds_and_a_call_still_works", "it only waits, and makes a run longer"),
    ("room::seventy_idle_seconds_cut_nothing_of_an_ice_lite_server", "it is no ICE-lite server"),
    ("room::a_server_with_tcp_alone_is_enough", "it cannot be told to offer TCP alone"),
    ("calls::two_who_are_named_need_no_announcement", "it announces at once, so nobody comes before it"),
    ("several::plain_clients_are_unharmed_by_what_others_do", "it is for our own participants only"),
    ("streams::a_client_in_python_takes_and_sends_one", "it is for our own participants only"),
    ("streams::a_client_in_node_takes_and_sends_one", "it is for our own participants only"),
    ("doctor::a_server_that_is_well_passes_every_step", "it does not tell the time"),
    ("doctor::a_server_over_tcp_only_is_a_warning", "it cannot be told to offer TCP alone"),
    ("doctor::a_room_that_must_exist_is_named", "it cannot be told to make no rooms"),
    ("doctor::a_relay_is_told_with_what_keeps_it", "it has no relays to tell of"),
];

/// How their names begin.
const PREFIX: &str = "dev::";

/// The tests that run there too, of all those over LiveKit's, and those that run only there.
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
        // LiveKit's ignores what is asked for.
        vec![trial("resume::who_asks_for_a_new_join_gets_one", resume::who_asks_for_a_new_join_gets_one)],
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

/// The file of a test.
fn file(trial: &Trial) -> &str {
    let name = trial.name().trim_start_matches(PREFIX);
    name.split("::").next().unwrap_or(name)
}

/// What a test is called, over the server that this thread is at.
pub(crate) fn name(name: &str) -> String {
    match server::kind() {
        Kind::LiveKit => name.to_owned(),
        Kind::Dev => format!("{PREFIX}{name}"),
    }
}
