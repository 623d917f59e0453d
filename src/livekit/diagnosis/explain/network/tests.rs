use super::*;
use crate::livekit::{
    diagnosis::{
        check::CheckStatus,
        explain::tests::{fails, warns},
    },
    signaling::proxy::ProxyError,
};

const LIMIT: Duration = Duration::from_secs(5);
const DAY: i64 = 86_400;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn name_lookup_is_explained() {
    let two = Ok(vec![at("192.0.2.7:443"), at("[2001:db8::7]:443")]);
    let finding = name("sfu.example", false, None, &two, LIMIT);
    assert_eq!(finding, Finding::ok("sfu.example resolves to 192.0.2.7 and 2001:db8::7"));
    let literal = name("192.0.2.7", true, None, &Ok(vec![at("192.0.2.7:443")]), LIMIT);
    assert_eq!(literal, Finding::ok("192.0.2.7 is an IP address; no lookup is needed"));
    let unknown = Err(NameFault::Unknown("Name or service not known".into()));
    fails(&name("sfu.exmaple", false, None, &unknown, LIMIT), "sfu.exmaple cannot be resolved", "spelling");
    fails(
        &name("p", false, Some("p:1 (HTTPS_PROXY)"), &unknown, LIMIT),
        "proxy's name p (from p:1 (HTTPS_PROXY))",
        "that variable",
    );
    fails(
        &name("a", false, None, &Err(NameFault::Silent), LIMIT),
        "did not answer for a within 5 s",
        "resolv.conf",
    );
    fails(&name("a", false, None, &Ok(Vec::new()), LIMIT), "no IP address", "DNS");
}

#[test]
fn each_failed_connection_has_its_advice() {
    for (fault, problem, advice) in [
        (ConnectFault::Refused, "192.0.2.7:7880 refuses the connection", "no server listens on port 7880"),
        (ConnectFault::Silent, "does not answer within 5 s", "open TCP port 7880 of the server"),
        (ConnectFault::NoRoute, "cannot be reached", "VPN"),
        (ConnectFault::Other("boom".into()), "fails: boom", "network"),
    ] {
        fails(&connection(&[(at("192.0.2.7:7880"), Err(fault.clone()))], None, LIMIT), problem, advice);
        let behind = connection(&[(at("192.0.2.7:3128"), Err(fault))], Some("p:3128 (ALL_PROXY)"), LIMIT);
        assert!(behind.problem.unwrap().starts_with("no connection to the proxy"));
    }
    fails(&connection(&[], None, LIMIT), "no address", "address");
}

#[test]
fn partly_unreachable_addresses_are_a_warning() {
    let mixed = [(at("192.0.2.7:443"), Ok(())), (at("[2001:db8::7]:443"), Err(ConnectFault::NoRoute))];
    let finding = connection(&mixed, None, LIMIT);
    warns(&finding, "[2001:db8::7]:443 cannot be reached", "AAAA");
    assert_eq!(finding.found.unwrap(), "192.0.2.7:443 accepts connections");
    let old = [(at("192.0.2.7:443"), Ok(())), (at("192.0.2.8:443"), Err(ConnectFault::Silent))];
    warns(&connection(&old, None, LIMIT), "192.0.2.8:443 does not answer", "from DNS");
    assert_eq!(connection(&old[..1], None, LIMIT), Finding::ok("192.0.2.7:443 accepts connections"));
}

#[test]
fn proxy_that_refuses_is_named() {
    let refused = |reason: &str| RouteFault::Proxy(ProxyError::new("p:3128 (HTTPS_PROXY)", reason));
    fails(
        &route(&refused("it refused: 407 x"), LIMIT),
        "the proxy p:3128 (HTTPS_PROXY): it refused: 407",
        "USER:PASSWORD",
    );
    fails(&route(&refused("it refused: 403 x"), LIMIT), "403", "NO_PROXY");
    fails(&route(&RouteFault::Trust("no roots".into()), LIMIT), "no roots", "ca-certificates");
    fails(&route(&RouteFault::Connect(ConnectFault::Silent), LIMIT), "does not answer", "log");
}

