//! A server on loopback, on its own ports, ended when dropped or when the tests die: a real LiveKit server or the
//! embedded development server, as the test's thread selects.

use std::{
    cell::Cell,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use livekit_token::{AccessToken, VideoGrants};
use rustix::process::{Pid, Signal, kill_process};
use toolbridge::livekit::AccessKey;

const VERSION: &str = "v1.13.5";
pub(crate) const KEY: &str = "devkey";
pub(crate) const SECRET: &str = "secretsecretsecretsecretsecretsecret";
/// The time limit of the server's start.
const READY: Duration = Duration::from_secs(20);
/// A free port can be taken before it is used.
const TRIES: usize = 4;

/// Returns the server's program, if any: `LIVEKIT_SERVER_BIN`, or where `scripts/parts livekit-server` puts it.
pub(crate) fn binary() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIVEKIT_SERVER_BIN") {
        return Some(path.into());
    }
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join(format!("toolbridge/livekit-server-{VERSION}/server"))).filter(|path| path.is_file())
}

/// Returns the part that this thread's server needs and that is missing, if any.
pub(crate) fn missing() -> Option<&'static str> {
    (kind() == Kind::LiveKit && binary().is_none()).then_some("livekit-server")
}

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// LiveKit's.
    LiveKit,
    /// `toolbridge dev`.
    Dev,
}

thread_local! {
    static KIND: Cell<Kind> = const { Cell::new(Kind::LiveKit) };
}

/// Returns the kind of server that this thread uses.
pub(crate) fn kind() -> Kind {
    KIND.get()
}

/// Sets the kind of server that this thread uses.
pub(crate) fn set_kind(kind: Kind) {
    KIND.set(kind);
}

static SHARED: [Mutex<Option<Arc<Server>>>; 2] = [Mutex::new(None), Mutex::new(None)];

/// One server of each kind for all tests that do not disturb it; each uses its own room.
pub(crate) fn shared() -> anyhow::Result<Arc<Server>> {
    let mut shared = SHARED[kind() as usize].lock().unwrap();
    if shared.is_none() {
        *shared = Some(Arc::new(Server::start("")?));
    }
    Ok(shared.clone().unwrap())
}

/// Called when all tests have ended.
pub(crate) fn stop_shared() {
    for shared in &SHARED {
        shared.lock().unwrap().take();
    }
}

/// A running server.
pub(crate) struct Server {
    /// A shell around the server: it kills the server as soon as its standard input closes, also when the tests die.
    guard: Child,
    pid: Pid,
    kind: Kind,
    ports: Ports,
    rtc: String,
    secret: &'static str,
    log: PathBuf,
}

