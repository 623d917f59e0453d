//! A real relay (coturn) on loopback, on its own ports, ended when dropped or when the tests die.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::{TcpListener, TcpStream, UdpSocket},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::{Pid, Signal, kill_process};

/// Its user.
const USER: &str = "somebody";
pub(crate) const PASSWORD: &str = "between-us";
/// The time limit of its start.
const READY: Duration = Duration::from_secs(20);

/// Returns the program, if it is installed.
pub(crate) fn binary() -> Option<PathBuf> {
    let paths = env::var_os("PATH")?;
    env::split_paths(&paths).map(|path| path.join("turnserver")).find(|path| path.is_file())
}

/// A running relay.
pub(crate) struct TurnServer {
    /// A shell around the relay, which kills it as soon as its standard input closes.
    guard: Child,
    pid: Pid,
    port: u16,
    tls_port: u16,
    options: Vec<String>,
    home: PathBuf,
    /// The root of its certificate, in PEM.
    pub(crate) root: String,
}

impl TurnServer {
    /// Starts a relay with these options in addition to the usual ones.
    pub(crate) fn start(options: &[&str]) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let home = env::temp_dir().join(format!("toolbridge-coturn-{}-{count}", std::process::id()));
        fs::create_dir_all(&home)?;
        let root = certificate(&home, "localhost")?;
        let (port, tls_port) = (free_port()?, free_port()?);
        let options: Vec<_> = options.iter().map(ToString::to_string).collect();
        let (guard, pid) = spawn(&home, port, tls_port, &options)?;
        let server = Self { guard, pid, port, tls_port, options, home, root };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Returns lines for the `rtc` section of a LiveKit server's configuration that announce the relay over these
    /// protocols: `udp`, `tcp`, `tls`.
    pub(crate) fn config(&self, protocols: &[&str], password: &str) -> String {
        let servers = protocols.iter().map(|protocol| {
            let (host, port) = match *protocol {
                "tls" => ("localhost", self.tls_port),
                _ => ("127.0.0.1", self.port),
            };
            format!(
                "\n    - {{host: {host}, port: {port}, protocol: {protocol}, username: {USER}, credential: {password}}}"
            )
        });
        format!("  turn_servers:{}", servers.collect::<String>())
    }

    /// Its port for UDP and TCP.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        let Some(stdin) = self.guard.stdin.take() else { return };
        let _ = kill_process(self.pid, Signal::KILL);
        drop(stdin);
        let _ = self.guard.wait();
    }

    /// Starts it again on the same ports, without any state.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        (self.guard, self.pid) = spawn(&self.home, self.port, self.tls_port, &self.options)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let until = Instant::now() + READY;
        let is_ready =
            || [self.port, self.tls_port].iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok());
        while !is_ready() {
            if Instant::now() > until {
                bail!(
                    "coturn did not start: {}",
                    fs::read_to_string(self.home.join("log")).unwrap_or_default()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for TurnServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// Returns a free port that the system does not assign while the relay is restarted.
fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..10_000 {
        let number = std::process::id().wrapping_mul(16) + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + u16::try_from(number % 10_000)?;
        let is_free =
            TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if is_free {
            return Ok(port);
        }
    }
    bail!("no port is free")
}

fn spawn(home: &PathBuf, port: u16, tls: u16, options: &[String]) -> anyhow::Result<(Child, Pid)> {
    let binary = binary().context("needs coturn: `scripts/parts turn-server` gets it")?;
    let mut guard = Command::new("sh")
        .args([
            "-c",
            r#"cd "$0"; "$@" </dev/null >log 2>&1 & echo $!; read -r _; kill -KILL $! 2>/dev/null; wait"#,
        ])
        .arg(home)
        .arg(binary)
        .args(["-n", "--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1", "--allow-loopback-peers"])
        .args(["--lt-cred-mech", "--realm=toolbridge", "--no-cli", "--no-dtls", "--simple-log"])
        .args(["--log-file=stdout", "--pidfile=pid", "--userdb=users", "--cert=cert.pem", "--pkey=key.pem"])
        .args([format!("--user={USER}:{PASSWORD}")])
        .args([format!("--listening-port={port}"), format!("--tls-listening-port={tls}")])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(guard.stdout.take().context("no output")?).read_line(&mut line)?;
    let pid = Pid::from_raw(line.trim().parse()?).context("no process id")?;
    Ok((guard, pid))
}

/// Makes a certificate for the relay and its root.
pub(crate) fn certificate(home: &std::path::Path, name: &str) -> anyhow::Result<String> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new([name.to_owned()])?.signed_by(&key, &root)?;
    fs::write(home.join("cert.pem"), leaf.pem())?;
    fs::write(home.join("key.pem"), key.serialize_pem())?;
    Ok(root.pem())
}