#[test]
fn each_certificate_problem_has_its_advice() {
    for (fault, problem, advice) in [
        (TlsFault::Expired(Some(0)), "expired 30 days ago", "renew"),
        (TlsFault::Expired(None), "expired", "renew"),
        (TlsFault::NotYet, "not valid yet", "clock"),
        (TlsFault::UnknownIssuer, "does not trust the issuer", "root_certificates"),
        (
            TlsFault::OtherName(vec!["a.example".into(), "b.example".into()]),
            "valid for a.example and b.example, not for host",
            "address",
        ),
        (TlsFault::OtherName(Vec::new()), "not valid for host", "address"),
        (TlsFault::Certificate("odd".into()), "odd", "Let's Encrypt"),
        (TlsFault::NotTls, "does not speak TLS", "ws://"),
        (TlsFault::Ended("eof".into()), "eof", "log"),
        (TlsFault::Route(RouteFault::Connect(ConnectFault::Refused)), "refuses", "log"),
    ] {
        fails(&tls("host", &Err(fault), 30 * DAY, LIMIT), problem, advice);
    }
}

#[test]
fn certificate_that_expires_soon_is_a_warning() {
    let until = |until| Ok(Encrypted { version: "TLS 1.3", until });
    let good = tls("host", &until(Some(90 * DAY)), 0, LIMIT);
    assert_eq!(good, Finding::ok("TLS 1.3, with a trusted certificate for host, valid for another 90 days"));
    warns(&tls("host", &until(Some(5 * DAY)), 0, LIMIT), "expires in 5 days", "renew");
    assert_eq!(tls("host", &until(None), 0, LIMIT).status, CheckStatus::Ok);
}

fn answer(status: u16) -> Result<HttpAnswer, HttpFault> {
    Ok(HttpAnswer { status, ..HttpAnswer::default() })
}

#[test]
fn livekit_server_is_distinguished_from_others() {
    assert_eq!(http(&answer(200), &answer(401), true, LIMIT), Finding::ok("a LiveKit server answers"));
    assert_eq!(
        http(&answer(404), &answer(401), true, LIMIT).status,
        CheckStatus::Ok,
        "only /rtc must be forwarded"
    );
    warns(&http(&answer(406), &answer(401), true, LIMIT), "not ready", "load");
    warns(&http(&answer(200), &answer(403), true, LIMIT), "HTTP 403", "forward /rtc");
    let with = |status, change: fn(&mut HttpAnswer)| {
        let mut answer = HttpAnswer { status, ..HttpAnswer::default() };
        change(&mut answer);
        Ok(answer)
    };
    let page = |status| with(status, |answer| answer.is_page = true);
    let moved = with(302, |answer| answer.elsewhere = Some("login.hotel.example".into()));
    let wants_tls =
        with(400, |answer| answer.body = "Client sent an HTTP request to an HTTPS server.".into());
    for (check, problem, advice) in [
        (page(200), "web page", "sign in"),
        (answer(200), "not as LiveKit does", "address"),
        (answer(404), "not a LiveKit server", "/rtc"),
        (moved, "redirect to login.hotel.example", "browser"),
        (answer(407), "407", "HTTPS_PROXY"),
        (answer(502), "cannot reach it (HTTP 502)", "start the LiveKit server"),
        (wants_tls, "requires encryption", "wss://"),
        (Err(HttpFault::NotHttp), "does not speak HTTP", "port"),
        (Err(HttpFault::Silent), "does not answer within 5 s", "hangs"),
        (Err(HttpFault::Ended("reset".into())), "without an answer (reset)", "log"),
    ] {
        fails(&http(&answer(200), &check, true, LIMIT), problem, advice);
    }
    fails(&http(&answer(200), &Err(HttpFault::NotHttp), false, LIMIT), "does not speak HTTP", "wss://");
}

#[test]
fn clock_difference_is_explained_by_its_effect() {
    assert_eq!(clock(None).status, CheckStatus::Skipped);
    for same in [0, 3, -3] {
        assert_eq!(clock(Some(same)).status, CheckStatus::Ok);
    }
    warns(&clock(Some(30)), "30 seconds ahead: LiveKit tolerates up to 60 s", "NTP");
    warns(&clock(Some(600)), "10 minutes ahead: tokens created here expire too early", "NTP");
    warns(&clock(Some(-7200)), "2 hours behind: tokens created here are not valid yet", "NTP");
}
