//! The same tests over the embedded development server, which must behave like LiveKit's for toolbridge participants, and
//! for data of LiveKit's SDKs.

use libtest_mimic::Trial;

use crate::{
    assistant, calls, cli, doctor, encrypted, endings, flat, forged, intruders, joins, matrix, network,
    observe, peers, rejoin, replay, restart, results, resume, room, rpc, rpc_caller,
    server::{self, Kind},
    several, storm, streams, survival, trial,
};

/// The files that do not run there, and why.
const FILES_NOT_HERE: &[(&str, &str)] = &[
    ("judges", "they check recordings, and the server makes no difference"),
    ("moves", "it serves this machine only, and the participant that moves is on another host"),
    ("proxy", "they test the path to a server, and the server makes no difference"),
    ("recordings", "they make the fixtures, which need LiveKit's server"),
    ("report", "they show recordings, and the server makes no difference"),
    ("turn", "it announces no relays"),
    ("mcp", "it is about the servers of tools, whatever the room"),
    ("mcp_hosts", "it is about the hosts, whatever the room"),
    ("mcp_conformance", "it is about MCP, whatever the room"),
    ("acp_agent", "it is about editors, whatever the room"),
    ("acp_cli", "it is about agents, whatever the room"),
    ("acp_client", "it is about agents, whatever the room"),
    ("agents", "it needs workers of LiveKit's framework, and the server makes no difference"),
    ("alike", "it compares both servers"),
    ("one_turn", "it is about the tools of other systems, whatever the room"),
    ("rap_crate", "it is about toolsets, whatever the room"),
    ("rap_runtime", "it is about runtimes, whatever the room"),
];

/// Why a test with many calls does not run there.
const SAME: &str = "it is about toolbridge's memory, and would make the run longer";

/// Why a test of what packets cost does not run there.
const COST: &str = "it measures a client, whatever the server";

/// The tests that cannot run there, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("room::seventy_idle_seconds_cut_nothing", "it only waits, and would make the run longer"),
    ("endings::seventy_idle_seconds_and_a_call_still_works", "it only waits, and would make the run longer"),
    ("room::seventy_idle_seconds_cut_nothing_of_an_ice_lite_server", "it is not an ICE-lite server"),
    ("room::server_with_tcp_only_is_reachable", "it cannot be configured to offer TCP only"),
    (
        "calls::named_participants_need_no_announcement",
        "it announces participants at once, so no packet arrives earlier",
    ),
    ("rpc::call_of_the_server_api_is_refused", "its API has no PerformRpc"),
    ("peers::five_thousand_calls_to_a_client_in_python", SAME),
    ("peers::five_thousand_calls_to_a_client_in_node", SAME),
    ("peers::five_thousand_calls_by_an_assistant_in_python", SAME),
    ("peers::five_thousand_calls_by_an_assistant_in_node", SAME),
    ("intruders::sec_c1_packet_with_maps_as_keys_costs_a_client_no_more_than_any_other", COST),
    ("intruders::sec_r5_compressed_requests_beyond_the_rate_are_not_expanded", COST),
    ("doctor::healthy_server_passes_every_step", "its responses have no date"),
    ("doctor::server_over_tcp_only_is_a_warning", "it cannot be configured to offer TCP only"),
    ("doctor::missing_room_without_auto_create_is_named", "it cannot be configured not to create rooms"),
    ("doctor::failed_relay_is_reported_with_its_reason", "it announces no relays"),
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
        joins::trials(),
        streams::trials(),
        encrypted::trials(),
        rpc::trials(),
        rpc_caller::trials(),
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
        intruders::trials(),
        peers::trials(),
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
    assert_eq!(left_out, NOT_HERE.len(), "a test in this list was renamed or removed");
    for trial in all {
        let runs = here.iter().any(|it| file(it) == file(trial));
        let left_out = FILES_NOT_HERE.iter().any(|(it, _)| *it == file(trial));
        assert!(
            runs != left_out,
            "{}: its file must either run here or be listed with a reason",
            trial.name()
        );
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
