//! Somebody's own event loop: the sans-IO session, no async runtime. Here the link is a pair of channels to an
//! assistant in another thread, which runs the same way.

#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "a driver owns the clock")]

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Instant,
};

use toolbridge::{Config, Identity, Output, Participant, Peer, Request, Role, Session, Tool, Value};

/// An event of a link.
enum Heard {
    Joined(Participant),
    Packet(Peer, Vec<u8>),
    Nothing,
}

fn client(link: &Link) -> anyhow::Result<()> {
    let mut session =
        Session::client(Instant::now(), Participant::new("phone", "PA_1"), Config::default(), seed());
    session.offer(Instant::now(), vec![Tool::new("get_battery".parse()?, "Battery level, 0 to 1")])?;
    loop {
        while let Some(output) = session.poll_output() {
            match output {
                // exhaustive on purpose: a driver must do all of it
                Output::Transmit(packet) => link.publish(&packet.to, &packet.payload),
                Output::Execute(job) => session.settle(Instant::now(), job.key, Ok(Value::encode(&0.8)?)),
                Output::Ask(question) => session.consent(Instant::now(), question.key, false), // nobody can be asked
                Output::Abort(_) | Output::Settled { .. } => {} // our jobs are done at once; we call nobody
                Output::Event(event) => eprintln!("{event:?}"),
            }
        }
        match link.wait_until(session.poll_timeout()) {
            Some(Heard::Joined(who)) => session.handle_joined(Instant::now(), who),
            Some(Heard::Packet(from, bytes)) => session.handle_packet(Instant::now(), &from, bytes),
            Some(Heard::Nothing) => session.handle_timeout(Instant::now()),
            None => return Ok(()),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let (to_phone, from_assistant) = mpsc::channel();
    let (to_assistant, from_phone) = mpsc::channel();
    let phone = Link { me: Peer::new("phone", "PA_1"), out: to_assistant, heard: from_assistant };
    let assistant = Link { me: Peer::new("assistant", "PA_2"), out: to_phone, heard: from_phone };
    assistant.out.send(Heard::Joined(Participant::new("assistant", "PA_2").agent(true)))?;
    phone.out.send(Heard::Joined(Participant::new("phone", "PA_1").role(Role::Client)))?;
    let running = thread::spawn(move || client(&phone).map_err(|error| error.to_string()));
    let level = ask(&assistant)?;
    println!("battery: {level}");
    drop(assistant); // the phone's link ends, and so does its loop
    running.join().map_err(|_| anyhow::anyhow!("the phone panicked"))?.map_err(anyhow::Error::msg)
}

/// The other end, as short: one call, and its outcome.
fn ask(link: &Link) -> anyhow::Result<f64> {
    let me = Participant::new("assistant", "PA_2").agent(true);
    let mut session = Session::assistant(Instant::now(), me, Config::default(), seed());
    session.call(Instant::now(), Request::new("get_battery", Value::empty()))?;
    loop {
        while let Some(output) = session.poll_output() {
            match output {
                Output::Transmit(packet) => link.publish(&packet.to, &packet.payload),
                Output::Settled { result, .. } => return Ok(result?.decode()?),
                Output::Execute(_) | Output::Ask(_) | Output::Abort(_) => {} // we offer nothing
                Output::Event(event) => eprintln!("{event:?}"),
            }
        }
        match link.wait_until(session.poll_timeout()) {
            Some(Heard::Joined(who)) => session.handle_joined(Instant::now(), who),
            Some(Heard::Packet(from, bytes)) => session.handle_packet(Instant::now(), &from, bytes),
            Some(Heard::Nothing) => session.handle_timeout(Instant::now()),
            None => anyhow::bail!("the link ended"),
        }
    }
}

/// A link to the one other participant.
struct Link {
    me: Peer,
    out: Sender<Heard>,
    heard: Receiver<Heard>,
}

impl Link {
    fn publish(&self, _to: &[Identity], payload: &[u8]) {
        // A link whose other end is gone carries nothing; `wait_until` reports it.
        let _ = self.out.send(Heard::Packet(self.me.clone(), payload.to_vec()));
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Option<Heard> {
        let Some(deadline) = deadline else { return self.heard.recv().ok() };
        match self.heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(heard) => Some(heard),
            Err(RecvTimeoutError::Timeout) => Some(Heard::Nothing),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

/// 32 random bytes: ids and secrets come from them.
fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).expect("the operating system gives random bytes");
    seed
}
