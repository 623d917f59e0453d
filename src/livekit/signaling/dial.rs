//! Opens TCP connections on a network that fails and returns.
//!
//! The operating system retransmits a lost first packet after 1, 3, 7 and 15 s, whatever happens in between: a
//! program that waits for one attempt learns late that the network works again. Therefore the same address is dialed
//! again each half second, and the first connection that opens is used. A name is resolved again too, a few times.
//! Several addresses of one name are tried a quarter of a second apart, alternating the address families ([RFC
//! 8305](https://www.rfc-editor.org/rfc/rfc8305)).

use std::{collections::VecDeque, future::Future, io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::{self, Instant},
};

/// The delay before the next address is tried in parallel.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);
/// The delay before all addresses are dialed again in parallel.
const AGAIN: Duration = Duration::from_millis(500);
/// The most addresses of one name that are tried.
const MAX_ADDRESSES: usize = 6;
/// The most connection attempts at once; a further one replaces the oldest.
const MAX_DIALS: usize = 12;
/// The delay before a name is looked up again in parallel. The system repeats its own queries after 5 s, so these
/// lookups are spread over that time.
const ASK_AGAIN: Duration = Duration::from_millis(1500);
/// The most parallel lookups of a name. Each holds a thread until the system gives up, which cannot be shortened, so
/// every lookup is awaited.
const MAX_LOOKUPS: usize = 3;

/// Opens a connection to a name or an address, without a time limit.
///
/// # Errors
/// The name is not known, or every address refuses.
pub(crate) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = look_up(|| {
        let host = host.to_owned();
        async move { Ok(in_turn(lookup_host((host, port)).await?)) }
    })
    .await?;
    let stream = dial(&addresses, TcpStream::connect).await?;
    // Keepalives and candidates are small and must not wait for the acknowledgement of what was sent before.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Alternates the address families, starting with the system's first one.
pub(crate) fn in_turn(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let addresses: Vec<_> = addresses.collect();
    let first_is_v4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first_is_v4);
    let mut second = second.into_iter();
    let mut turns: Vec<_> = first.into_iter().flat_map(|one| [Some(one), second.next()]).flatten().collect();
    turns.extend(second);
    turns.truncate(MAX_ADDRESSES);
    turns
}

/// Resolves a name, repeating the lookup because a query can be lost like any packet.
async fn look_up<F>(ask: impl Fn() -> F) -> io::Result<Vec<SocketAddr>>
where
    F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
{
    race(&[()], ASK_AGAIN, Cap::Wait(MAX_LOOKUPS), |()| ask()).await
}

/// Opens a connection to one of these addresses.
async fn dial<T, F>(addresses: &[SocketAddr], connect: impl Fn(SocketAddr) -> F) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    race(addresses, AGAIN, Cap::GiveUpOldest(MAX_DIALS), connect).await
}

/// How many attempts may run at once, and what happens at that limit.
#[derive(Clone, Copy)]
enum Cap {
    GiveUpOldest(usize),
    Wait(usize),
}

