use super::*;
use crate::cli::doctor::step::State;
use toolbridge::transport::livekit::RelayFailure;

#[track_caller]
fn says(report: &StepReport, state: State, wrong: &str, advice: &str) {
    let (said, advised) = (report.wrong.as_deref().unwrap_or(""), report.advice.as_deref().unwrap_or(""));
    assert_eq!(report.state, state, "{report:?}");
    assert!(said.contains(wrong), "{said:?} without {wrong:?}");
    assert!(advised.contains(advice), "{advised:?} without {advice:?}");
}

fn no_path(tried: &str) -> ConnectError {
    let tried = tried.split(", ").filter(|it| !it.is_empty()).map(|it| it.parse().unwrap()).collect();
    ConnectError::NoNetworkPath { limit: Duration::from_secs(5), tried }
}

fn server() -> String {
    "sfu.example:443".into()
}

#[test]
fn the_servers_reason_is_read_and_never_kept() {
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
fn each_refused_join_has_its_advice() {
    let refused = |why, made| {
        not_joined(&ConnectError::Unauthorized { server: server(), status: 401, reason: why }, why, made)
    };
    let failed = State::Failed;
    for (why, wrong, advice) in [
        (TokenRefusal::Key, "does not know the API key", "keys"),
        (TokenRefusal::Signature, "not signed with the secret", "token server"),
        (TokenRefusal::Expired, "has expired", "new one"),
        (TokenRefusal::NotYet, "not valid yet", "clock"),
        (TokenRefusal::NoJoin, "does not let anybody", "roomJoin"),
        (TokenRefusal::Unknown, "HTTP 401", "log"),
    ] {
        says(&refused(why, false), failed, wrong, advice);
    }
    says(&refused(TokenRefusal::Signature, true), failed, "another secret", "LIVEKIT_API_SECRET");
    says(&refused(TokenRefusal::Expired, true), failed, "of this moment", "NTP");
    for (status, wrong, advice) in [
        (404, "404", "--room"),
        (429, "429", "minute"),
        (503, "503", "load"),
        (500, "HTTP 500", "log"),
        (200, "HTTP 200", "/rtc"),
    ] {
        let error = ConnectError::Refused { server: server(), status };
        says(&not_joined(&error, TokenRefusal::Unknown, true), failed, wrong, advice);
    }
    for (error, wrong, advice) in [
        (ConnectError::Forbidden { server: server(), status: 403 }, "HTTP 403", "limit"),
        (ConnectError::ServerTooOld { version: "1.8.0".into() }, "1.8.0", "1.9.11"),
        (
            ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Signaling },
            "within 5s",
            "Upgrade",
        ),
        (ConnectError::DuplicateIdentity, "same identity", "of its own"),
        (ConnectError::RoomDeleted, "deleted", "cleans"),
        (ConnectError::Removed, "removed", "API key"),
        (ConnectError::Unreachable { server: server(), reason: "reset".into() }, "reset", "WebSockets"),
    ] {
        says(&not_joined(&error, TokenRefusal::Unknown, true), failed, wrong, advice);
    }
}

#[test]
fn a_join_without_a_path_was_taken_all_the_same() {
    let slow = ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Channels };
    for error in [no_path("192.0.2.7:7882"), slow] {
        assert_eq!(not_joined(&error, TokenRefusal::Unknown, true).state, State::Ok);
    }
}

#[test]
fn who_may_not_send_is_an_observer_or_at_fault() {
    let allowed = |may_send, role| Permissions { may_send, role, is_agent: false };
    assert_eq!(permissions(&allowed(true, Some(Role::Client)), false).state, State::Ok);
    assert_eq!(permissions(&allowed(true, None), true), StepReport::ok("data may be sent and heard"));
    assert_eq!(permissions(&allowed(false, Some(Role::Observer)), false).state, State::Ok);
    says(
        &permissions(&allowed(false, Some(Role::Client)), false),
        State::Failed,
        "no data may be sent, as client",
        "canPublishData",
    );
    says(
        &permissions(&allowed(true, Some(Role::Observer)), false),
        State::Warning,
        "observer",
        "canPublishData",
    );
}

#[test]
fn a_blocked_path_names_its_ports() {
    let public = ["192.0.2.7".parse().unwrap()];
    let tried = "192.0.2.7:7882, [2001:db8::7]:7882";
    let report = path(Path::Udp, &Err(no_path(tried)), false, &public);
    says(&report, State::Failed, "nothing comes back over UDP from 192.0.2.7:7882", "UDP 7882 is blocked");
    let report = path(Path::Udp, &Err(no_path(tried)), true, &public);
    says(&report, State::Warning, "over UDP", "calls work over TCP or a relay meanwhile");
    let report = path(Path::Tcp, &Err(no_path("192.0.2.7:7881")), true, &public);
    says(&report, State::Warning, "over TCP", "TCP 7881 is blocked");
    assert_eq!(path(Path::Tcp, &Ok(()), true, &public), StepReport::ok("packets pass over TCP alone"));
}