impl Server {
    /// Starts a server and waits until it answers. `rtc` are further lines for that section of its configuration.
    pub(crate) fn start(rtc: &str) -> anyhow::Result<Self> {
        let mut last = None;
        for _ in 0..TRIES {
            let mut server = Self::spawn(kind(), rtc, Ports::free()?, SECRET)?;
            match server.wait_until_ready() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error.context(fs::read_to_string(&server.log).unwrap_or_default())),
            }
        }
        Err(last.unwrap())
    }

    /// Kills the server and starts it again on the same ports, without any state.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.restart_with(self.secret)
    }

    /// The same with another secret: it accepts no earlier token.
    pub(crate) fn restart_with(&mut self, secret: &'static str) -> anyhow::Result<()> {
        let (kind, ports, rtc) = (self.kind, self.ports, self.rtc.clone());
        self.end();
        *self = Self::spawn(kind, &rtc, ports, secret)?;
        self.wait_until_ready()
    }

    fn spawn(kind: Kind, rtc: &str, ports: Ports, secret: &'static str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("toolbridge-server-{}-{}.log", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let log = env::temp_dir().join(name);
        let mut command = Command::new("sh");
        command.args([
            "-c",
            r#"log="$1"; shift; "$0" "$@" </dev/null >"$log" 2>&1 & echo $!; read -r _; kill -KILL $! 2>/dev/null; wait"#,
        ]);
        match kind {
            Kind::LiveKit => {
                let binary =
                    binary().context("needs livekit-server: build it with `scripts/parts livekit-server`")?;
                command.arg(binary).arg(&log).arg("--config-body").arg(config(rtc, ports, secret));
            }
            Kind::Dev => {
                ensure!(rtc.is_empty(), "the development server has nothing to configure");
                let port = ports.signaling.to_string();
                let key = format!("{KEY}:{secret}");
                command
                    .arg(env!("CARGO_BIN_EXE_toolbridge"))
                    .arg(&log)
                    .args(["dev", "--port", &port, "--key", &key]);
            }
        }
        let mut guard = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(guard.stdout.take().context("no output")?).read_line(&mut line)?;
        let pid = Pid::from_raw(line.trim().parse()?).context("no process id")?;
        Ok(Self { guard, pid, kind, ports, rtc: rtc.to_owned(), secret, log })
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + READY;
        loop {
            match self.request("GET", "/", "", "") {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return Ok(()),
                other if Instant::now() > until => bail!("the server did not answer: {other:?}"),
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The address to join.
    pub(crate) fn url(&self) -> String {
        format!("ws://127.0.0.1:{}", self.ports.signaling)
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports.signaling
    }

    /// Its port for packets over UDP.
    pub(crate) fn udp_port(&self) -> u16 {
        self.ports.udp
    }

    /// Its port for packets over TCP.
    pub(crate) fn tcp_port(&self) -> u16 {
        self.ports.tcp
    }

    /// Its key, to make tokens with.
    /// Signs a token with any attributes, as a token server may.
    pub(crate) fn token(
        &self,
        room: &str,
        identity: &str,
        attributes: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let grants = VideoGrants { room_join: true, room: room.into(), ..Default::default() };
        let token = AccessToken::with_api_key(KEY, self.secret).with_identity(identity).with_grants(grants);
        Ok(token.with_attributes(attributes.iter().copied()).to_jwt()?)
    }

    pub(crate) fn key(&self) -> AccessKey {
        AccessKey::new(KEY, self.secret)
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Returns what it has printed.
    pub(crate) fn log(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        kill_process(self.pid, Signal::TERM).unwrap();
    }

    /// Suspends it, with all sockets open.
    pub(crate) fn pause(&self) {
        kill_process(self.pid, Signal::STOP).unwrap();
    }

    /// Resumes it.
    pub(crate) fn resume(&self) {
        kill_process(self.pid, Signal::CONT).unwrap();
    }

    /// Calls the server's room service for this room.
    pub(crate) async fn room_service(
        &self,
        method: &str,
        room: &str,
        body: serde_json::Value,
    ) -> anyhow::Result<String> {
        let answer = self.room_service_answer(method, room, body).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{method}: {answer}");
        Ok(answer)
    }

    /// The same, whatever the server answers.
    pub(crate) async fn room_service_answer(
        &self,
        method: &str,
        room: &str,
        body: serde_json::Value,
    ) -> anyhow::Result<String> {
        let grants =
            VideoGrants { room_admin: true, room_create: true, room: room.into(), ..Default::default() };
        let token = AccessToken::with_api_key(KEY, self.secret).with_grants(grants).to_jwt()?;
        let path = format!("/twirp/livekit.RoomService/{method}");
        self.request("POST", &path, &token, &body.to_string())
    }

    fn request(&self, method: &str, path: &str, token: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports.signaling))?;
        stream.set_read_timeout(Some(READY))?;
        let bearer =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {bearer}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Server {
    /// Ends it and waits until it has ended.
    fn end(&mut self) {
        let Some(stdin) = self.guard.stdin.take() else { return };
        self.kill();
        drop(stdin);
        let _ = self.guard.wait();
        let _ = fs::remove_file(&self.log);
    }
}

/// LiveKit's configuration.
fn config(rtc: &str, Ports { signaling: port, tcp, udp }: Ports, secret: &str) -> String {
    format!(
        "port: {port}\nbind_addresses: [127.0.0.1]\nkeys: {{{KEY}: {secret}}}\nlogging: {{level: info}}\nrtc:\n  \
         udp_port: {udp}\n  tcp_port: {tcp}\n  use_external_ip: false\n  node_ip: 127.0.0.1\n  \
         enable_loopback_candidate: true\n  interfaces: {{includes: [lo]}}\n{rtc}\n"
    )
}

/// The ports of a server.
#[derive(Clone, Copy)]
struct Ports {
    signaling: u16,
    tcp: u16,
    udp: u16,
}

impl Ports {
    /// Returns three free ports in a row.
    fn free() -> anyhow::Result<Self> {
        loop {
            let first = TcpListener::bind("127.0.0.1:0")?;
            let signaling = first.local_addr()?.port();
            let Some(udp) = signaling.checked_add(2) else { continue };
            let tcp = signaling + 1;
            if TcpListener::bind(("127.0.0.1", tcp)).is_ok() && UdpSocket::bind(("127.0.0.1", udp)).is_ok() {
                return Ok(Self { signaling, tcp, udp });
            }
        }
    }
}
