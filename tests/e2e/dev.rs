//! The same tests over our own server for development: what is true of our participants over LiveKit's is true over it.

use libtest_mimic::Trial;

use crate::{
    calls, endings, rejoin, resume, room,
    server::{self, Kind},
    several, streams,
};

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
];

/// How their names begin.
const PREFIX: &str = "dev::";

/// The tests that run there too.
pub(crate) fn trials() -> Vec<Trial> {
    server::set_kind(Kind::Dev);
    let files = [
        room::trials(),
        rejoin::trials(),
        resume::trials(),
        endings::trials(),
        several::trials(),
        streams::trials(),
        calls::trials(),
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
    here
}

/// What a test is called, over the server that this thread is at.
pub(crate) fn name(name: &str) -> String {
    match server::kind() {
        Kind::LiveKit => name.to_owned(),
        Kind::Dev => format!("{PREFIX}{name}"),
    }
}
