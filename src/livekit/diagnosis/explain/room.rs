//! Explains the join, the permissions, the network paths over UDP, TCP and TURN, and the data round trips.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::list;
use crate::{
    clock::Spelled,
    livekit::{
        ConnectError, JoinPhase, RelayError, TokenRefusal,
        diagnosis::{
            check::Finding,
            joins::{EchoResults, Permissions},
        },
        token::access_token::obstacle,
    },
    transport::Role,
};

/// Describes a successful join.
pub(crate) fn joined(room: &str, identity: &str) -> Finding {
    Finding::ok(format!("joined the room {room} as {identity}"))
}

/// Explains a failed join. If only the path for packets is missing, the server accepted the join.
pub(crate) fn not_joined(error: &ConnectError, why: TokenRefusal, made_here: bool) -> Finding {
    match error {
        ConnectError::NoNetworkPath { .. }
        | ConnectError::NoRelay { .. }
        | ConnectError::Timeout { phase: JoinPhase::Channels, .. } => {
            Finding::ok("the server accepts the join (packets are checked below)")
        }
        ConnectError::Unauthorized { .. } => refused(why, made_here),
        ConnectError::Forbidden { status, .. } => Finding::failed(
            format!("the server accepts the token, but not this join (HTTP {status})"),
            "ask the server's operator: the server may limit rooms, participants or regions",
        ),
        ConnectError::Refused { status, .. } => status_of(*status),
        ConnectError::ServerTooOld { version } => Finding::failed(
            format!("the LiveKit server is too old: version {version}"),
            "update the server to 1.9.11 or newer",
        ),
        ConnectError::Timeout { limit, .. } => Finding::failed(
            format!("the server did not answer the join within {}", Spelled(*limit)),
            "a web server or firewall may block WebSockets: make it forward `Upgrade: websocket`; or the server is \
            overloaded: check its log",
        ),
        ConnectError::DuplicateIdentity => Finding::failed(
            "another participant with the same identity joined during the check",
            "give each participant its own identity; also look for an app that rejoins repeatedly",
        ),
        ConnectError::RoomDeleted | ConnectError::Removed => Finding::failed(
            error.to_string(),
            "a program with the server's API key did this: look for one that cleans up rooms",
        ),
        other => Finding::failed(
            format!("the signaling WebSocket could not be opened: {other}"),
            "make the web server in front of LiveKit forward WebSockets (`Upgrade: websocket`) for /rtc",
        ),
    }
}

fn refused(why: TokenRefusal, made_here: bool) -> Finding {
    match why {
        TokenRefusal::Signature if made_here => {
            Finding::failed("the server knows the API key, but with another secret", why.advice())
        }
        TokenRefusal::Expired if made_here => {
            Finding::failed("the server treats a new token as expired", "synchronize both clocks with NTP")
        }
        TokenRefusal::Unknown => Finding::failed("the server refused the token (HTTP 401)", why.advice()),
        why => Finding::failed(why.to_string(), why.advice()),
    }
}

fn status_of(status: u16) -> Finding {
    let (problem, advice) = match status {
        404 => (
            "the room does not exist, or the path in the server's address is wrong (HTTP 404)",
            "if the server does not create rooms automatically (`room.auto_create`), use the name of an existing room; \
            otherwise correct the path in the server's address",
        ),
        429 => (
            "the server limits the rate of requests (HTTP 429)",
            "wait a minute; then look for an app that joins repeatedly",
        ),
        503 => (
            "the server is full or has no free node (HTTP 503)",
            "check its load and `limit` in its configuration",
        ),
        500.. => (
            "the server, or a web server in front of it, had an internal error",
            "check the logs of the LiveKit server and of the web server in front of it",
        ),
        _ => (
            "the server did not answer as LiveKit does",
            "make the web server in front of LiveKit forward /rtc unchanged, including WebSockets",
        ),
    };
    let problem =
        if problem.contains("HTTP") { problem.to_owned() } else { format!("{problem} (HTTP {status})") };
    Finding::failed(problem, advice)
}

