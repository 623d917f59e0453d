//! Runs the peer connection: str0m's state machine, its sockets, and its two data channels.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use str0m::{
    Event, IceConnectionState, Input, Output, Rtc, RtcError,
    change::{SdpAnswer, SdpPendingOffer},
    channel::{ChannelConfig, ChannelId, Reliability},
    net::{Protocol, Receive, Transmit},
    stats::PeerStats,
};

use super::{
    crypto,
    ice_tcp::TcpEvent,
    sockets::{MAX_DATAGRAM, Readable, Sockets},
};
use crate::{
    livekit::room::liveness::CHECK,
    transport::{Lane, alarm::Alarm},
};

mod candidates;
mod path;
mod relays;

use candidates::{Candidates, tcp_host};
use path::Path;

/// The most bytes in flight on both channels. A larger value used five times the processor time in
/// measurements without a gain. 24 MB through livekit-server on loopback: 10.5 to 11.6 MB/s and 0.34 s of
/// processor time with 128 KiB, 6.8 to 7.8 MB/s and 1.6 to 2.1 s with 2 MiB. The budget counts unacknowledged
/// bytes of both channels.
const BUDGET: usize = 144 * 1024;
/// The part of it that the reliable channel leaves free, so that a full one cannot block a lossy packet.
const LOSSY_RESERVE: usize = 16 * 1024;
/// How long a lossy packet may be retransmitted, in milliseconds. This covers reordering and single losses,
/// and is short enough not to delay later packets. LiveKit's clients allow no retransmission instead. Then
/// mere reordering loses packets, and after an outage of 3.5 s the first answer came 3.5 s after its end,
/// because the association waited for its timer; with this lifetime it came after 45 ms.
const LOSSY_LIFETIME: u16 = 100;
/// How many datagrams are read before other work gets a turn.
const READ_BATCH: usize = 64;
/// How many datagrams the stack is given before it processes them. It keeps at most 30.
const MAX_BATCH: usize = 16;
/// How many checks of one pair may fail. The stack must not give up earlier than this crate, nor continue much longer.
const MAX_CHECKS: usize = 30;
/// How often str0m is asked which path it has selected. Data that is sent shows it at once, so this matters only to a connection
/// that is idle after an ICE restart, and each time wakes the device.
const CHOICE: Duration = Duration::from_secs(10);

/// A peer connection to the server.
pub(crate) struct PeerConnection {
    rtc: Rtc,
    sockets: Sockets,
    udp: bool,
    tcp: bool,
    relay_only: bool,
    /// No relay is used unless the server demands one.
    direct_only: bool,
    /// ICE must be restarted.
    stranded: bool,
    reliable: ChannelId,
    lossy: ChannelId,
    /// Whether the channels are open: reliable, lossy.
    open: [bool; 2],
    /// The local offer, until it is answered, and whether the answer discards the old local addresses.
    pending: Option<(SdpPendingOffer, Locals)>,
    /// The last offer and its answer.
    described: Described,
    candidates: Candidates,
    path: Path,
    wake_at: Instant,
    alarm: Alarm,
    /// The last time that was given to str0m.
    stack_time: Instant,
    /// When the oldest packet on the lossy channel expires, or earlier.
    lossy_expires: Instant,
    messages: VecDeque<(Lane, Vec<u8>)>,
    lost: Option<&'static str>,
    buffer: Vec<u8>,
    /// The datagrams that the stack has not processed yet.
    batch: Option<Batch>,
    /// True if the stack was given messages that it has not sent yet.
    is_unsent: bool,
    /// The datagrams in which the stack acknowledges the received ones. The connection sends its own messages first, and then these.
    held: Vec<Transmit>,
    /// The number of datagrams given to the stack.
    inputs: u64,
    rejected: u64,
}

/// Datagrams of one path that the stack processes together: it then acknowledges all of them with one packet.
struct Batch {
    path: (SocketAddr, SocketAddr),
    /// When the first one arrived. All count as of this time, so that time alone changes nothing among them.
    at: Instant,
    count: usize,
    before: Evidence,
}

/// What changes when the stack has decrypted data of the server.
#[derive(PartialEq)]
struct Evidence {
    messages: usize,
    /// The bytes that wait to be acknowledged on each channel.
    waits: [usize; 2],
    open: [bool; 2],
    lost: Option<&'static str>,
}

