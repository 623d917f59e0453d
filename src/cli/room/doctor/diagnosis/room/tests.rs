use super::*;
use crate::cli::room::doctor::step::State;
use toolbridge::livekit::RelayFailure;

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
    let failed = State::Failed;
    for (why, wrong, advice) in [
        (TokenRefusal::Key, "does not know the API key", "keys"),
        (TokenRefusal::Signature, "not signed with the secret", "token server"),
        (TokenRefusal::Expired, "has expired", "new token"),
        (TokenRefusal::NotYet, "not valid yet", "clock"),
        (TokenRefusal::NoJoin, "does not grant joining", "roomJoin"),
        (TokenRefusal::Unknown, "HTTP 401", "log"),
    ] {
        says(&refused(why, false), failed, wrong, advice);
    }
    says(&refused(TokenRefusal::Signature, true), failed, "another secret", "LIVEKIT_API_SECRET");
    says(&refused(TokenRefusal::Expired, true), failed, "a new token as expired", "NTP");
    for (status, wrong, advice) in [
        (404, "404", "--room"),
        (429, "429", "minute"),
        (503, "503", "load"),
        (500, "HTTP 500", "log"),
        (200, "HTTP 200", "/rtc"),
    ] {
        let error = ConnectError::Refused { server: server(), status, reason: String::new() };
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
        (ConnectError::DuplicateIdentity, "same identity", "its own identity"),
        (ConnectError::RoomDeleted, "deleted", "cleans"),
        (ConnectError::Removed, "removed", "API key"),
        (
            ConnectError::Unreachable { server: server(), source: std::io::Error::other("reset") },
            "reset",
            "WebSockets",
        ),
    ] {
        says(&not_joined(&error, TokenRefusal::Unknown, true), failed, wrong, advice);
    }
}

#[test]
fn join_without_a_path_counts_as_accepted() {
    let slow = ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Channels };
    for error in [no_path("192.0.2.7:7882"), slow] {
        assert_eq!(not_joined(&error, TokenRefusal::Unknown, true).state, State::Ok);
    }
}

#[test]
fn missing_send_permission_is_expected_only_of_observers() {
    let allowed = |may_send, role| Permissions { may_send, role, is_agent: false };
    assert_eq!(permissions(&allowed(true, Some(Role::Client)), false).state, State::Ok);
    assert_eq!(permissions(&allowed(true, None), true), StepReport::ok("may send and receive data"));
    assert_eq!(permissions(&allowed(false, Some(Role::Observer)), false).state, State::Ok);
    says(
        &permissions(&allowed(false, Some(Role::Client)), false),
        State::Failed,
        "may not send data, as client",
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
fn blocked_path_names_its_ports() {
    let public = ["192.0.2.7".parse().unwrap()];
    let tried = "192.0.2.7:7882, [2001:db8::7]:7882";
    let report = path(Path::Udp, &Err(no_path(tried)), false, &public);
    says(&report, State::Failed, "no answer over UDP from 192.0.2.7:7882", "UDP 7882 is blocked");
    let report = path(Path::Udp, &Err(no_path(tried)), true, &public);
    says(&report, State::Warning, "over UDP", "until then calls use TCP or a relay");
    let report = path(Path::Tcp, &Err(no_path("192.0.2.7:7881")), true, &public);
    says(&report, State::Warning, "over TCP", "TCP 7881 is blocked");
    assert_eq!(path(Path::Tcp, &Ok(()), true, &public), StepReport::ok("packets pass over TCP"));
}

#[test]
fn missing_addresses_are_a_configuration_problem() {
    let none = || Err(no_path(""));
    says(
        &path(Path::Udp, &none(), true, &[]),
        State::Warning,
        "no address for packets over UDP",
        "force_tcp",
    );
    says(
        &path(Path::Tcp, &none(), true, &[]),
        State::Warning,
        "no address for packets over TCP",
        "rtc.tcp_port",
    );
    says(&path(Path::Tcp, &none(), false, &[]), State::Failed, "no address", "7881");
}

#[test]
fn private_addresses_of_a_public_server_are_explained() {
    let public = ["198.51.100.7".parse().unwrap()];
    for inner in ["10.0.0.7:7882", "172.17.0.2:7882, 127.0.0.1:7882", "100.64.0.1:7882", "[fd00::1]:7882"] {
        says(
            &path(Path::Udp, &Err(no_path(inner)), true, &public),
            State::Warning,
            "private addresses",
            "use_external_ip",
        );
    }
    let local = ["10.0.0.7".parse().unwrap()];
    says(
        &path(Path::Udp, &Err(no_path("10.0.0.7:7882")), true, &local),
        State::Warning,
        "no answer",
        "blocked",
    );
    says(
        &path(Path::Udp, &Err(no_path("10.0.0.7:7882, 198.51.100.7:7882")), true, &public),
        State::Warning,
        "no answer",
        "blocked",
    );
}

#[test]
fn other_join_failures_of_a_path_are_explained() {
    let slow = Err(ConnectError::Timeout { limit: Duration::from_secs(5), phase: JoinPhase::Channels });
    says(&path(Path::Udp, &slow, true, &[]), State::Failed, "did not open in time", "--limit");
    says(&path(Path::Udp, &Err(ConnectError::RoomDeleted), true, &[]), State::Failed, "deleted", "again");
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
        StepReport::ok(
            "20 of 20 reliable and 20 of 20 lossy packets came back; median round trip 4.0 ms, longest 4.0 ms"
        )
    );
    assert_eq!(echo(&echoes(20, 19, 40)).state, State::Ok);
    says(&echo(&echoes(20, 18, 40)), State::Warning, "2 of 20 lossy packets were lost", "Wi-Fi");
    says(&echo(&echoes(20, 20, 400)), State::Warning, "takes 400 ms", "closer");
    says(&echo(&echoes(7, 0, 40)), State::Failed, "did not come back", "another network");
    says(
        &echo(&EchoResults { sent_reliable: 1, ..EchoResults::default() }),
        State::Failed,
        "no data passes between them",
        "log",
    );
    says(&no_echo(&ConnectError::Removed), State::Failed, "could not join", "max_participants");
}

#[test]
fn relay_is_required_only_if_no_other_path_works() {
    let failed = |error: RelayError| {
        let error = RelayFailure::new("turns:turn.example:443", error);
        Err(ConnectError::NoRelay { relays: vec![error] })
    };
    assert_eq!(relay(&Ok(()), true), StepReport::ok("packets pass through a relay"));
    let none = || Err(ConnectError::NoRelay { relays: Vec::new() });
    assert_eq!(relay(&none(), true).state, State::Skipped);
    says(&relay(&none(), false), State::Failed, "offers no relay", "443");
    for (error, wrong, advice) in [
        (
            RelayError::Silent(Duration::from_secs(5)),
            "turns:turn.example:443: no response within 5s",
            "open its port",
        ),
        (RelayError::Tls("bad".into()), "bad", "certificate"),
        (RelayError::Unauthorized { code: 401, words: String::new() }, "401", "password"),
        (RelayError::Refused { code: 403, words: String::new() }, "403", "as a peer"),
        (RelayError::NotFound("x".into()), "host name not found", "turn.domain"),
    ] {
        says(&relay(&failed(error.clone()), true), State::Warning, wrong, "calls work without a relay");
        says(&relay(&failed(error), false), State::Failed, wrong, advice);
    }
    says(&relay(&Err(no_path("192.0.2.7:7882")), true), State::Warning, "do not pass through", "log");
    assert_eq!(path(Path::Udp, &none(), true, &[]).state, State::Skipped);
}
