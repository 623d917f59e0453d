//! Tests losses, attempts and their times, on virtual time.

use super::*;
use crate::livekit::{TokenRefusal, error::JoinPhase};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The largest random wait; zero is the smallest.
const MOST: u32 = u32::MAX;

fn policy() -> Policy {
    Policy { first: 200 * MS, longest: 5 * SECOND, limit: None, join_timeout: 15 * SECOND }
}

fn stable(policy: Policy) -> (Rejoin, Instant) {
    let start = Instant::now();
    (Rejoin::new(start, policy, 50 * MS), start + STABLE)
}

fn lost() -> End {
    End::Lost(Loss::Signaling("stream closed".into()))
}

fn unreachable() -> Failure {
    Failure::Join(ConnectError::Unreachable {
        server: "sfu:443".into(),
        source: std::io::Error::other("refused"),
    })
}

fn unauthorized() -> ConnectError {
    ConnectError::Unauthorized { server: "sfu:443".into(), status: 401, reason: TokenRefusal::Signature }
}

fn unanswered() -> Failure {
    Failure::Unanswered(ConnectError::Timeout { limit: SECOND, phase: JoinPhase::Signaling })
}

/// Advances to the next attempt; returns the wait and the limit of the attempt.
fn next_attempt(rejoin: &mut Rejoin, now: &mut Instant) -> (Duration, Duration) {
    let before = *now;
    loop {
        match rejoin.poll(*now) {
            Step::Wait(until) => *now = until,
            Step::Join { limit, .. } => return (*now - before, limit),
            Step::End(reason) => panic!("{reason}"),
        }
    }
}

fn end_of(failure: &Failure) -> Option<CloseReason> {
    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_failed(now, failure, 0);
    match rejoin.poll(now) {
        Step::End(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn waits_double_up_to_the_longest_after_an_immediate_first_attempt() {
    for (chance, expected) in
        [(0, [0, 100, 200, 400, 800, 1600, 2500, 2500]), (MOST, [100, 200, 400, 800, 1600, 3200, 5000, 5000])]
    {
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), chance);
        for milliseconds in expected {
            assert_eq!(next_attempt(&mut rejoin, &mut now).0, milliseconds * MS);
            rejoin.handle_failed(now, &unreachable(), chance);
        }
    }
}

#[test]
fn duration_of_an_attempt_counts_toward_the_wait() {
    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), MOST);
    let (_, limit) = next_attempt(&mut rejoin, &mut now);
    assert_eq!(limit, FIRST_ATTEMPT);
    now += limit;
    rejoin.handle_failed(now, &unreachable(), MOST);
    let (waited, limit) = next_attempt(&mut rejoin, &mut now);
    assert_eq!((waited, limit), (Duration::ZERO, 2 * FIRST_ATTEMPT));
}

#[test]
fn attempt_limit_doubles_up_to_the_join_timeout() {
    let limits = |took: Duration, policy: Policy| {
        let (start, mut limits) = (Instant::now(), Vec::new());
        let (mut rejoin, mut now) = (Rejoin::new(start, policy, took), start + STABLE);
        rejoin.handle_ended(now, lost(), 0);
        for _ in 0..5 {
            limits.push(next_attempt(&mut rejoin, &mut now).1.as_secs());
            rejoin.handle_failed(now, &unreachable(), 0);
        }
        limits
    };
    assert_eq!(limits(50 * MS, policy()), [3, 6, 12, 15, 15]);
    assert_eq!(limits(SECOND, policy()), [4, 8, 15, 15, 15], "a slow network has more time");
    assert_eq!(limits(SECOND, Policy { join_timeout: 2 * SECOND, ..policy() }), [2; 5]);
}

#[test]
fn stable_connection_resets_the_backoff_and_a_short_one_does_not() {
    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), MOST);
    for _ in 0..3 {
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_joined(now);
        now += SECOND;
        rejoin.handle_ended(now, lost(), MOST);
    }
    assert_eq!(next_attempt(&mut rejoin, &mut now).0, 800 * MS, "three false starts");
    rejoin.handle_joined(now);
    now += STABLE;
    rejoin.handle_ended(now, lost(), MOST);
    assert_eq!(next_attempt(&mut rejoin, &mut now).0, 100 * MS);
}

