//! The room itself: the join, what we may do, packets over UDP and TCP, data there and back.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::list;
use crate::cli::doctor::{
    joins::{EchoResults, Permissions},
    step::StepReport,
};
use toolbridge::{
    ConnectError, Role,
    transport::livekit::{JoinPhase, RelayError, TokenRefusal},
};

/// The join that the server took, by a path or without one.
pub(in crate::cli::doctor) fn joined(room: &str, identity: &str) -> StepReport {
    StepReport::ok(format!("the server let us into the room {room} as {identity}"))
}

/// A join that failed. Without a path for packets it was still taken.
pub(in crate::cli::doctor) fn not_joined(
    error: &ConnectError,
    why: TokenRefusal,
    made_here: bool,
) -> StepReport {
    match error {
        ConnectError::NoNetworkPath { .. }
        | ConnectError::NoRelay { .. }
        | ConnectError::Timeout { phase: JoinPhase::Channels, .. } => {
            StepReport::ok("the server takes the join (whether packets pass comes below)")
        }
        ConnectError::Unauthorized { .. } => refused(why, made_here),
        ConnectError::Forbidden { status, .. } => StepReport::failed(
            format!("the server takes the token, but not this join (HTTP {status})"),
            "ask whoever runs it: it may limit rooms, participants or regions",
        ),
        ConnectError::Refused { status, .. } => status_of(*status),
        ConnectError::ServerTooOld { version } => StepReport::failed(
            format!("the LiveKit server is too old: version {version}"),
            "update it to 1.9.11 or newer",
        ),
        ConnectError::Timeout { limit, .. } => StepReport::failed(
            format!("the server did not answer the join within {limit:?}"),
            "a web server or firewall in between may hold WebSockets up: have it pass `Upgrade: websocket` on; or the \
             server is overloaded: look at its log",
        ),
        ConnectError::DuplicateIdentity => StepReport::failed(
            "somebody else joined with the same identity at this moment",
            "give each participant an identity of its own; an app that joins again and again would do this, too",
        ),
        ConnectError::RoomDeleted | ConnectError::Removed => StepReport::failed(
            error.to_string(),
            "somebody with the server's API key did that: look for a program that cleans rooms up",
        ),
        other => StepReport::failed(
            format!("the WebSocket for the join did not come about: {other}"),
            "a web server in front of LiveKit must pass WebSockets on (`Upgrade: websocket`) for /rtc",
        ),
    }
}

fn refused(why: TokenRefusal, made_here: bool) -> StepReport {
    match why {
        TokenRefusal::Signature if made_here => {
            StepReport::failed("the server knows the API key, but has another secret for it", why.advice())
        }
        TokenRefusal::Expired if made_here => StepReport::failed(
            "the server takes a token of this moment for expired",
            "set both clocks by NTP",
        ),
        TokenRefusal::Unknown => StepReport::failed("the server refused the token (HTTP 401)", why.advice()),
        why => StepReport::failed(why.to_string(), why.advice()),
    }
}

fn status_of(status: u16) -> StepReport {
    let (wrong, advice) = match status {
        404 => (
            "the room does not exist, or the server has no place for joins under this path (HTTP 404)",
            "this server may not create rooms by itself (`room.auto_create`): name one that exists with --room; or correct \
             the path in the server's address",
        ),
        429 => (
            "the server is asked too often (HTTP 429)",
            "wait a minute; then look for an app that joins all the time",
        ),
        503 => (
            "the server is full, or has no free node (HTTP 503)",
            "look at its load and at `limit` in its configuration",
        ),
        500.. => (
            "the server, or what stands in front of it, has trouble of its own",
            "look at the log of the LiveKit server and of the web server in front of it",
        ),
        _ => (
            "the server answered as LiveKit does not",
            "have the web server in front of LiveKit pass /rtc on as it is, WebSockets included",
        ),
    };
    let wrong = if wrong.contains("HTTP") { wrong.to_owned() } else { format!("{wrong} (HTTP {status})") };
    StepReport::failed(wrong, advice)
}