/// Explains the participant's permissions.
pub(crate) fn permissions(permissions: &Permissions, made_here: bool) -> Finding {
    let role = match permissions.role {
        Some(role) => format!("as {} (its role)", role.as_str()),
        None if permissions.is_assistant => "as an agent".to_owned(),
        None => "without a role".to_owned(),
    };
    let (is_hidden, may_send) = (permissions.is_hidden, permissions.may_send);
    if let Some(it) = obstacle(permissions.role.unwrap_or(Role::Client), is_hidden, may_send) {
        return Finding::failed(format!("{}, {role}: {}", it.what, it.consequence), it.advice);
    }
    match (may_send, permissions.role) {
        (true, Some(Role::Observer)) => Finding::warning(
            "the observer may send data",
            "remove `canPublishData` from its token: an observer only receives",
        ),
        (true, _) if made_here => Finding::ok("may send and receive data"),
        (true, _) => Finding::ok(format!("may send and receive data, {role}")),
        (false, _) => Finding::ok("may receive but not send data, as expected of an observer"),
    }
}

/// The transport protocol of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Udp,
    Tcp,
}

/// Explains whether packets pass over one protocol.
pub(crate) fn path(
    path: Path,
    result: &Result<(), ConnectError>,
    works_otherwise: bool,
    server: &[IpAddr],
) -> Finding {
    let tried = match result {
        Ok(()) => {
            let name = if path == Path::Udp { "UDP" } else { "TCP" };
            return Finding::ok(format!("packets pass over {name}"));
        }
        Err(ConnectError::NoNetworkPath { tried, .. }) => tried,
        Err(ConnectError::NoRelay { .. }) => {
            return Finding::skipped("the server allows packets through relays only (`force_relay`)");
        }
        Err(ConnectError::Timeout { phase: JoinPhase::Channels, .. }) => {
            return Finding::failed(
                "packets pass, but the data channels did not open in time",
                "the network loses or delays most packets: try another network, or set a longer `ConnectOptions::join_timeout`",
            );
        }
        Err(other) => {
            return Finding::failed(
                format!("the join for this check failed: {other}"),
                "try again; an earlier join succeeded",
            );
        }
    };
    let finding = if tried.is_empty() { not_offered(path) } else { blocked(path, tried, server) };
    if works_otherwise {
        let (problem, advice) = (finding.problem.unwrap_or_default(), finding.advice.unwrap_or_default());
        let meanwhile = match path {
            Path::Udp => "until then calls use TCP or a relay, which is slower when packets are lost",
            Path::Tcp => "until then calls use another path, which fails on networks that block UDP",
        };
        return Finding::warning(problem, format!("{advice}; {meanwhile}"));
    }
    finding
}

fn not_offered(path: Path) -> Finding {
    match path {
        Path::Udp => Finding::failed(
            "the server offers no address for packets over UDP",
            "the server is configured for TCP only (`rtc.force_tcp`), or UDP failed for this identity within the last \
            five minutes: try again later",
        ),
        Path::Tcp => Finding::failed(
            "the server offers no address for packets over TCP",
            "set `rtc.tcp_port: 7881` in the server's configuration and open that port, for networks that block UDP",
        ),
    }
}

fn blocked(path: Path, tried: &[SocketAddr], server: &[IpAddr]) -> Finding {
    let name = if path == Path::Udp { "UDP" } else { "TCP" };
    let problem = format!("no answer over {name} from {}", list(tried));
    let hidden = tried.iter().all(|it| is_inner(it.ip())) && server.iter().any(|ip| !is_inner(*ip));
    if hidden {
        return Finding::failed(
            format!("{problem}: these are private addresses of the server's network"),
            "set `rtc.use_external_ip: true`, or `rtc.node_ip` to its public address, in the LiveKit server's configuration",
        );
    }
    let mut ports: Vec<_> = tried.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    let ports = list(&ports);
    Finding::failed(
        problem,
        format!(
            "{name} {ports} is blocked on the path to the server: open it in the server's firewall or security group, and \
            for outgoing traffic in the local network{}",
            if path == Path::Udp {
                " (LiveKit's `rtc.udp_port`, or 50000 to 60000)"
            } else {
                " (LiveKit's `rtc.tcp_port`)"
            }
        ),
    )
}

