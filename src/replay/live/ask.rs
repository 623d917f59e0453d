//! The assistant's end of a recording: live clients are asked again what was asked, and their answers compared.

use std::{
    fmt,
    time::{Duration, Instant as StdInstant},
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    participant::{Assistant, Call},
    recording::Entry,
    replay::{
        LiveDifference, LiveError, LiveReport, NotAsked, Plan, Replay, Speed,
        outcome::{self, Compared},
        pace::{Pace, Schedule},
        plan::Allowed,
        tape::{Ending, Tape, Taped},
    },
    tool::{CallError, Offer},
    transport::Identity,
    value::Value,
};

/// How long to wait for clients that offer what will be asked: announcements take up to 3 s.
const OFFERS_WAIT: Duration = Duration::from_secs(5);

/// When all of it is offered, how long the recorded owners have to offer it too.
const OWNERS_WAIT: Duration = Duration::from_secs(1);

/// The calls of a recording that clients were asked, to be asked again of live ones.
///
/// Only tools that are [allowed](Live::allow) by name are asked, so by default none. They are asked under new ids, in
/// recorded order; where one had ended before the next was asked, so it is now. Each has its recorded parameters and
/// limit, and is stopped where it was stopped; what else stood in its `meta` does not go again. Whoever runs a tool
/// that needs a person's consent asks that person, as for any call.
///
/// ```no_run
/// use toolbridge::{Assistant, recording::Recording, replay::{Replay, Speed}};
///
/// # async fn again(url: &str, token: &str) -> anyhow::Result<()> {
/// let recorded = Recording::open("session.mcap")?.entries();
/// let live = Replay::live(recorded)?.allow("get_battery").speed(Speed::Max);
/// let assistant = Assistant::builder().join(url, token).await?;
/// let report = live.ask(&assistant).await;
/// assert!(report.is_same(), "{report}");
/// # Ok(())
/// # }
/// ```
pub struct Live {
    tape: Tape,
    allowed: Allowed,
    speed: Speed,
    to: Option<Identity>,
}

/// How far a live replay has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Calls that were asked.
    pub asked: usize,
    /// Calls that have an outcome.
    pub done: usize,
    /// Calls that are asked in all.
    pub total: usize,
    /// Differences so far.
    pub differences: usize,
    /// How long it goes on if answers take as long as recorded.
    pub left: Duration,
}

impl Replay {
    /// The calls of a recording that clients were asked, to be asked again of live ones. Nothing is sent by this.
    ///
    /// The recording may be the assistant's, a client's, or that of somebody who saw both.
    ///
    /// # Errors
    /// The entries are too large to be held, or there is no call that a client was asked.
    pub fn live(entries: impl IntoIterator<Item = Entry>) -> Result<Live, LiveError> {
        let tape = Tape::read(entries)?;
        Ok(Live { tape, allowed: Allowed::default(), speed: Speed::default(), to: None })
    }
}

impl Live {
    /// This tool may be asked. Default: none.
    #[must_use]
    pub fn allow(mut self, tool: impl Into<String>) -> Self {
        self.allowed.tools.insert(tool.into());
        self
    }

    /// Allowed tools that cannot be undone, as the recording or their live owner says, are asked too. Default: no.
    #[must_use]
    pub fn destructive(mut self) -> Self {
        self.allowed.destructive = true;
        self
    }

    /// How fast. Default: as recorded.
    #[must_use]
    pub fn speed(mut self, speed: Speed) -> Self {
        self.speed = speed;
        self
    }

    /// Asks this client. Default: the one that was asked then if it is there, else whoever offers the tool.
    #[must_use]
    pub fn to(mut self, client: impl Into<Identity>) -> Self {
        self.to = Some(client.into());
        self
    }

    /// What would be asked, and what not and why.
    pub fn plan(&self) -> Plan {
        self.allowed.plan(&self.tape)
    }

    /// Asks, and compares the outcomes. It waits up to 5 s until what it asks is offered.
    ///
    /// # Cancel safety
    /// Dropped, open calls are cancelled, and nothing more is asked.
    pub async fn ask(&self, assistant: &Assistant) -> LiveReport {
        self.ask_with(assistant, |_| {}).await
    }

    /// Asks, and tells how far it has come whenever a call was asked or has ended.
    ///
    /// # Cancel safety
    /// As [`ask`](Live::ask).
    pub async fn ask_with(&self, assistant: &Assistant, tell: impl FnMut(&Step)) -> LiveReport {
        let mut run = Run::new(self, assistant, tell);
        tokio::select! {
            // Calls that are open then settle as closed, which is no answer of theirs.
            biased;
            reason = assistant.closed() => run.report.broken_off = Some(reason),
            () = run.go() => {}
        }
        run.report.finish()
    }

    /// Whom to ask.
    fn owner(&self, call: &Taped, offers: &[Offer]) -> Option<Identity> {
        let then = || call.owner.clone().filter(|owner| offers_it(offers, &call.tool, Some(owner)));
        self.to.clone().or_else(then)
    }