/// What we may do, as the server sees it.
pub(in crate::cli::doctor) fn permissions(permissions: &Permissions, made_here: bool) -> StepReport {
    let role = match permissions.role {
        Some(role) => format!("as {} (its role)", role.as_str()),
        None if permissions.is_agent => "as an agent".to_owned(),
        None => "without a role".to_owned(),
    };
    match (permissions.may_send, permissions.role) {
        (true, Some(Role::Observer)) => StepReport::warning(
            "an observer that may send data",
            "take `canPublishData` out of its token: an observer has nothing to say",
        ),
        (true, _) if made_here => StepReport::ok("data may be sent and heard"),
        (true, _) => StepReport::ok(format!("data may be sent and heard, {role}")),
        (false, Some(Role::Observer)) => {
            StepReport::ok("data may be heard and not sent, as an observer should")
        }
        (false, _) => StepReport::failed(
            format!("no data may be sent, {role}: it can neither call tools nor answer"),
            "have the token server grant `canPublishData`",
        ),
    }
}

/// What packets go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::doctor) enum Path {
    Udp,
    Tcp,
}

/// Packets over one kind of path alone.
pub(in crate::cli::doctor) fn path(
    path: Path,
    result: &Result<(), ConnectError>,
    works_otherwise: bool,
    server: &[IpAddr],
) -> StepReport {
    let tried = match result {
        Ok(()) => {
            let name = if path == Path::Udp { "UDP" } else { "TCP" };
            return StepReport::ok(format!("packets pass over {name} alone"));
        }
        Err(ConnectError::NoNetworkPath { tried, .. }) => tried,
        Err(ConnectError::NoRelay { .. }) => {
            return StepReport::skipped("the server lets packets through relays only (`force_relay`)");
        }
        Err(ConnectError::Timeout { phase: JoinPhase::Channels, .. }) => {
            return StepReport::failed(
                "packets pass, but so badly that no channel opened in time",
                "the network loses or delays most of them: measure it, and try another one; --limit allows more time",
            );
        }
        Err(other) => {
            return StepReport::failed(
                format!("the join for this check failed: {other}"),
                "try again; it worked a moment ago",
            );
        }
    };
    let report = if tried.is_empty() { not_offered(path) } else { blocked(path, tried, server) };
    if works_otherwise {
        let (wrong, advice) = (report.wrong.unwrap_or_default(), report.advice.unwrap_or_default());
        let meanwhile = match path {
            Path::Udp => "calls work over TCP or a relay meanwhile, slower where packets are lost",
            Path::Tcp => "calls go another way meanwhile, but not from networks that block UDP",
        };
        return StepReport::warning(wrong, format!("{advice}; {meanwhile}"));
    }
    report
}

fn not_offered(path: Path) -> StepReport {
    match path {
        Path::Udp => StepReport::failed(
            "the server offers no address for UDP",
            "it is set to TCP only (`rtc.force_tcp`), or it saw UDP fail for this identity within the last five minutes: \
             try again then",
        ),
        Path::Tcp => StepReport::failed(
            "the server offers no address for packets over TCP",
            "set `rtc.tcp_port: 7881` in its configuration and open that port: networks that block UDP need it",
        ),
    }
}

fn blocked(path: Path, tried: &[SocketAddr], server: &[IpAddr]) -> StepReport {
    let name = if path == Path::Udp { "UDP" } else { "TCP" };
    let wrong = format!("nothing comes back over {name} from {}", list(tried));
    let hidden = tried.iter().all(|it| is_inner(it.ip())) && server.iter().any(|ip| !is_inner(*ip));
    if hidden {
        return StepReport::failed(
            format!("{wrong}: these are addresses of the server's own network"),
            "set `rtc.use_external_ip: true`, or `rtc.node_ip` to its public address, in the LiveKit server's configuration",
        );
    }
    let mut ports: Vec<_> = tried.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    let ports = list(&ports);
    StepReport::failed(
        wrong,
        format!(
            "{name} {ports} is blocked between here and the server: open it in the server's firewall or security group, and \
             outwards in the network here{}",
            if path == Path::Udp {
                " (LiveKit's `rtc.udp_port`, or 50000 to 60000)"
            } else {
                " (LiveKit's `rtc.tcp_port`)"
            }
        ),
    )
}

