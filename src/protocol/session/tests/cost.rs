//! Tests that the cost of a call does not depend on the number of earlier calls. The cost is counted in
//! comparisons of ids.

use std::time::{Duration, Instant};

use crate::{
    protocol::session::{CallKey, Config, Output, Request, Session},
    tool::{CallError, Job, Tool},
    transport::{Lane, Packet, Participant, Peer, Role, TransportEvent, types::comparisons},
    value::Value,
};

const MS: Duration = Duration::from_millis(1);

/// An assistant and its client. Every packet between them arrives at once.
struct Pair {
    now: Instant,
    assistant: Session,
    client: Session,
    /// Whether jobs end at once.
    answers: bool,
    /// Whether packets to the client are lost.
    cut: bool,
    /// Whether packets to the client are reported as not sent.
    unsent: bool,
    jobs: Vec<Job>,
    results: Vec<Result<Value, CallError>>,
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn new(config: Config) -> Self {
        let (a, phone) =
            (Participant::new("a", "PA_1").agent(true), Participant::new("phone", "PA_2").role(Role::Client));
        let now = Instant::now();
        let mut pair = Self {
            now,
            assistant: Session::assistant(now, a.clone(), config.clone().room("room"), [1; 32]),
            client: Session::client(now, phone.clone(), config.room("room"), [2; 32]),
            answers: true,
            cut: false,
            unsent: false,
            jobs: Vec::new(),
            results: Vec::new(),
        };
        let tool = Tool::new("t".parse().unwrap(), "for a test");
        pair.client.offer(now, vec![tool]).unwrap();
        pair.assistant.handle_event(now, TransportEvent::Joined(phone));
        pair.client.handle_event(now, TransportEvent::Joined(a));
        pair.exchange();
        assert_eq!(pair.assistant.tools().len(), 1);
        pair
    }

    /// Exchanges packets until there are none, then advances the time by a millisecond.
    fn exchange(&mut self) {
        loop {
            let from_assistant = self.assistant.poll_output();
            let from_client = self.client.poll_output();
            if from_assistant.is_none() && from_client.is_none() {
                break;
            }
            match from_assistant {
                Some(Output::Transmit(packet)) if self.unsent => {
                    self.assistant.handle_send_failed(
                        self.now,
                        packet.id,
                        crate::protocol::session::SendFailure::Interrupted,
                    );
                }
                Some(Output::Transmit(packet)) if !self.cut => {
                    carry(self.now, &packet, "a", &mut self.client)
                }
                Some(Output::Settled { result, .. }) => self.results.push(result),
                _ => {}
            }
            match from_client {
                Some(Output::Transmit(packet)) => carry(self.now, &packet, "phone", &mut self.assistant),
                Some(Output::Execute(job)) if self.answers => {
                    self.client.settle(self.now, job.key, Ok(Value::empty()));
                }
                Some(Output::Execute(job)) => self.jobs.push(job),
                _ => {}
            }
        }
        self.now += MS;
        self.assistant.handle_timeout(self.now);
        self.client.handle_timeout(self.now);
    }

    /// Returns the number of frames that either end has a record of.
    fn records(&self) -> usize {
        self.assistant.core.delivery.records() + self.client.core.delivery.records()
    }

    fn call(&mut self) -> CallKey {
        self.assistant.call(self.now, Request::new("t", Value::empty())).unwrap()
    }

    fn calls(&mut self, count: u32) {
        for _ in 0..count {
            self.call();
            self.exchange();
        }
    }

    /// Returns the comparisons of this many calls, one after the other.
    fn cost_of_calls(&mut self, count: u32) -> u64 {
        comparisons::of(|| self.calls(count))
    }
}

fn carry(now: Instant, packet: &Packet, from: &str, to: &mut Session) {
    let from = Peer::new(from, if from == "a" { "PA_1" } else { "PA_2" });
    match packet.lane {
        Lane::Reliable => {
            to.handle_event(now, TransportEvent::packet(from.clone(), Lane::Reliable, packet.payload.clone()))
        }
        Lane::Lossy => {
            to.handle_event(now, TransportEvent::packet(from.clone(), Lane::Lossy, packet.payload.clone()))
        }
    }
}

fn unlimited() -> Config {
    let mut config = Config::default();
    config.caps.requests.calls_per_second = u32::MAX;
    config
}

#[test]
fn call_after_ten_thousand_calls_costs_little_more_than_after_a_hundred() {
    for lossy in [false, true] {
        let mut pair = Pair::new(unlimited().lossy(lossy));
        pair.calls(100);
        let early = pair.cost_of_calls(100);
        pair.calls(9_800);
        assert_eq!(pair.client.exchange.incoming.longest_cache(), 4_096, "the table is full");
        let late = pair.cost_of_calls(100);
        // Each lookup takes twelve comparisons among 4,096 entries and eight among 200.
        assert!(late <= 2 * early, "{early} comparisons of 100 calls became {late}");
        assert!(late <= 100 * 600, "{late} comparisons of 100 calls");
    }
}

#[test]
fn refused_request_costs_no_more_when_the_table_is_full() {
    let mut config = unlimited();
    config.caps.requests.calls_per_second = 1; // further calls in a second are refused, and each refusal is remembered
    let mut pair = Pair::new(config);
    pair.calls(100);
    let early = pair.cost_of_calls(100);
    pair.calls(6_000);
    let late = pair.cost_of_calls(100);
    assert!(late <= 2 * early, "{early} comparisons of 100 refusals became {late}");
}

#[test]
fn acknowledgement_costs_no_more_with_many_calls_open_and_many_stopped() {
    let mut config = unlimited();
    config.caps.calls.open_per_peer = 100_000;
    config.caps.calls.open_calls = 100_000;
    let mut pair = Pair::new(config);
    pair.answers = false;
    let early = pair.cost_of_calls(100);
    pair.calls(1_800);
    pair.cut = true;
    for _ in 0..1_000 {
        let key = pair.call();
        pair.assistant.cancel(pair.now, key);
        pair.exchange();
    }
    pair.cut = false;
    let late = pair.cost_of_calls(100);
    assert!(late <= 3 * early, "{early} comparisons of 100 calls became {late}");
}

#[test]
fn unsent_packets_cost_no_more_with_many_calls_open() {
    let mut config = unlimited();
    config.caps.calls.open_per_peer = 100_000;
    config.caps.calls.open_calls = 100_000;
    let mut pair = Pair::new(config);
    pair.answers = false;
    pair.unsent = true;
    let early = pair.cost_of_calls(100);
    pair.calls(1_800);
    let late = pair.cost_of_calls(100);
    assert!(late <= 3 * early, "{early} comparisons of 100 packets became {late}");
}

#[test]
fn records_of_frames_end_with_their_calls() {
    for lossy in [false, true] {
        let mut pair = Pair::new(unlimited().lossy(lossy));
        pair.calls(10);
        (0..5).for_each(|_| pair.exchange()); // the acknowledgement of the last result waits for a request
        assert_eq!(pair.records(), 0, "each frame was acknowledged");
        pair.answers = false;
        pair.calls(10);
        pair.cut = true;
        for _ in 0..10 {
            let key = pair.call(); // neither the request nor its stop arrives
            pair.assistant.cancel(pair.now, key);
            pair.exchange();
        }
        assert!(pair.records() >= 10);
        for _ in 0..10 {
            pair.now += Duration::from_secs(100);
            pair.exchange();
        }
        // The client keeps the unacknowledged results while its caller is in the room.
        assert_eq!((pair.assistant.open_calls(), pair.assistant.core.delivery.records()), (0, 0));
    }
}