#[test]
fn rejoin_limit_bounds_the_attempts() {
    let (mut rejoin, mut now) = stable(policy());
    let start = now;
    rejoin.handle_ended(now, lost(), 0);
    while now < start + 24 * 3600 * SECOND {
        next_attempt(&mut rejoin, &mut now);
        now += SECOND;
        rejoin.handle_failed(now, &unreachable(), 0);
    }

    let (mut rejoin, mut now) = stable(Policy { limit: Some(10 * SECOND), ..policy() });
    let until = now + 10 * SECOND;
    rejoin.handle_ended(now, lost(), MOST);
    let reason = loop {
        match rejoin.poll(now) {
            Step::Wait(at) => now = at,
            Step::Join { limit, .. } => {
                assert!(now + limit <= until, "no attempt lasts longer than the limit of them all");
                rejoin.handle_failed(now, &unreachable(), MOST);
            }
            Step::End(reason) => break reason,
        }
    };
    assert_eq!(now, until);
    match reason {
        CloseReason::ConnectionLost(why) => {
            assert!(why.contains("stream closed") && why.contains("10 s"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn zero_rejoin_limit_ends_at_the_loss() {
    let (mut rejoin, now) = stable(Policy { limit: Some(Duration::ZERO), ..policy() });
    assert_eq!(rejoin.is_over(now), None);
    rejoin.handle_ended(now, lost(), 0);
    let why = "the signaling connection ended (stream closed)";
    assert_eq!(rejoin.is_over(now), Some(CloseReason::ConnectionLost(why.into())));
}

#[test]
fn server_side_removal_stops_reconnection() {
    for reason in [CloseReason::Removed, CloseReason::DuplicateIdentity, CloseReason::RoomDeleted] {
        let (mut rejoin, now) = stable(policy());
        rejoin.handle_ended(now, End::Closed(reason.clone()), 0);
        assert_eq!(rejoin.is_over(now), Some(reason));
    }
    assert_eq!(end_of(&Failure::Join(ConnectError::Removed)), Some(CloseReason::Removed));
    assert_eq!(end_of(&Failure::Join(ConnectError::RoomDeleted)), Some(CloseReason::RoomDeleted));
}

#[test]
fn only_the_servers_word_on_the_token_stops_reconnection() {
    let server = || "sfu:443".to_owned();
    let refused =
        |status| Failure::Join(ConnectError::Refused { server: server(), status, reason: String::new() });
    let malformed = Failure::Join(ConnectError::MalformedToken);
    assert_eq!(end_of(&malformed), Some(CloseReason::Refused(malformed.to_string().into())));
    assert_eq!(end_of(&Failure::TokenExpired), Some(CloseReason::TokenExpired));
    let unknown =
        || ConnectError::Unauthorized { server: server(), status: 401, reason: TokenRefusal::Unknown };
    for failure in [
        unreachable(),
        unanswered(),
        refused(200),
        refused(302),
        refused(404),
        refused(429),
        refused(502),
        Failure::Join(ConnectError::Forbidden { server: server(), status: 403 }),
        Failure::Join(unknown()),
        Failure::Join(ConnectError::ServerTooOld { version: "1.9.8".into() }),
        Failure::NoToken("the token server is away".into()),
        Failure::Join(ConnectError::Tls { server: server(), source: "unexpected end".into() }),
        Failure::Join(ConnectError::NoNetworkPath { limit: SECOND, tried: Vec::new() }),
        Failure::Join(ConnectError::Closed(CloseReason::ConnectionLost("again".into()))),
    ] {
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), 0);
        for _ in 0..100 {
            next_attempt(&mut rejoin, &mut now);
            rejoin.handle_failed(now, &failure, 0);
        }
        assert_eq!(rejoin.is_over(now), None, "{failure}");
    }
}

#[test]
fn refused_token_ends_the_participant_after_15_s_of_repeated_answers() {
    let (mut rejoin, start) = stable(policy());
    rejoin.handle_ended(start, lost(), 0);
    rejoin.handle_failed(start, &Failure::Join(unauthorized()), 0);
    rejoin.handle_failed(start + BELIEVED - MS, &Failure::Join(unauthorized()), 0);
    assert_eq!(rejoin.is_over(start + BELIEVED - MS), None);
    rejoin.handle_failed(start + BELIEVED, &Failure::Join(unauthorized()), 0);
    let text = unauthorized().to_string();
    assert_eq!(rejoin.is_over(start + BELIEVED), Some(CloseReason::Refused(text.into())));
}

#[test]
fn refused_fresh_tokens_end_the_participant_after_15_s_and_are_asked_for_meanwhile() {
    let (mut rejoin, start) = stable(policy());
    rejoin.handle_ended(start, lost(), 0);
    let (mut now, mut fresh_tokens) = (start, 0);
    let reason = loop {
        match rejoin.poll(now) {
            Step::Wait(until) => now = until,
            Step::Join { fresh_token: false, .. } => rejoin.handle_failed(now, &Failure::TokenRefused, 0),
            Step::Join { fresh_token: true, .. } => {
                fresh_tokens += 1;
                rejoin.handle_failed(now, &Failure::Join(unauthorized()), 0);
            }
            Step::End(reason) => break reason,
        }
    };
    assert!(matches!(reason, CloseReason::Refused(_)), "{reason}");
    assert!((BELIEVED..2 * BELIEVED).contains(&(now - start)), "{:?}", now - start);
    assert!((3..20).contains(&fresh_tokens), "{fresh_tokens}");
}

#[test]
fn answer_of_another_kind_between_two_refusals_begins_the_15_s_again() {
    let (mut rejoin, start) = stable(policy());
    rejoin.handle_ended(start, lost(), 0);
    rejoin.handle_failed(start, &Failure::Join(unauthorized()), 0);
    rejoin.handle_failed(start + 10 * SECOND, &unreachable(), 0);
    rejoin.handle_failed(start + BELIEVED, &Failure::Join(unauthorized()), 0);
    assert_eq!(rejoin.is_over(start + BELIEVED), None);
}

#[test]
fn rejected_token_is_replaced_at_once() {
    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), 0);
    assert!(matches!(rejoin.poll(now), Step::Join { fresh_token: false, .. }));
    rejoin.handle_failed(now, &Failure::TokenRefused, MOST);
    assert!(matches!(rejoin.poll(now), Step::Join { fresh_token: true, .. }));
    // No new token was available: the old one is tried again, and refused again.
    rejoin.handle_failed(now, &Failure::NoToken("away".into()), MOST);
    assert!(next_attempt(&mut rejoin, &mut now).0 > Duration::ZERO);
}

#[test]
fn abandoned_attempt_may_evict_the_participant_once() {
    let out = || End::Closed(CloseReason::DuplicateIdentity);
    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_failed(now, &unanswered(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_joined(now);
    rejoin.handle_ended(now, out(), 0);
    assert_eq!(rejoin.is_over(now), None, "it was ourselves");
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_joined(now);
    rejoin.handle_ended(now, out(), 0);
    assert_eq!(rejoin.is_over(now), Some(CloseReason::DuplicateIdentity));

    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_failed(now, &unanswered(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_joined(now);
    now += GHOST;
    rejoin.handle_ended(now, out(), 0);
    assert_eq!(rejoin.is_over(now), Some(CloseReason::DuplicateIdentity), "by then it is gone");

    let (mut rejoin, mut now) = stable(policy());
    rejoin.handle_ended(now, lost(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_failed(now, &unreachable(), 0);
    next_attempt(&mut rejoin, &mut now);
    rejoin.handle_joined(now);
    rejoin.handle_ended(now, out(), 0);
    assert_eq!(rejoin.is_over(now), Some(CloseReason::DuplicateIdentity), "that attempt had reached nobody");
}