#[test]
fn what_is_not_offered_is_a_matter_of_configuration() {
    let none = || Err(no_path(""));
    says(&path(Path::Udp, &none(), true, &[]), State::Warning, "no address for UDP", "force_tcp");
    says(
        &path(Path::Tcp, &none(), true, &[]),
        State::Warning,
        "no address for packets over TCP",
        "rtc.tcp_port",
    );
    says(&path(Path::Tcp, &none(), false, &[]), State::Failed, "no address", "7881");
}

#[test]
fn inner_addresses_of_a_public_server_are_what_is_wrong() {
    let public = ["198.51.100.7".parse().unwrap()];
    for inner in ["10.0.0.7:7882", "172.17.0.2:7882, 127.0.0.1:7882", "100.64.0.1:7882", "[fd00::1]:7882"] {
        says(
            &path(Path::Udp, &Err(no_path(inner)), true, &public),
            State::Warning,
            "own network",
            "use_external_ip",
        );
    }
    let local = ["10.0.0.7".parse().unwrap()];
    says(
        &path(Path::Udp, &Err(no_path("10.0.0.7:7882")), true, &local),
        State::Warning,
        "nothing",
        "blocked",
    );
    says(
        &path(Path::Udp, &Err(no_path("10.0.0.7:7882, 198.51.100.7:7882")), true, &public),
        State::Warning,
        "nothing",
        "blocked",
    );
}

#[test]
fn other_ends_of_a_join_for_a_path_are_said() {
    let slow = Err(ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Channels });
    says(&path(Path::Udp, &slow, true, &[]), State::Failed, "so badly", "--limit");
    says(&path(Path::Udp, &Err(ConnectError::RoomDeleted), true, &[]), State::Failed, "deleted", "again");
}

#[test]
fn echoes_are_judged_by_what_is_lost_and_how_long_they_take() {
    let echoes = |reliable: usize, lossy: usize, ms: u64| EchoResults {
        reliable: vec![Duration::from_millis(ms); reliable],
        sent_reliable: 20,
        lossy: vec![Duration::from_millis(ms); lossy],
        sent_lossy: 20,
    };
    let all = echo(&echoes(20, 20, 4));
    assert_eq!(
        all,
        StepReport::ok(
            "20 of 20 reliable and 20 of 20 fast packets came back; round trip 4.0 ms, longest 4.0 ms"
        )
    );
    assert_eq!(echo(&echoes(20, 19, 40)).state, State::Ok);
    says(&echo(&echoes(20, 18, 40)), State::Warning, "2 of 20 fast packets were lost", "Wi-Fi");
    says(&echo(&echoes(20, 20, 400)), State::Warning, "takes 400 ms", "nearer");
    says(&echo(&echoes(7, 0, 40)), State::Failed, "did not come back", "another one");
    says(
        &echo(&EchoResults { sent_reliable: 1, ..EchoResults::default() }),
        State::Failed,
        "nothing that one says",
        "log",
    );
    says(&no_echo(&ConnectError::Removed), State::Failed, "could not join", "max_participants");
}

#[test]
fn a_relay_is_needed_only_where_nothing_else_works() {
    let failed = |error: RelayError| {
        let error = RelayFailure::new("turns:turn.example:443", error);
        Err(ConnectError::NoRelay { relays: vec![error] })
    };
    assert_eq!(relay(&Ok(()), true), StepReport::ok("packets pass through a relay alone"));
    let none = || Err(ConnectError::NoRelay { relays: Vec::new() });
    assert_eq!(relay(&none(), true).state, State::Skipped);
    says(&relay(&none(), false), State::Failed, "names no relay", "443");
    for (error, wrong, advice) in [
        (
            RelayError::Silent(Duration::from_secs(5)),
            "turns:turn.example:443: no answer within 5s",
            "open its port",
        ),
        (RelayError::Tls("bad".into()), "bad", "certificate"),
        (RelayError::Unauthorized { code: 401, words: String::new() }, "401", "password"),
        (RelayError::Refused { code: 403, words: String::new() }, "403", "as a peer"),
        (RelayError::NotFound("x".into()), "name was not found", "turn.domain"),
    ] {
        says(&relay(&failed(error.clone()), true), State::Warning, wrong, "calls work without it");
        says(&relay(&failed(error), false), State::Failed, wrong, advice);
    }
    says(&relay(&Err(no_path("192.0.2.7:7882")), true), State::Warning, "do not pass through it", "log");
    assert_eq!(path(Path::Udp, &none(), true, &[]).state, State::Skipped);
}