/// Returns the first success. Starts an attempt for each of these, and again for all of them each time that `again`
/// has passed.
async fn race<A, T, F>(addresses: &[A], again: Duration, cap: Cap, connect: impl Fn(A) -> F) -> io::Result<T>
where
    A: Copy,
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    if addresses.is_empty() {
        return Err(error);
    }
    let (mut dials, mut handles) = (JoinSet::new(), VecDeque::new());
    let (mut round, mut next) = (addresses.iter(), Instant::now());
    loop {
        let has_room = !matches!(cap, Cap::Wait(most) if dials.len() >= most);
        tokio::select! {
            biased;
            // First, so that a connection that has just opened is used before another attempt starts.
            Some(done) = dials.join_next() => match done {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(why)) => error = why,
                Err(why) if why.is_panic() => error = io::Error::other(why),
                // Replaced by a newer attempt.
                Err(_) => continue,
            },
            () = time::sleep_until(next), if has_room => {
                if round.len() == 0 {
                    round = addresses.iter();
                }
                if let Some(address) = round.next() {
                    // In tasks, so that the attempts advance while this waits. Dropping the set ends those
                    // that were not first.
                    let handle = dials.spawn(connect(*address));
                    if let Cap::GiveUpOldest(most) = cap {
                        handles.push_back(handle);
                        if handles.len() > most
                            && let Some(oldest) = handles.pop_front()
                        {
                            oldest.abort();
                        }
                    }
                }
                next = Instant::now() + if round.len() == 0 { again } else { NEXT_ADDRESS };
                continue;
            }
        }
        // One attempt has failed. The next need not wait for it; without a next one nothing is left to wait for.
        if round.len() > 0 {
            next = Instant::now();
        } else if dials.is_empty() {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Which port was dialed, and when, in milliseconds since the start.
    type Log = Arc<Mutex<Vec<(u16, u128)>>>;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| ([127, 0, 0, 1], *port).into()).collect()
    }

    /// Runs a race in which a dial to a port at `now` (milliseconds since the start) ends after the given time, or
    /// hangs.
    async fn raced(
        ports: &[u16],
        outcome: impl Fn(u16, u128) -> Option<(u64, bool)> + Copy + Send + 'static,
    ) -> (io::Result<u16>, u128, Vec<(u16, u128)>) {
        let (start, log) = (Instant::now(), Log::default());
        let won = dial(&addresses(ports), |address| {
            let (port, at) = (address.port(), start.elapsed().as_millis());
            log.lock().unwrap().push((port, at));
            async move {
                let Some((after, works)) = outcome(port, at) else { std::future::pending().await };
                time::sleep(Duration::from_millis(after)).await;
                if works { Ok(port) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
            }
        })
        .await;
        let log = log.lock().unwrap().clone();
        (won, start.elapsed().as_millis(), log)
    }

    #[tokio::test(start_paused = true)]
    async fn dead_network_is_dialed_again_each_half_second() {
        // The network works again 3.2 s later; packets from before that are lost.
        let (won, took, log) = raced(&[1], |_, at| (at >= 3_200).then_some((30, true))).await;
        assert_eq!((won.unwrap(), took, log.len()), (1, 3_530, 8));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_connection_is_not_abandoned() {
        let (won, took, _) = raced(&[1], |_, at| (at == 0).then_some((2_500, true))).await;
        assert_eq!((won.unwrap(), took), (1, 2_500));
    }

    #[tokio::test(start_paused = true)]
    async fn next_address_is_tried_in_parallel_or_at_once_after_a_refusal() {
        let (won, took, log) = raced(&[1, 2], |port, _| (port == 2).then_some((10, true))).await;
        assert_eq!((won.unwrap(), took, log), (2, 260, vec![(1, 0), (2, 250)]));
        let (won, took, _) = raced(&[1, 2], |port, _| Some((10, port == 2))).await;
        assert_eq!((won.unwrap(), took), (2, 20));
    }

    #[tokio::test(start_paused = true)]
    async fn dial_fails_only_when_all_addresses_refused() {
        let (won, took, log) = raced(&[1, 2], |_, _| Some((10, false))).await;
        assert_eq!((won.unwrap_err().kind(), took), (io::ErrorKind::ConnectionRefused, 20));
        assert_eq!(log.len(), 2);
        let (won, _, log) = raced(&[1, 2], |port, at| match port {
            1 => Some((10, false)),
            _ => (at > 2_000).then_some((0, true)),
        })
        .await;
        assert_eq!((won.unwrap(), log.len()), (2, 10), "one that is silent may still answer");
        let (won, ..) = raced(&[], |_, _| None).await;
        assert_eq!(won.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn parallel_dials_are_bounded() {
        let (one, under_way) = (addresses(&[1]), Arc::new(()));
        let racing = dial(&one, |_| {
            let held = under_way.clone();
            async move {
                let _held = held;
                std::future::pending::<io::Result<()>>().await
            }
        });
        let mut racing = std::pin::pin!(racing);
        assert!(time::timeout(Duration::from_secs(3600), &mut racing).await.is_err());
        assert!((2..=MAX_DIALS + 2).contains(&Arc::strong_count(&under_way)));
    }

    /// Resolves a name where each query (by its time in milliseconds since the start) is answered after the given
    /// time, fails, or hangs. Also returns when the queries were sent.
    async fn asked(
        limit: Duration,
        outcome: impl Fn(u128) -> Option<(u64, bool)> + Copy + Send + 'static,
    ) -> (Option<bool>, u128, Vec<u128>) {
        let (start, log) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let asking = look_up(|| {
            let at = start.elapsed().as_millis();
            log.lock().unwrap().push(at);
            async move {
                let Some((after, works)) = outcome(at) else { std::future::pending().await };
                time::sleep(Duration::from_millis(after)).await;
                if works { Ok(addresses(&[1])) } else { Err(io::ErrorKind::NotFound.into()) }
            }
        });
        let found = time::timeout(limit, asking).await.ok().map(|found| found.is_ok());
        let log = log.lock().unwrap().clone();
        (found, start.elapsed().as_millis(), log)
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_name_costs_three_lookups() {
        let hour = Duration::from_secs(3600);
        assert_eq!(asked(hour, |_| None).await, (None, 3_600_000, vec![0, 1_500, 3_000]));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_lookup_is_used() {
        let day = Duration::from_secs(86_400);
        assert_eq!(asked(day, |_| Some((8_000, true))).await, (Some(true), 8_000, vec![0, 1_500, 3_000]));
        // The first two queries are lost.
        let found = asked(day, |at| (at > 1_500).then_some((20, true))).await;
        assert_eq!(found, (Some(true), 3_020, vec![0, 1_500, 3_000]));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_lookup_makes_room_for_another() {
        let day = Duration::from_secs(86_400);
        assert_eq!(asked(day, |_| Some((10, false))).await, (Some(false), 10, vec![0]));
        let found = asked(day, |at| match at {
            0 => Some((9_000, false)),
            at => (at > 3_000).then_some((20, true)),
        })
        .await;
        assert_eq!(found, (Some(true), 9_020, vec![0, 1_500, 3_000, 9_000]));
    }

    #[test]
    fn address_families_alternate() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let found =
            in_turn(["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "1.1.1.2:1"].map(parse).into_iter());
        assert_eq!(found, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "1.1.1.2:1", "[::3]:1"].map(parse));
        assert_eq!(in_turn((0..99).map(|port| ([127, 0, 0, 1], port).into())).len(), MAX_ADDRESSES);
    }
}