/// The last session descriptions of both ends.
#[derive(Debug, Default)]
pub(crate) struct Described {
    pub(crate) offer: String,
    pub(crate) answer: String,
    /// The offer's number, counted from 1.
    pub(crate) number: u32,
}

/// What happens to the local addresses in an ICE restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locals {
    /// They are tried again.
    Keep,
    /// They are discarded, and new ones are gathered.
    Replace,
}

/// What happens to the datagrams of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datagrams {
    Sent,
    /// They are sent by [`PeerConnection::flush`] or before the next wait.
    Held,
}

/// Which datagrams are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admit {
    /// All of them.
    All,
    /// Only those that keep the path alive (STUN). The others are dropped on purpose: the sender slows down, as SCTP
    /// does on a congested network, and the connection stays up.
    KeepAlive,
}

/// An error of str0m, or invalid data from the server.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

impl PeerConnection {
    /// Creates a peer connection and its offer. `bind` limits it to that local address. Without `udp` only TCP is
    /// used, without `tcp` only UDP.
    pub(crate) fn new(
        now: Instant,
        bind: Option<IpAddr>,
        udp: bool,
        tcp: bool,
    ) -> Result<(Self, String), Error> {
        // Without codecs, so the offer has the data section alone.
        let mut config = Rtc::builder()
            .set_crypto_provider(crypto::provider())
            .clear_codecs()
            .set_sctp_max_buffered_amount(BUDGET)
            .set_stats_interval(Some(CHOICE));
        // The server notices a dead path after 10 s. With a check every second, this end notices it first.
        config.set_max_stun_rto(CHECK);
        config.set_max_stun_retransmits(MAX_CHECKS);
        let mut rtc = config.build(now);
        let mut api = rtc.sdp_api();
        let reliable =
            api.add_channel_with_config(ChannelConfig { label: "_reliable".into(), ..Default::default() });
        // The server treats a participant as connected only once both channels are open. Without `_lossy` it
        // gives the connection up 10 to 20 s after ICE, and holds reliable packets back until then.
        let lossy = api.add_channel_with_config(ChannelConfig {
            label: "_lossy".into(),
            ordered: false,
            reliability: Reliability::MaxPacketLifetime { lifetime: LOSSY_LIFETIME },
            ..Default::default()
        });
        let (offer, pending) = api.apply().ok_or("str0m made no offer")?;
        let offer = offer.to_sdp_string();
        let connection = Self {
            rtc,
            sockets: Sockets::new(bind),
            udp,
            tcp,
            relay_only: false,
            direct_only: false,
            stranded: false,
            reliable,
            lossy,
            open: [false; 2],
            pending: Some((pending, Locals::Keep)),
            described: Described { offer: offer.clone(), answer: String::new(), number: 1 },
            candidates: Candidates::default(),
            path: Path::new(now),
            wake_at: now,
            alarm: Alarm::default(),
            stack_time: now,
            lossy_expires: now,
            messages: VecDeque::new(),
            lost: None,
            buffer: vec![0; MAX_DATAGRAM],
            batch: None,
            is_unsent: false,
            held: Vec::new(),
            inputs: 0,
            rejected: 0,
        };
        Ok((connection, offer))
    }

    /// Creates an offer that restarts ICE, for a lost path under a connection that is still alive. Nothing changes
    /// until the answer arrives. It replaces an earlier offer.
    pub(crate) fn restart_ice(&mut self, locals: Locals) -> Result<(), Error> {
        // Discarded addresses stay discarded, even if the server did not answer that offer.
        let locals = match self.pending {
            Some((_, Locals::Replace)) => Locals::Replace,
            _ => locals,
        };
        let mut api = self.rtc.sdp_api();
        api.ice_restart(locals == Locals::Keep);
        let (offer, pending) = api.apply().ok_or("str0m made no offer")?;
        // As in the first offer, the server learns the local addresses from packets.
        let lines = offer.to_sdp_string();
        self.described.offer = lines
            .split_inclusive('\n')
            .filter(|line| !line.starts_with("a=candidate:") && !line.starts_with("a=end-of-candidates"))
            .collect();
        self.described.number = self.described.number.wrapping_add(1);
        self.pending = Some((pending, locals));
        // Candidates that arrive before the answer belong to the restart.
        self.candidates.take_early();
        self.drain()
    }