/// Explains whether packets pass through a TURN relay. `works_directly` says whether they pass without one.
pub(crate) fn relay(result: &Result<(), ConnectError>, works_directly: bool) -> Finding {
    let relays = match result {
        Ok(()) => return Finding::ok("packets pass through a relay"),
        Err(ConnectError::NoRelay { relays }) => relays,
        Err(other) => {
            let problem = format!("packets do not pass through the server's relay: {other}");
            return mild(
                works_directly,
                problem,
                "check the relay's log and that it can reach the LiveKit server",
            );
        }
    };
    if relays.is_empty() {
        if works_directly {
            return Finding::skipped(
                "the server offers no relay; only networks that block all other traffic need one",
            );
        }
        return Finding::failed(
            "the server offers no relay, and no other path works",
            "enable `turn` in the LiveKit server's configuration, with TLS on port 443",
        );
    }
    let advice = match &relays[0].error {
        RelayError::Unauthorized { .. } => {
            "set the relay's user name and password in the LiveKit server's configuration (`rtc.turn_servers`)"
        }
        RelayError::Tls(_) => "install a publicly trusted certificate for the relay's name on the relay",
        RelayError::Refused { .. } => {
            "allow the LiveKit server's address as a peer in the relay's configuration"
        }
        RelayError::NotFound(_) => {
            "correct the relay's name in the LiveKit server's configuration (`turn.domain`)"
        }
        _ => "start the relay, and open its port for this machine",
    };
    mild(works_directly, format!("no relay can be used: {}", list(relays)), advice)
}

fn mild(works: bool, problem: String, advice: &str) -> Finding {
    if works {
        let so = "; calls work without a relay, except on networks that block all other traffic";
        return Finding::warning(problem, format!("{advice}{so}"));
    }
    Finding::failed(problem, advice)
}

/// Returns whether an address is private, or local to a machine or link.
fn is_inner(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // 100.64.0.0/10 is shared address space (RFC 6598).
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Longer round trips noticeably delay a conversation.
const SLOW: Duration = Duration::from_millis(300);

/// Explains the data round trips between two participants.
pub(crate) fn echo(echoes: &EchoResults) -> Finding {
    let EchoResults { reliable, sent_reliable, lossy, sent_lossy } = echoes;
    if reliable.is_empty() {
        return Finding::failed(
            "two participants joined the room, but no data passes between them",
            "check the LiveKit server's log; with several nodes, also the connection between them",
        );
    }
    let mut sorted = reliable.clone();
    sorted.sort_unstable();
    let median = sorted[sorted.len() / 2];
    let longest = sorted[sorted.len() - 1];
    let found = format!(
        "{} of {sent_reliable} reliable and {} of {sent_lossy} lossy packets came back; median round trip {}, longest {}",
        reliable.len(),
        lossy.len(),
        millis(median),
        millis(longest)
    );
    if reliable.len() < *sent_reliable {
        return Finding::failed(
            "reliable packets did not come back in time",
            "the network loses or delays most packets: try another network or a closer server",
        )
        .found(found);
    }
    let lost = sent_lossy - lossy.len();
    if lost * 20 > *sent_lossy {
        return Finding::warning(
            format!("{lost} of {sent_lossy} lossy packets were lost"),
            "packet loss slows calls: use a cable instead of Wi-Fi, and check for a saturated uplink",
        )
        .found(found);
    }
    if median > SLOW {
        return Finding::warning(
            format!("the median round trip takes {}", millis(median)),
            "use a closer server or region",
        )
        .found(found);
    }
    Finding::ok(found)
}

/// Explains why the round trips could not be measured.
pub(crate) fn no_echo(error: &ConnectError) -> Finding {
    Finding::failed(
        format!("the two participants for this check could not join: {error}"),
        "try again; a single participant could join. The server may limit participants (`room.max_participants`)",
    )
}

pub(crate) fn millis(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests;
