use super::*;
use crate::livekit::{
    RelayFailure,
    diagnosis::{
        check::CheckStatus,
        explain::tests::{fails, warns},
    },
};

fn no_path(tried: &str) -> ConnectError {
    let tried = tried.split(", ").filter(|it| !it.is_empty()).map(|it| it.parse().unwrap()).collect();
    ConnectError::NoNetworkPath { limit: Duration::from_secs(5), tried }
}

fn server() -> String {
    "sfu.example:443".into()
}

#[test]
fn refusal_reason_is_parsed_from_the_servers_answer() {
    for (body, reason) in [
        ("invalid API key: APIx", TokenRefusal::Key),
        (
            "invalid token: ey.error: expired.x, error: token signature is invalid: signature is invalid",
            TokenRefusal::Signature,
        ),
        ("invalid token: ey, error: token has invalid claims: token is expired", TokenRefusal::Expired),
        ("invalid token: ey, error: token has invalid claims: token is not valid yet", TokenRefusal::NotYet),
        ("no permissions to access the room", TokenRefusal::NoJoin),
        ("permissions denied", TokenRefusal::NoJoin),
        ("", TokenRefusal::Unknown),
        ("<html>", TokenRefusal::Unknown),
    ] {
        assert_eq!(TokenRefusal::read(body), reason, "{body}");
    }
}

#[test]
fn each_failed_join_has_its_advice() {
    let refused = |why, made| {
        not_joined(&ConnectError::Unauthorized { server: server(), status: 401, reason: why }, why, made)
    };
    for (why, problem, advice) in [
        (TokenRefusal::Key, "does not know the API key", "keys"),
        (TokenRefusal::Signature, "not signed with the secret", "token server"),
        (TokenRefusal::Expired, "has expired", "new token"),
        (TokenRefusal::NotYet, "not valid yet", "clock"),
        (TokenRefusal::NoJoin, "does not grant joining", "roomJoin"),
        (TokenRefusal::Unknown, "HTTP 401", "log"),
    ] {
        fails(&refused(why, false), problem, advice);
    }
    fails(&refused(TokenRefusal::Signature, true), "another secret", "LIVEKIT_API_SECRET");
    fails(&refused(TokenRefusal::Expired, true), "a new token as expired", "NTP");
    for (status, problem, advice) in [
        (404, "404", "existing room"),
        (429, "429", "minute"),
        (503, "503", "load"),
        (500, "HTTP 500", "log"),
        (200, "HTTP 200", "/rtc"),
    ] {
        let error = ConnectError::Refused { server: server(), status, reason: String::new() };
        fails(&not_joined(&error, TokenRefusal::Unknown, true), problem, advice);
    }
    for (error, problem, advice) in [
        (ConnectError::Forbidden { server: server(), status: 403 }, "HTTP 403", "limit"),
        (ConnectError::ServerTooOld { version: "1.8.0".into() }, "1.8.0", "1.9.11"),
        (
            ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Signaling },
            "within 5 s",
            "Upgrade",
        ),
        (ConnectError::DuplicateIdentity, "same identity", "its own identity"),
        (ConnectError::RoomDeleted, "deleted", "cleans"),
        (ConnectError::Removed, "removed", "API key"),
        (
            ConnectError::Unreachable { server: server(), source: std::io::Error::other("reset") },
            "reset",
            "WebSockets",
        ),
    ] {
        fails(&not_joined(&error, TokenRefusal::Unknown, true), problem, advice);
    }
}

#[test]
fn join_without_a_path_counts_as_accepted() {
    let slow = ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Channels };
    for error in [no_path("192.0.2.7:7882"), slow] {
        assert_eq!(not_joined(&error, TokenRefusal::Unknown, true).status, CheckStatus::Ok);
    }
}

#[test]
fn missing_send_permission_is_expected_only_of_observers() {
    let allowed = |may_send, role| Permissions { may_send, is_hidden: false, role, is_assistant: false };
    assert_eq!(permissions(&allowed(true, Some(Role::Client)), false).status, CheckStatus::Ok);
    assert_eq!(permissions(&allowed(true, None), true), Finding::ok("may send and receive data"));
    assert_eq!(permissions(&allowed(false, Some(Role::Observer)), false).status, CheckStatus::Ok);
    fails(
        &permissions(&allowed(false, Some(Role::Client)), false),
        "may not send data, as client",
        "canPublishData",
    );
    warns(&permissions(&allowed(true, Some(Role::Observer)), false), "observer", "canPublishData");
    let hidden = |role| Permissions { is_hidden: true, ..allowed(true, role) };
    fails(
        &permissions(&hidden(Some(Role::Assistant)), false),
        "is hidden, as assistant",
        "leave out `hidden`",
    );
    assert_eq!(permissions(&hidden(Some(Role::Observer)), false).status, CheckStatus::Warning);
}