    fn is_destructive_now(&self, call: &Taped, offers: &[Offer]) -> bool {
        let is_it = |offer: &&Offer| offer.tool.name().as_str() == call.tool;
        offers.iter().filter(is_it).any(|offer| offer.tool.tool_options().destructive)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("calls", &self.tape.calls.len())
            .field("allowed", &self.allowed)
            .field("speed", &self.speed)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

/// A replay under way.
struct Run<'a, F> {
    live: &'a Live,
    assistant: &'a Assistant,
    tell: F,
    pace: Pace,
    open: JoinSet<(usize, Result<Value, CallError>)>,
    /// How much time was left when a call was asked last, and when that was.
    left: (Duration, StdInstant),
    done: usize,
    total: usize,
    report: LiveReport,
}

impl<'a, F: FnMut(&Step)> Run<'a, F> {
    fn new(live: &'a Live, assistant: &'a Assistant, tell: F) -> Self {
        let pace = Pace::new(live.speed);
        let (open, report) = (JoinSet::new(), LiveReport::default());
        Self { live, assistant, tell, pace, open, left: (Duration::ZERO, now()), done: 0, total: 0, report }
    }

    async fn go(&mut self) {
        let live = self.live;
        let (mut asked, allowed) = (Vec::new(), &live.allowed);
        for (place, call) in live.tape.calls.iter().enumerate() {
            match allowed.refuses(&live.tape, call) {
                Some(why) => self.report.leave_out(&call.tool, why),
                None => asked.push((place, call)),
            }
        }
        self.total = asked.len();
        let schedule = Schedule::new(live.speed, asked.iter().map(|(_, call)| *call));
        self.left = (schedule.left(0), now());
        self.step();
        self.offered(&asked).await;
        for (at, (place, call)) in asked.iter().enumerate() {
            self.wait_for(call).await;
            self.left = (schedule.left(at), now());
            self.begin(*place, call);
            self.step();
        }
        while self.one_ends().await {}
    }

    /// Waits until everything that will be asked is offered, and a little longer for those who were asked then.
    async fn offered(&self, asked: &[(usize, &Taped)]) {
        let (mut events, mut until) = (self.assistant.events(), Instant::now() + OFFERS_WAIT);
        let mut found = false;
        loop {
            let offers = self.assistant.tools();
            let all = |of: &dyn Fn(&Taped) -> Option<Identity>| {
                asked.iter().all(|(_, call)| offers_it(&offers, &call.tool, of(call).as_ref()))
            };
            if all(&|call| self.live.to.clone().or_else(|| call.owner.clone())) {
                return;
            }
            if !found && all(&|_| self.live.to.clone()) {
                found = true;
                until = until.min(Instant::now() + OWNERS_WAIT);
            }
            if !matches!(timeout_at(until, events.recv()).await, Ok(Some(_))) {
                return;
            }
        }
    }

    /// Waits until it may be asked, by the recorded pause and by what it waited for.
    async fn wait_for(&mut self, call: &Taped) {
        while self.pace.must_wait(call) && self.one_ends().await {}
        loop {
            let due = self.pace.due(call, now());
            tokio::select! {
                biased;
                Some(ended) = self.open.join_next() => self.settle(ended),
                () = sleep_until(due.into()) => return,
            }
        }
    }

    /// Sends it.
    fn begin(&mut self, place: usize, call: &Taped) {
        let offers = self.assistant.tools();
        let Some(parameters) = &call.parameters else { return };
        if !self.live.allowed.destructive && self.live.is_destructive_now(call, &offers) {
            self.total -= 1;
            return self.report.leave_out(&call.tool, NotAsked::Destructive);
        }
        let mut builder = self.assistant.call(&call.tool, parameters).timeout(call.limit);
        if let Some(owner) = self.live.owner(call, &offers) {
            builder = builder.to(owner);
        }
        let stop = matches!(call.ending(), Ending::Stopped).then(|| call.took()).flatten();
        let asked = builder.start();
        self.report.asked += 1;
        self.pace.began(place, call, now());
        self.open.spawn(async move { (place, ended(asked, stop).await) });
    }

    /// Waits for one outcome; false if there is none to come.
    async fn one_ends(&mut self) -> bool {
        let Some(ended) = self.open.join_next().await else { return false };
        self.settle(ended);
        true
    }

    fn settle(&mut self, ended: Result<(usize, Result<Value, CallError>), tokio::task::JoinError>) {
        // A task that only waits neither panics nor is stopped, but by the end of its runtime.
        let Ok((place, result)) = ended else { return };
        let Some(call) = self.live.tape.calls.get(place) else { return };
        self.pace.ended(place);
        self.done += 1;
        let (compared, found) = outcome::fields(call, &result);
        match compared {
            Compared::Nothing => self.report.open += 1,
            Compared::Word => self.report.redacted += 1,
            Compared::Whole => {}
        }
        self.report.compared += usize::from(compared != Compared::Nothing);
        for (field, expected, got) in found {
            let (call, tool, entry) = (call.id.to_string(), call.tool.clone(), call.entry);
            self.report.differ(LiveDifference { entry, call, tool, field, expected, got });
        }
        self.step();
    }

    fn step(&mut self) {
        let differences = self.report.differences.len() + self.report.more_differences;
        let (asked, done, total, (left, since)) = (self.report.asked, self.done, self.total, self.left);
        let left = left.saturating_sub(now().saturating_duration_since(since));
        (self.tell)(&Step { asked, done, total, differences, left });
    }
}

/// The call's outcome; where it was stopped, it is stopped.
async fn ended(mut call: Call, stop: Option<Duration>) -> Result<Value, CallError> {
    if let Some(after) = stop {
        tokio::select! {
            biased;
            result = &mut call => return result,
            () = sleep(after) => call.cancel(),
        }
    }
    call.await
}

fn offers_it(offers: &[Offer], tool: &str, owner: Option<&Identity>) -> bool {
    offers
        .iter()
        .any(|offer| offer.tool.name().as_str() == tool && owner.is_none_or(|owner| *owner == offer.owner))
}

fn now() -> StdInstant {
    Instant::now().into_std()
}
