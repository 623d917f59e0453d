//! `toolbridge doctor` against a real server that is healthy or has one of the usual faults.

use anyhow::{Context, ensure};
use hmac::{Hmac, KeyInit, Mac};
use libtest_mimic::Trial;
use livekit_token::{AccessToken, VideoGrants};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{
    program::{Output, Planned, Program},
    relay::Relay,
    server::{KEY, SECRET, Server, shared},
    tls::TlsProxy,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![doctor:
        healthy_server_passes_every_step,
        token_is_sufficient_for_all_steps_but_the_echo,
        wrong_secret_is_named,
        token_without_room_access_is_named,
        token_without_permission_to_send_is_named,
        expired_token_is_named,
        server_over_tcp_only_is_a_warning,
        blocked_udp_is_a_warning_with_its_port,
        blocked_packets_are_a_failure,
        missing_room_without_auto_create_is_named,
        failed_relay_is_reported_with_its_reason,
        own_roots_are_trusted,
        ctrl_c_ends_the_check,
    ]
}

/// The steps of a check, and its end.
struct Check {
    output: Output,
    lines: Vec<Value>,
}

impl Check {
    async fn of(planned: Planned) -> anyhow::Result<Self> {
        let output = planned.run().await?;
        ensure!(output.stderr.is_empty() && !output.stdout.contains(SECRET), "{output:?}");
        ensure!(!output.stdout.contains("eyJ"), "a token is shown: {output:?}");
        let lines = output.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { output, lines })
    }

    fn step(&self, word: &str) -> anyhow::Result<&Value> {
        self.lines.iter().find(|line| line["step"] == word).with_context(|| format!("{:#?}", self.lines))
    }

    fn is(&self, state: &str, words: &[&str]) -> anyhow::Result<()> {
        for word in words {
            ensure!(self.step(word)?["state"] == state, "{word}: {:#?}", self.lines);
        }
        Ok(())
    }

    fn says(&self, word: &str, state: &str, wrong: &str, advice: &str) -> anyhow::Result<()> {
        self.is(state, &[word])?;
        let step = self.step(word)?;
        ensure!(step["wrong"].as_str().is_some_and(|it| it.contains(wrong)), "{step}");
        ensure!(step["advice"].as_str().is_some_and(|it| it.contains(advice)), "{step}");
        Ok(())
    }

    fn ends(&self, works: bool) -> anyhow::Result<()> {
        let verdict = self.lines.last().context("nothing")?;
        ensure!(
            verdict["works"] == works && self.output.code == Some(i32::from(!works)),
            "{:#?}",
            self.lines
        );
        Ok(())
    }
}

fn doctor(server: &Server, more: &[&str]) -> Planned {
    Program::toolbridge(server, &[&["doctor", "--json"], more].concat())
}

async fn healthy_server_passes_every_step() -> anyhow::Result<()> {
    let server = shared()?;
    let check = Check::of(doctor(&server, &[])).await?;
    check.is(
        "ok",
        &["name", "connection", "server", "clock", "token", "join", "permissions", "udp", "tcp", "echo"],
    )?;
    check.is("skipped", &["encryption", "relay"])?;
    let echo = check.step("echo")?["found"].as_str().context("nothing")?.to_owned();
    ensure!(echo.starts_with("20 of 20 reliable and "), "{echo}");
    check.ends(true)
}

async fn token_is_sufficient_for_all_steps_but_the_echo() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().assistant("doctor-token", "brain").sign()?;
    let check = Check::of(doctor(&server, &["--token", &token]).without_key()).await?;
    check.is("ok", &["token", "join", "permissions", "udp", "tcp"])?;
    check.is("skipped", &["echo"])?;
    ensure!(
        check.step("token")?["found"]
            == "for brain in the room doctor-token, role assistant, signed with the API key devkey"
    );
    ensure!(check.step("echo")?["found"].as_str().is_some_and(|it| it.contains("the API key and secret")));
    check.ends(true)?;
    // A key of another server has no effect.
    let elsewhere =
        doctor(&server, &["--token", &token, "--api-secret", "another secret of 32 characters and more"]);
    let check = Check::of(elsewhere).await?;
    check.says("token", "warning", "the token or the secret is wrong", "If the join below works")?;
    check.is("ok", &["join", "udp"])?;
    check.is("skipped", &["echo"])?;
    check.ends(true)?;
    // With key and secret in addition, a second participant can reply.
    let check = Check::of(doctor(&server, &["--token", &token])).await?;
    check.is("ok", &["token", "echo"])?;
    check.ends(true)
}

async fn wrong_secret_is_named() -> anyhow::Result<()> {
    let server = shared()?;
    let check =
        Check::of(doctor(&server, &["--api-secret", "another secret of at least 32 characters"])).await?;
    check.says("join", "failed", "with another secret", "LIVEKIT_API_SECRET")?;
    check.is("skipped", &["permissions", "udp", "tcp", "echo"])?;
    check.ends(false)?;
    let check = Check::of(doctor(&server, &["--api-key", "APIunknown"])).await?;
    check.says("join", "failed", "does not know the API key", "keys")?;
    check.ends(false)
}

async fn token_without_room_access_is_named() -> anyhow::Result<()> {
    let server = shared()?;
    let grants = VideoGrants { room: "doctor-no-join".into(), ..Default::default() };
    let token = AccessToken::with_api_key(KEY, SECRET).with_identity("phone").with_grants(grants).to_jwt()?;
    let check = Check::of(doctor(&server, &["--token", &token])).await?;
    check.says("token", "failed", "`roomJoin`", "grant `roomJoin`")?;
    check.is("skipped", &["join", "udp", "echo"])?;
    check.ends(false)
}