#[test]
fn blocked_path_names_its_ports() {
    let public = ["192.0.2.7".parse().unwrap()];
    let tried = "192.0.2.7:7882, [2001:db8::7]:7882";
    let finding = path(Path::Udp, &Err(no_path(tried)), false, &public);
    fails(&finding, "no answer over UDP from 192.0.2.7:7882", "UDP 7882 is blocked");
    let finding = path(Path::Udp, &Err(no_path(tried)), true, &public);
    warns(&finding, "over UDP", "until then calls use TCP or a relay");
    let finding = path(Path::Tcp, &Err(no_path("192.0.2.7:7881")), true, &public);
    warns(&finding, "over TCP", "TCP 7881 is blocked");
    assert_eq!(path(Path::Tcp, &Ok(()), true, &public), Finding::ok("packets pass over TCP"));
}

#[test]
fn missing_addresses_are_a_configuration_problem() {
    let none = || Err(no_path(""));
    warns(&path(Path::Udp, &none(), true, &[]), "no address for packets over UDP", "force_tcp");
    warns(&path(Path::Tcp, &none(), true, &[]), "no address for packets over TCP", "rtc.tcp_port");
    fails(&path(Path::Tcp, &none(), false, &[]), "no address", "7881");
}

#[test]
fn private_addresses_of_a_public_server_are_explained() {
    let public = ["198.51.100.7".parse().unwrap()];
    for inner in ["10.0.0.7:7882", "172.17.0.2:7882, 127.0.0.1:7882", "100.64.0.1:7882", "[fd00::1]:7882"] {
        warns(&path(Path::Udp, &Err(no_path(inner)), true, &public), "private addresses", "use_external_ip");
    }
    let local = ["10.0.0.7".parse().unwrap()];
    warns(&path(Path::Udp, &Err(no_path("10.0.0.7:7882")), true, &local), "no answer", "blocked");
    warns(
        &path(Path::Udp, &Err(no_path("10.0.0.7:7882, 198.51.100.7:7882")), true, &public),
        "no answer",
        "blocked",
    );
}

#[test]
fn other_join_failures_of_a_path_are_explained() {
    let slow = Err(ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Channels });
    fails(&path(Path::Udp, &slow, true, &[]), "did not open in time", "join_timeout");
    fails(&path(Path::Udp, &Err(ConnectError::RoomDeleted), true, &[]), "deleted", "again");
}

#[test]
fn echo_is_judged_by_loss_and_round_trip_time() {
    let echoes = |reliable: usize, lossy: usize, ms: u64| EchoResults {
        reliable: vec![Duration::from_millis(ms); reliable],
        sent_reliable: 20,
        lossy: vec![Duration::from_millis(ms); lossy],
        sent_lossy: 20,
    };
    let all = echo(&echoes(20, 20, 4));
    assert_eq!(
        all,
        Finding::ok(
            "20 of 20 reliable and 20 of 20 lossy packets came back; median round trip 4.0 ms, longest 4.0 ms"
        )
    );
    assert_eq!(echo(&echoes(20, 19, 40)).status, CheckStatus::Ok);
    warns(&echo(&echoes(20, 18, 40)), "2 of 20 lossy packets were lost", "Wi-Fi");
    warns(&echo(&echoes(20, 20, 400)), "takes 400 ms", "closer");
    fails(&echo(&echoes(7, 0, 40)), "did not come back", "another network");
    fails(
        &echo(&EchoResults { sent_reliable: 1, ..EchoResults::default() }),
        "no data passes between them",
        "log",
    );
    fails(&no_echo(&ConnectError::Removed), "could not join", "max_participants");
}

#[test]
fn relay_is_required_only_if_no_other_path_works() {
    let failed = |error: RelayError| {
        let error = RelayFailure { relay: "turns:turn.example:443".into(), error };
        Err(ConnectError::NoRelay { relays: vec![error] })
    };
    assert_eq!(relay(&Ok(()), true), Finding::ok("packets pass through a relay"));
    let none = || Err(ConnectError::NoRelay { relays: Vec::new() });
    assert_eq!(relay(&none(), true).status, CheckStatus::Skipped);
    fails(&relay(&none(), false), "offers no relay", "443");
    for (error, problem, advice) in [
        (
            RelayError::Silent(Duration::from_secs(5)),
            "turns:turn.example:443: no response within 5 s",
            "open its port",
        ),
        (RelayError::Tls("bad".into()), "bad", "certificate"),
        (RelayError::Unauthorized { code: 401, words: String::new() }, "401", "password"),
        (RelayError::Refused { code: 403, words: String::new() }, "403", "as a peer"),
        (RelayError::NotFound("x".into()), "host name not found", "turn.domain"),
    ] {
        warns(&relay(&failed(error.clone()), true), problem, "calls work without a relay");
        fails(&relay(&failed(error), false), problem, advice);
    }
    warns(&relay(&Err(no_path("192.0.2.7:7882")), true), "do not pass through", "log");
    assert_eq!(path(Path::Udp, &none(), true, &[]).status, CheckStatus::Skipped);
}