/// Packets through a relay alone. `works_directly`: whether they pass without one.
pub(in crate::cli::doctor) fn relay(result: &Result<(), ConnectError>, works_directly: bool) -> StepReport {
    let relays = match result {
        Ok(()) => return StepReport::ok("packets pass through a relay alone"),
        Err(ConnectError::NoRelay { relays }) => relays,
        Err(other) => {
            let wrong = format!("a relay is named, and packets do not pass through it: {other}");
            return mild(
                works_directly,
                wrong,
                "look at the relay's log, and whether it may reach the LiveKit server",
            );
        }
    };
    if relays.is_empty() {
        if works_directly {
            return StepReport::skipped(
                "the server names no relay; only networks that let nothing else out need one",
            );
        }
        return StepReport::failed(
            "the server names no relay, which networks that let nothing else out need",
            "turn on `turn` in the LiveKit server's configuration, over TLS on port 443",
        );
    }
    let advice = match &relays[0].error {
        RelayError::Unauthorized { .. } => {
            "give the LiveKit server the relay's user name and password (`rtc.turn_servers`)"
        }
        RelayError::Tls(_) => "get the relay a certificate that browsers accept, for the name in its address",
        RelayError::Refused { .. } => "have the relay allow the address of the LiveKit server as a peer",
        RelayError::NotFound(_) => {
            "correct the relay's name in the LiveKit server's configuration (`turn.domain`)"
        }
        _ => "start the relay, and open its port towards this machine",
    };
    mild(works_directly, format!("no relay can be used: {}", list(relays)), advice)
}

fn mild(works: bool, wrong: String, advice: &str) -> StepReport {
    if works {
        let so = "; calls work without it, but not from networks that let nothing else out";
        return StepReport::warning(wrong, format!("{advice}{so}"));
    }
    StepReport::failed(wrong, advice)
}

/// Whether an address means something only within one network, or one machine.
fn is_inner(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // 100.64.0.0/10 is between a provider and its customers.
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Round trips that take longer than this make conversations halt.
const SLOW: Duration = Duration::from_millis(300);

/// Data from one participant to another and back.
pub(in crate::cli::doctor) fn echo(echoes: &EchoResults) -> StepReport {
    let EchoResults { reliable, sent_reliable, lossy, sent_lossy } = echoes;
    if reliable.is_empty() {
        return StepReport::failed(
            "two participants are in the room, but nothing that one says reaches the other",
            "look at the LiveKit server's log; behind several nodes, at the connection between them",
        );
    }
    let mut sorted = reliable.clone();
    sorted.sort_unstable();
    let median = sorted[sorted.len() / 2];
    let longest = sorted[sorted.len() - 1];
    let found = format!(
        "{} of {sent_reliable} reliable and {} of {sent_lossy} fast packets came back; round trip {}, longest {}",
        reliable.len(),
        lossy.len(),
        millis(median),
        millis(longest)
    );
    if reliable.len() < *sent_reliable {
        return StepReport::failed(
            "reliable packets did not come back in time",
            "the network loses or delays most packets: try another one, or a server that is nearer",
        )
        .found(found);
    }
    let lost = sent_lossy - lossy.len();
    if lost * 20 > *sent_lossy {
        return StepReport::warning(
            format!("{lost} of {sent_lossy} fast packets were lost"),
            "calls are slow at that: prefer a cable to Wi-Fi, and look for a full uplink",
        )
        .found(found);
    }
    if median > SLOW {
        return StepReport::warning(
            format!("a round trip takes {}", millis(median)),
            "a server or region that is nearer makes calls quicker",
        )
        .found(found);
    }
    StepReport::ok(found)
}

/// Why there is no echo.
pub(in crate::cli::doctor) fn no_echo(error: &ConnectError) -> StepReport {
    StepReport::failed(
        format!("the two participants for this check could not join: {error}"),
        "try again; a single one could join a moment ago. The server may limit participants (`room.max_participants`)",
    )
}

pub(in crate::cli::doctor) fn millis(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests;
