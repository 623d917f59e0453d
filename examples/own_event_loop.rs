//! An application's own event loop around the sans-IO session, without an async runtime. The link is a pair of channels
//! to an assistant in another thread, which runs the same loop.

#![allow(clippy::disallowed_methods, clippy::expect_used, reason = "a driver owns the clock")]

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::Instant,
};

use toolbridge::{
    Config, Identity, Role, Tool, Value,
    session::{Output, Request, Session},
    transport::{Lane, Participant, Peer, TransportEvent},
};

fn client(link: &Link) -> anyhow::Result<()> {
    let mut session =
        Session::client(Instant::now(), Participant::new("phone", "PA_1"), Config::default(), seed());
    session.offer(Instant::now(), vec![Tool::new("get_battery".parse()?, "Battery level, 0 to 1")])?;
    loop {
        while let Some(output) = session.poll_output() {
            match output {
                // a driver must handle every output
                Output::Transmit(packet) => link.publish(&packet.to, &packet.payload),
                Output::Execute(job) => session.settle(Instant::now(), job.key, Ok(Value::encode(&0.8)?)),
                Output::Ask(question) => session.consent(Instant::now(), question.key, false), // no person to ask
                Output::Select(selection) => {
                    session.select(Instant::now(), selection.key, selection.evaluate())
                }
                Output::Abort { .. } | Output::Settled { .. } => {} // jobs settle at once, and this client makes no calls
                Output::Event(event) => eprintln!("{event:?}"),
            }
        }
        match link.wait_until(session.poll_timeout()) {
            Ok(Some(event)) => session.handle_event(Instant::now(), event),
            Ok(None) => session.handle_timeout(Instant::now()),
            Err(_) => return Ok(()),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let (to_phone, from_assistant) = mpsc::channel();
    let (to_assistant, from_phone) = mpsc::channel();
    let phone = Link { me: Peer::new("phone", "PA_1"), out: to_assistant, events: from_assistant };
    let assistant = Link { me: Peer::new("assistant", "PA_2"), out: to_phone, events: from_phone };
    assistant.out.send(TransportEvent::Joined(Participant::new("assistant", "PA_2").agent(true)))?;
    phone.out.send(TransportEvent::Joined(Participant::new("phone", "PA_1").role(Role::Client)))?;
    let running = thread::spawn(move || client(&phone).map_err(|error| error.to_string()));
    let level = ask(&assistant)?;
    println!("battery: {level}");
    drop(assistant); // this ends the phone's link, and with it its loop
    running.join().map_err(|_| anyhow::anyhow!("the phone panicked"))?.map_err(anyhow::Error::msg)
}

/// Runs the assistant: makes one call and returns its outcome.
fn ask(link: &Link) -> anyhow::Result<f64> {
    let me = Participant::new("assistant", "PA_2").agent(true);
    let mut session = Session::assistant(Instant::now(), me, Config::default(), seed());
    session.call(Instant::now(), Request::new("get_battery", Value::empty()))?;
    loop {
        while let Some(output) = session.poll_output() {
            match output {
                Output::Transmit(packet) => link.publish(&packet.to, &packet.payload),
                Output::Settled { result, .. } => return Ok(result?.decode()?),
                Output::Execute(_) | Output::Ask(_) | Output::Select(_) | Output::Abort { .. } => {} // this assistant offers nothing
                Output::Event(event) => eprintln!("{event:?}"),
            }
        }
        match link.wait_until(session.poll_timeout()) {
            Ok(Some(event)) => session.handle_event(Instant::now(), event),
            Ok(None) => session.handle_timeout(Instant::now()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A link to one other participant.
struct Link {
    me: Peer,
    out: Sender<TransportEvent>,
    events: Receiver<TransportEvent>,
}

impl Link {
    fn publish(&self, _to: &[Identity], payload: &[u8]) {
        // If the other end is gone, the packet is lost and `wait_until` reports it.
        let _ = self.out.send(TransportEvent::packet(self.me.clone(), Lane::Reliable, payload.to_vec()));
    }

    /// Waits for an event. Returns `None` at the deadline.
    fn wait_until(&self, deadline: Option<Instant>) -> Result<Option<TransportEvent>, RecvTimeoutError> {
        let Some(deadline) = deadline else { return Ok(Some(self.events.recv()?)) };
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns 32 random bytes. The session derives its ids and secrets from them.
fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).expect("the operating system provides random bytes");
    seed
}