async fn token_without_permission_to_send_is_named() -> anyhow::Result<()> {
    let server = shared()?;
    let token = server.key().client("doctor-mute", "phone").listen_only().sign()?;
    let check = Check::of(doctor(&server, &["--token", &token])).await?;
    check.is("ok", &["join", "udp", "tcp"])?;
    check.says("permissions", "failed", "may not send data, as client", "canPublishData")?;
    check.is("skipped", &["echo"])?;
    check.ends(false)?;
    // For an observer this is as it should be.
    let token = server.key().observer("doctor-mute", "eyes").sign()?;
    let check = Check::of(doctor(&server, &["--token", &token])).await?;
    check.is("ok", &["permissions"])?;
    check.ends(true)
}

async fn expired_token_is_named() -> anyhow::Result<()> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    let server = shared()?;
    let claims = json!({
        "iss": KEY, "sub": "phone", "nbf": 1_600_000_000, "exp": 1_600_000_600,
        "video": {"room": "doctor-old", "roomJoin": true},
    });
    let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(json!({"alg": "HS256", "typ": "JWT"})), part(claims));
    let code =
        Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?.chain_update(&signed).finalize().into_bytes();
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(code));
    let check = Check::of(doctor(&server, &["--token", &token])).await?;
    check.says("token", "failed", "the token expired", "new token")?;
    check.ends(false)
}

async fn server_over_tcp_only_is_a_warning() -> anyhow::Result<()> {
    let server = Server::start("  force_tcp: true")?;
    let check = Check::of(doctor(&server, &["--limit", "3s"])).await?;
    check.says("udp", "warning", "offers no address for packets over UDP", "force_tcp")?;
    check.is("ok", &["join", "tcp", "echo"])?;
    check.ends(true)
}

async fn blocked_udp_is_a_warning_with_its_port() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    relay.media().lose_next(u32::MAX);
    let check = Check::of(doctor(&server, &["--url", &relay.url(), "--limit", "4s"])).await?;
    check.says(
        "udp",
        "warning",
        "no answer over UDP from 127.0.0.1:",
        "is blocked on the path to the server",
    )?;
    check.says("udp", "warning", "", "until then calls use TCP or a relay")?;
    check.is("ok", &["join", "tcp", "echo"])?;
    check.ends(true)
}

async fn blocked_packets_are_a_failure() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    relay.media().cut();
    let check = Check::of(doctor(&server, &["--url", &relay.url(), "--limit", "2s"])).await?;
    check.is("ok", &["join"])?;
    check.says("udp", "failed", "no answer over UDP", "open it")?;
    check.says("tcp", "failed", "no answer over TCP", "open it")?;
    check.is("skipped", &["permissions", "echo"])?;
    check.ends(false)
}

async fn missing_room_without_auto_create_is_named() -> anyhow::Result<()> {
    let server = Server::start("room: {auto_create: false}")?;
    let check = Check::of(doctor(&server, &[])).await?;
    check.says("join", "failed", "the room does not exist", "--room")?;
    check.ends(false)
}

async fn failed_relay_is_reported_with_its_reason() -> anyhow::Result<()> {
    let port = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
    let config = |more: &str| {
        format!(
            "turn: {{enabled: true, udp_port: {port}, relay_range_start: 30000, relay_range_end: 32000, \
             bind_addresses: [127.0.0.1]{more}}}"
        )
    };
    let server = Server::start(&config(", allow_restricted_peer_cidrs: [127.0.0.0/8]"))?;
    let check = Check::of(doctor(&server, &[])).await?;
    check.is("ok", &["udp", "tcp", "relay", "echo"])?;
    let check = Check::of(doctor(&server, &["--relay-only"])).await?;
    check.is("ok", &["join", "relay", "echo"])?;
    check.is("skipped", &["udp", "tcp"])?;
    check.ends(true)?;
    drop(server);

    // By default the relay reaches no private address, not even its own.
    let server = Server::start(&config(""))?;
    let check = Check::of(doctor(&server, &["--limit", "3s"])).await?;
    check.says("relay", "warning", "no relay can be used", "as a peer")?;
    check.is("ok", &["udp", "tcp", "echo"])?;
    check.ends(true)
}

async fn own_roots_are_trusted() -> anyhow::Result<()> {
    let server = shared()?;
    let proxy = TlsProxy::start(server.port()).await?;
    let file = crate::program::folder("doctor")?.join("root.pem");
    std::fs::write(&file, &proxy.root)?;
    let root = file.to_str().context("a path")?;
    let check = Check::of(doctor(&server, &["--url", &proxy.url(), "--root-certificate", root])).await?;
    check.is("ok", &["name", "encryption", "server", "join", "echo"])?;
    check.ends(true)
}

async fn ctrl_c_ends_the_check() -> anyhow::Result<()> {
    let server = shared()?;
    let relay = Relay::start(&server).await?;
    relay.media().cut();
    let mut program = doctor(&server, &["--url", &relay.url(), "--limit", "10m"]).start()?;
    program.json(json!({"step": "token", "state": "ok"})).await?;
    program.interrupt()?;
    let output = program.finish().await?;
    ensure!(output.code == Some(130), "{output:?}");
    Ok(())
}