    /// Returns whether the server has answered the last offer.
    pub(crate) fn is_answered(&self) -> bool {
        self.pending.is_none()
    }

    /// Returns the last session descriptions of both ends.
    pub(crate) fn described(&self) -> &Described {
        &self.described
    }

    /// Returns the channels as the server numbers them: label and stream.
    pub(crate) fn channels(&mut self) -> Vec<(&'static str, u32)> {
        let api = self.rtc.direct_api();
        let number = |id| api.sctp_stream_id_by_channel_id(id).map(u32::from);
        let numbers = [("_reliable", number(self.reliable)), ("_lossy", number(self.lossy))];
        numbers.into_iter().filter_map(|(label, number)| Some((label, number?))).collect()
    }

    /// Returns whether the system has refused to send since the last call.
    pub(crate) fn take_unsent(&self) -> bool {
        self.sockets.take_unsent()
    }

    /// Returns whether the local address of the connection is gone and another one leads to the server.
    pub(crate) fn has_moved(&self) -> bool {
        self.sockets.have_moved(self.path.chosen().map(|(local, _)| local), self.remotes())
    }

    /// Handles the server's answer to the offer with this number; 0 means the last one.
    pub(crate) fn handle_answer(&mut self, sdp: &str, number: u32) -> Result<(), Error> {
        if number != 0 && number != self.described.number {
            tracing::debug!(number, "an answer to an earlier offer was ignored");
            return Ok(());
        }
        let Some((pending, locals)) = self.pending.take() else {
            tracing::debug!("an answer without an offer was ignored");
            return Ok(());
        };
        // The parser's own text has an address of this process.
        let answer =
            SdpAnswer::from_sdp_string(sdp).map_err(|_| "the server's answer is no session description")?;
        self.rtc.sdp_api().accept_answer(pending, answer)?;
        self.described.answer = sdp.to_owned();
        // From here on the server uses the new session. Until the answer, packets went over the old path, and
        // its sockets were needed.
        self.candidates.begin_restart(locals, self.path.is_found());
        self.path.handle_searching();
        match locals {
            Locals::Keep => self.sockets.tcp.begin_restart(),
            Locals::Replace => self.sockets.close_all(),
        }
        // Candidates inside the answer need sockets too.
        let within = sdp
            .lines()
            .filter_map(|line| line.strip_prefix("a="))
            .filter(|line| line.starts_with("candidate:"));
        let early = self.candidates.take_early();
        for line in within.map(ToOwned::to_owned).chain(early).collect::<Vec<_>>() {
            self.handle_candidate(&line);
        }
        self.drain()
    }

    /// Waits until there is work, or until `until`. Sends before it what was held.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn wait(&mut self, until: Instant) -> Option<Readable> {
        self.send_held();
        let until = self.wakes_at(until).into();
        tokio::select! {
            // Datagrams before the alarm: a task that runs late must read what arrived in time before it
            // judges the path.
            biased;
            readable = self.sockets.readable() => Some(readable),
            // One alarm for all deadlines: registering an earlier one with tokio wakes a thread.
            () = self.alarm.wait_until(Some(until)) => None,
        }
    }

    /// Returns when [`PeerConnection::wait`] ends if nothing arrives.
    pub(crate) fn wakes_at(&self, until: Instant) -> Instant {
        self.wake_at.min(until)
    }

    /// Reads the datagrams that have arrived, and advances the time.
    pub(crate) fn handle(&mut self, woken: Option<Readable>, admit: Admit) -> Result<(), Error> {
        match woken {
            Some(Readable::Tcp(event)) => self.handle_tcp(event, admit)?,
            Some(Readable::Relay(event)) => self.handle_relay(event, admit)?,
            Some(Readable::Udp) | None => {}
        }
        let inputs = self.inputs;
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = self.read(&mut buffer, admit);
        self.buffer = buffer;
        read?;
        self.end_batch()?;
        // With each datagram the stack has let the time pass.
        if self.inputs != inputs {
            return Ok(());
        }
        self.pass_time(Instant::now())
    }

    fn read(&mut self, buffer: &mut [u8], admit: Admit) -> Result<(), Error> {
        for _ in 0..READ_BATCH {
            let Some((size, from, local)) = self.sockets.try_recv_udp(buffer) else { break };
            self.receive(Protocol::Udp, from, local, &buffer[..size], admit)?;
        }
        for _ in 0..READ_BATCH {
            let Some(event) = self.sockets.tcp.try_next() else { break };
            self.handle_tcp(event, admit)?;
        }
        for _ in 0..READ_BATCH {
            let Some(event) = self.sockets.relays.try_next() else { break };
            self.handle_relay(event, admit)?;
        }
        Ok(())
    }

    fn handle_tcp(&mut self, event: TcpEvent, admit: Admit) -> Result<(), Error> {
        if !matches!(event, TcpEvent::Datagram(..)) {
            self.end_batch()?;
        }
        match event {
            TcpEvent::Opened(pair, _) if self.has_direct_path() => {
                self.sockets.tcp.end_all();
                tracing::debug!(remote = %pair.remote, "an ICE-TCP connection was not needed any more");
                Ok(())
            }
            TcpEvent::Opened(pair, _) => {
                self.add_local(tcp_host(pair));
                self.drain()
            }
            TcpEvent::Datagram(pair, datagram) => {
                self.receive(Protocol::Tcp, pair.remote, pair.local, &datagram, admit)
            }
            TcpEvent::Closed(pair) => {
                tracing::debug!(remote = %pair.remote, "an ICE-TCP connection was closed");
                // A closed connection is known at once; waiting for a timeout would be much slower.
                self.stranded |= self.is_cut_off();
                if let Ok(candidate) = tcp_host(pair) {
                    self.rtc.direct_api().invalidate_candidate(&candidate);
                }
                self.drain()
            }
        }
    }

    fn receive(
        &mut self,
        protocol: Protocol,
        from: SocketAddr,
        local: SocketAddr,
        datagram: &[u8],
        admit: Admit,
    ) -> Result<(), Error> {
        if self.batch.as_ref().is_some_and(|batch| batch.count >= MAX_BATCH) {
            self.end_batch()?;
        }
        let path = (local, from);
        let now = match &self.batch {
            Some(batch) if batch.path == path => batch.at,
            _ => Instant::now(),
        };
        // Before ICE sees it, which does not know the STUN server and would reject its response.
        if let Some(mapped) = self.sockets.stun_client.hear(local, datagram) {
            self.end_batch()?;
            return self.handle_reflexive(mapped, local);
        }
        let Ok(receive) = Receive::new(protocol, from, local, datagram) else { return self.reject(from) };
        let input = Input::Receive(now, receive);
        // str0m accepts a DTLS record from any address; this checks that ICE knows the address.
        if !self.rtc.accepts(&input) {
            return self.reject(from);
        }
        if !is_data(datagram) {
            if !self.is_authentic(protocol, local, datagram) {
                return self.reject(from);
            }
            self.end_batch()?;
            self.path.handle_received(now, path, false);
            self.input(from, input);
            return self.drain();
        }
        if admit == Admit::KeepAlive {
            return Ok(());
        }
        if self.batch.as_ref().is_some_and(|batch| batch.path != path) {
            self.end_batch()?;
        }
        let mut batch = match self.batch.take() {
            Some(batch) => batch,
            None => self.begin_batch(path, now)?,
        };
        batch.count += 1;
        self.batch = Some(batch);
        self.input(from, input);
        Ok(())
    }

    fn begin_batch(&mut self, path: (SocketAddr, SocketAddr), at: Instant) -> Result<Batch, Error> {
        // A change by time alone proves nothing: the lossy channel abandons packets after a while.
        if at >= self.wake_at || (at >= self.lossy_expires && self.lossy_bytes() > 0) {
            self.pass_time(at)?;
        }
        self.stack_time = at;
        Ok(Batch { path, at, count: 0, before: self.evidence() })
    }

    /// Lets the stack process the datagrams that it was given. The path is alive if one of them was authentic.
    fn end_batch(&mut self) -> Result<(), Error> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        self.drain_into(Datagrams::Held)?;
        if self.evidence() != batch.before {
            self.path.handle_received(batch.at, batch.path, true);
        }
        Ok(())
    }

    fn pass_time(&mut self, now: Instant) -> Result<(), Error> {
        self.stack_time = now;
        self.rtc.handle_input(Input::Timeout(now))?;
        self.drain()
    }

    fn input(&mut self, from: SocketAddr, input: Input<'_>) {
        self.inputs += 1;
        if let Err(error) = self.rtc.handle_input(input) {
            // A single datagram must not end a connection; if str0m has failed, the next poll reports it.
            tracing::debug!(%from, %error, "a datagram was refused");
        }
    }

    /// Returns whether a STUN message has the integrity that only the server can produce. Anyone can send from its
    /// address.
    fn is_authentic(&self, protocol: Protocol, local: SocketAddr, datagram: &[u8]) -> bool {
        /// An address without a path, because str0m accepts messages on the selected path without this check.
        const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let receive = Receive::new(protocol, NOWHERE, local, datagram);
        receive.is_ok_and(|receive| self.rtc.accepts(&Input::Receive(Instant::now(), receive)))
    }

    fn evidence(&mut self) -> Evidence {
        let waits = [self.reliable, self.lossy]
            .map(|id| self.rtc.channel(id).map_or(0, |mut channel| channel.buffered_amount()));
        Evidence { messages: self.messages.len(), waits, open: self.open, lost: self.lost }
    }

    fn reject(&mut self, from: SocketAddr) -> Result<(), Error> {
        self.rejected += 1;
        // Logged at powers of two, so that a flood of datagrams does not flood the log.
        if self.rejected.is_power_of_two() {
            tracing::debug!(%from, rejected = self.rejected, "datagrams from unknown addresses were dropped");
        }
        Ok(())
    }

    /// Handles the outputs of str0m until it returns a timeout, and sends its datagrams.
    fn drain(&mut self) -> Result<(), Error> {
        self.drain_into(Datagrams::Sent)
    }

    fn drain_into(&mut self, datagrams: Datagrams) -> Result<(), Error> {
        loop {
            match self.rtc.poll_output()? {
                Output::Timeout(at) => {
                    self.wake_at = at;
                    return Ok(());
                }
                Output::Transmit(transmit) => {
                    // str0m reports its selected path only once in `CHOICE`. A datagram with data shows it at
                    // once.
                    if is_data(&transmit.contents) {
                        self.handle_used(transmit.source, transmit.destination);
                    }
                    match datagrams {
                        Datagrams::Sent => self.sockets.transmit(transmit),
                        Datagrams::Held => self.held.push(transmit),
                    }
                }
                Output::Event(event) => self.handle_event(event),
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::IceConnectionStateChange(
                IceConnectionState::Connected | IceConnectionState::Completed,
            ) => self.path.handle_connected(Instant::now()),
            // Before the first path, and after a restart, this only means that no path was found yet; the timeouts
            // detect a search that takes too long.
            Event::IceConnectionStateChange(IceConnectionState::Disconnected)
                if self.path.is_found()
                    && self.described.number == 1
                    && !self.stranded
                    && !self.sockets.relays.is_awaited() =>
            {
                self.lose("no network path works");
            }
            Event::PeerStats(PeerStats { selected_candidate_pair: Some(pair), .. }) => {
                self.handle_used(pair.local.addr, pair.remote.addr);
            }
            Event::ChannelOpen(id, _) if id == self.reliable => self.open[0] = true,
            Event::ChannelOpen(id, _) if id == self.lossy => self.open[1] = true,
            Event::ChannelData(data) if data.id == self.reliable => {
                self.messages.push_back((Lane::Reliable, data.data));
            }
            Event::ChannelData(data) if data.id == self.lossy => {
                self.messages.push_back((Lane::Lossy, data.data));
            }
            // Neither end closes a channel of a connection that goes on.
            Event::ChannelClose(_) => self.lose("the server closed a data channel"),
            // Also if the SCTP association is lost, after which str0m closes the connection.
            Event::Closed => self.lose("the server closed the peer connection"),
            _ => {}
        }
    }

    /// Returns whether UDP without a relay is in use.
    fn has_direct_path(&self) -> bool {
        self.path.chosen().is_some_and(|(local, _)| self.sockets.has_udp(local))
    }

    fn handle_used(&mut self, local: SocketAddr, remote: SocketAddr) {
        if self.path.handle_used((local, remote)) {
            let (relayed, tcp) = (self.sockets.relays.gave(local), self.sockets.tcp.has(local));
            tracing::debug!(%local, %remote, relayed, tcp, "a path was selected");
            if self.sockets.has_udp(local) {
                // Each further path is checked every second, which wakes the device. An ICE restart opens them again.
                self.sockets.tcp.end_all();
            } else {
                self.sockets.tcp.end_earlier(local);
            }
        }
    }

    fn lose(&mut self, why: &'static str) {
        self.lost.get_or_insert(why);
    }

    /// Returns the next received message.
    pub(crate) fn poll_message(&mut self) -> Option<(Lane, Vec<u8>)> {
        self.messages.pop_front()
    }

    /// Returns why the connection has ended, once it has.
    pub(crate) fn lost(&self) -> Option<&'static str> {
        self.lost
    }

    /// Returns false if there is no room for a message of this size now.
    pub(crate) fn has_room(&mut self, lane: Lane, size: usize) -> bool {
        // str0m has one budget for both channels. A reliable one that used all of it would block the lossy
        // channel, which exists for exactly that moment.
        lane == Lane::Lossy || self.unacknowledged() + size <= BUDGET - LOSSY_RESERVE
    }

    /// Writes a message; `false` if there is no room for it now. It is sent by [`flush`](Self::flush), so that several small
    /// messages share a datagram.
    pub(crate) fn write(&mut self, lane: Lane, message: &[u8]) -> Result<bool, Error> {
        if !self.has_room(lane, message.len()) {
            return Ok(false);
        }
        let id = match lane {
            Lane::Reliable => self.reliable,
            Lane::Lossy => self.lossy,
        };
        if lane == Lane::Lossy && self.lossy_bytes() == 0 {
            // Counted from the first packet of several, so it is never too late: `begin_batch` only lets the
            // time pass once too often.
            self.lossy_expires = self.stack_time + Duration::from_millis(LOSSY_LIFETIME.into());
        }
        let Some(mut channel) = self.rtc.channel(id) else { return Ok(false) };
        let written = channel.write(true, message)?;
        self.is_unsent |= written;
        Ok(written)
    }

    /// Sends the messages that were written, and then the acknowledgements that were held.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let sent = if std::mem::take(&mut self.is_unsent) { self.drain() } else { Ok(()) };
        self.send_held();
        sent
    }

    fn send_held(&mut self) {
        for transmit in self.held.drain(..) {
            self.sockets.transmit(transmit);
        }
    }

    /// Returns whether acknowledgements wait for [`flush`](Self::flush) or [`wait`](Self::wait).
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether sent data is unacknowledged.
    pub(crate) fn waits(&mut self) -> bool {
        // Both channels share one SCTP association: losses on the lossy one extend the timer of the reliable one too.
        self.lossy_bytes() + self.unacknowledged() > 0
    }

    /// Returns the bytes on the lossy channel that the server has not acknowledged.
    fn lossy_bytes(&mut self) -> usize {
        self.rtc.channel(self.lossy).map_or(0, |mut channel| channel.buffered_amount())
    }

    /// Returns the bytes on the reliable channel that the server has not acknowledged.
    pub(crate) fn unacknowledged(&mut self) -> usize {
        self.rtc.channel(self.reliable).map_or(0, |mut channel| channel.buffered_amount())
    }

    /// Returns whether both channels are open.
    pub(crate) fn is_open(&self) -> bool {
        self.open == [true; 2]
    }

    /// Returns whether ICE has found a path at all.
    pub(crate) fn has_path(&self) -> bool {
        self.path.is_found()
    }

    /// Returns when the last packet from the server arrived.
    pub(crate) fn heard(&self) -> Instant {
        self.path.heard()
    }

    /// Closes the connection towards the server. Nothing can be sent afterwards.
    pub(crate) fn close(&mut self) {
        let closed: Result<(), RtcError> = self.rtc.close();
        if let Err(error) = closed.map_err(Error::from).and_then(|()| self.drain()) {
            tracing::debug!(%error, "the peer connection was not closed cleanly");
        }
    }
}

/// Returns whether a datagram does not belong to ICE ([RFC 7983](https://www.rfc-editor.org/rfc/rfc7983)); such
/// datagrams use only the selected path.
fn is_data(datagram: &[u8]) -> bool {
    /// The first bytes of STUN messages.
    const STUN: RangeInclusive<u8> = 0..=3;
    !datagram.first().is_some_and(|first| STUN.contains(first))
}

#[cfg(test)]
mod tests;
