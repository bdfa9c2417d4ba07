//! Link to a replica: [`replication::Sender`] on the socket of its connection.
//!
//! A second thread reads files, so that the worker's other clients do not wait for the disk. The
//! worker itself sends recent log bytes, which are in memory.

use crate::roles::failover::step_down;
use crate::roles::link_io::read_available;
use crate::roles::node::Node;
use crate::runtime::blocking_task::apart;
use crate::runtime::clients::Client;
use replication::{LinkError, LogSource, Sender, Timeouts};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use store::time::{elapsed_ms, now};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinHandle;

/// Interval of the timer for heartbeats and deadlines.
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of bytes per write. Copying this many bytes into the socket blocks the worker for
/// about 20 microseconds.
const WRITE_BYTES: usize = 64 << 10;
/// Maximum number of bytes of log retained for a full sync, in addition to `durability.keep_log`. A
/// sync that needs more fetches a newer snapshot.
const SYNC_LOG_BYTES: u64 = 4 << 30;

/// Slot of one replica, counted against `max_replicas`. Dropping the guard frees the slot.
pub struct ReplicaSlot {
    node: Arc<Node>,
    client: u64,
}

impl ReplicaSlot {
    /// Takes a slot; returns `None` if all are taken.
    pub fn take(node: &Arc<Node>, client: &Client) -> Option<ReplicaSlot> {
        let most = node.config().replication.max_replicas;
        let is_admitted = node.replication.feeds.admit(client.id, client.peer.ip(), most);
        is_admitted.then(|| ReplicaSlot { node: node.clone(), client: client.id })
    }
}

impl Drop for ReplicaSlot {
    fn drop(&mut self) {
        self.node.replication.feeds.end(self.client);
        self.node.durability.acknowledged();
        self.node.replication.judge(&self.node.config());
    }
}

/// Sends the log to the replica until the link ends.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    place: ReplicaSlot,
    peer: SocketAddr,
    stream: &mut S,
) {
    tracing::info!("replica {peer}: link up");
    match run(&place.node, place.client, stream).await {
        Ok(()) => tracing::info!("replica {peer}: disconnected"),
        Err(error) => tracing::warn!("replica {peer}: link down: {error}"),
    }
}

/// Reason why a link to a replica ended.
pub enum LinkEndReason {
    /// The socket has failed.
    Io(std::io::Error),
    /// The replica violated the protocol, timed out, or cannot be served.
    Link(LinkError),
}

impl std::fmt::Display for LinkEndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkEndReason::Io(error) => error.fmt(f),
            LinkEndReason::Link(error) => error.fmt(f),
        }
    }
}

/// Runs a step of the sender, on another thread if it may read files.
async fn step<T: Send + 'static>(
    node: &Arc<Node>,
    feed: &mut Option<Sender>,
    work: impl FnOnce(&mut Sender, &LogSource<'_>) -> Result<T, LinkError> + Send + 'static,
) -> Result<T, LinkEndReason> {
    let Some(mut taken) = feed.take() else {
        return Err(LinkEndReason::Io(std::io::Error::other("the sender has stopped")));
    };
    let origin_of = |node: &Node| (node.durability.shown(), node.replication.term.load(Relaxed));
    let (end, term) = origin_of(node);
    let origin = LogSource { store: &node.store, end, term };
    if taken.is_at_hand(&origin) {
        // For this step, switching threads would take longer than the work and delay WAIT.
        let result = work(&mut taken, &origin);
        *feed = Some(taken);
        return result.map_err(LinkEndReason::Link);
    }
    let node = node.clone();
    let done = apart(move || {
        let (end, term) = origin_of(&node);
        let result = work(&mut taken, &LogSource { store: &node.store, end, term });
        (taken, result)
    });
    let (taken, result) = done.await.map_err(|e| LinkEndReason::Io(std::io::Error::other(e)))?;
    *feed = Some(taken);
    result.map_err(LinkEndReason::Link)
}

/// Writes some of `bytes`, or flushes if there are none.
async fn push(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}

/// Waits for the task that makes this node step down. Never returns if there is no task.
async fn done(steps_down: &mut Option<JoinHandle<Result<u64, String>>>) -> Result<u64, String> {
    match steps_down {
        Some(task) => task.await.unwrap_or_else(|error| Err(error.to_string())),
        None => std::future::pending().await,
    }
}

// Long: this function is long because all arms of the `select!` borrow the same buffers and
// timestamps.
async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    node: &Arc<Node>,
    client: u64,
    stream: &mut S,
) -> Result<(), LinkEndReason> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let started = now();
    let timeout_ms = node.config().replication.timeout_s * 1000;
    let times = Timeouts { timeout_ms, ..Timeouts::default() };
    let mut feed = Some(Sender::new(times, SYNC_LOG_BYTES, 0));
    let mut grown = node.durability.subscribe();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut heard = now();
    let mut input = vec![0; 16 << 10];
    let (mut out, mut sent) = (Vec::new(), 0);
    // TLS buffers written bytes until a flush.
    let (mut fill, mut unflushed, mut is_known) = (true, false, false);
    let mut steps_down = None;
    loop {
        if sent == out.len() && fill {
            let mut buffer = std::mem::take(&mut out);
            buffer.clear();
            let now = elapsed_ms(started);
            out = step(node, &mut feed, move |feed, origin| {
                feed.fill(&mut buffer, origin, now)?;
                Ok(buffer)
            })
            .await?;
            sent = 0;
            // A step may have produced only a part of the pending output.
            fill = !out.is_empty();
        }
        let end = out.len().min(sent + WRITE_BYTES);
        let read = tokio::select! {
            // The arms are polled in order, for a reproducible simulation. The first two arms are
            // rarely ready. The timer must not starve while output is always pending.
            biased;
            _ = ticks.tick() => {
                fill = true;
                let read = read_available(&mut reader, &mut input).await;
                let unread = read.map_err(LinkEndReason::Io)?;
                if let Some(feed) = &mut feed {
                    // `fill` never runs for a replica that does not read, so check here how much
                    // log it retains.
                    feed.tick(node.durability.shown());
                    if unread.is_none() {
                        feed.check_timeout(elapsed_ms(started)).map_err(LinkEndReason::Link)?;
                    }
                }
                unread
            }
            read = reader.read(&mut input) => Some(read.map_err(LinkEndReason::Io)?),
            written = push(&mut writer, &out[sent..end]), if sent < out.len() || unflushed => {
                let written = written.map_err(LinkEndReason::Io)?;
                sent += written;
                node.replication.feeds.bytes_out.fetch_add(written as u64, Relaxed);
                // A write of 0 bytes was a flush.
                unflushed = written > 0;
                if sent < out.len() {
                    // Yield, so that the worker's other clients run between two writes.
                    tokio::task::yield_now().await;
                }
                None
            }
            stepped_down = done(&mut steps_down), if steps_down.is_some() => {
                steps_down = None;
                let feed = feed.as_mut().expect("no step is in progress");
                match stepped_down {
                    Ok(end) => feed.stepped_down(end),
                    Err(why) => feed.refuse(&mut out, &why),
                }
                fill = true;
                None
            }
            changed = grown.changed(), if sent == out.len() => {
                if changed.is_err() {
                    return Ok(());
                }
                fill = true;
                None
            }
        };
        if let Some(length) = read {
            if length == 0 {
                return Ok(());
            }
            heard = now();
            let (bytes, now) = (input[..length].to_vec(), elapsed_ms(started));
            step(node, &mut feed, move |feed, origin| feed.receive(&bytes, origin, now)).await?;
            fill = true;
        }
        if let Some(feed) = &mut feed {
            if node.replication.feeds.update(client, feed.peer(), heard) {
                node.durability.acknowledged();
            }
            if feed.peer().sending == replication::Sending::Log && !is_known {
                is_known = true;
                // In a cluster the other nodes must confirm this master first
                // (`peer::try_lift_fence`).
                node.replication.followed(&node.config(), !node.cluster.is_enabled());
            }
            if feed.take_step_down()
                && let Some(successor) = node.replication.feeds.address_of(client)
            {
                // A separate task, so that this node steps down even if the link ends.
                steps_down = Some(tokio::spawn(step_down(node.clone(), successor)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::roles::node::Host;
    use store::{Check, frame_head};

    /// A replica freezes in the middle of a message. The master can write no more bytes to the
    /// socket, and no packet reports the failure.
    #[tokio::test]
    async fn a_replica_that_neither_reads_nor_speaks_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.replication.timeout_s = 1;
        let node = Host::alone(&config);
        // Hello of a replica with another history. The sender always replies to such a hello.
        let hello =
            [&[1][..], &replication::PROTOCOL.to_le_bytes(), &[7; 16], &[0; 44], &[1, 0]].concat();
        // The buffer is smaller than the reply.
        let (mut replica, mut here) = tokio::io::duplex(32);
        let greets = async {
            replica.write_all(&frame_head(Check::new().u64(0), &hello)).await.unwrap();
            replica.write_all(&hello).await.unwrap();
            std::future::pending().await
        };
        let ended = tokio::select! {
            ended = run(&node, 1, &mut here) => ended,
            () = greets => unreachable!(),
            () = tokio::time::sleep(Duration::from_secs(60)) => panic!("still connected"),
        };
        assert!(ended.is_err_and(|e| e.to_string().contains("received nothing")));
        assert!(replica.read_u8().await.is_ok(), "the reply had started");
    }

    /// A slow disk may block the sender for longer than the timeout. It reads the pending messages
    /// before it closes the link.
    #[tokio::test]
    async fn a_replica_whose_words_wait_unread_is_not_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.durability.dir = folder.path().to_path_buf();
        config.replication.timeout_s = 3;
        let node = Host::alone(&config);
        let message =
            |number, body: &[u8]| [&frame_head(Check::new().u64(number), body)[..], body].concat();
        let hello =
            [&[1][..], &replication::PROTOCOL.to_le_bytes(), &[7; 16], &[0; 44], &[1, 0]].concat();
        let (want_manifest, acknowledges) =
            (message(1, &[3]), message(2, &[&[2][..], &[0; 16]].concat()));
        let (mut replica, mut here) = tokio::io::duplex(64 << 10);
        let of_disk = node.clone();
        let talks = async move {
            replica.write_all(&message(0, &hello)).await.unwrap();
            let mut input = [0; 4096];
            assert!(replica.read(&mut input).await.unwrap() > 0, "the replica is accepted");
            let (tell_busy, busy) = tokio::sync::oneshot::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            std::thread::spawn(move || {
                let _held = of_disk.store.manifest();
                tell_busy.send(()).unwrap();
                ended.recv().unwrap();
            });
            busy.await.unwrap();
            replica.write_all(&want_manifest).await.unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
            replica.write_all(&acknowledges).await.unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
            end.send(()).unwrap();
            // The sender replies, and the replica disconnects.
            assert!(replica.read(&mut input).await.unwrap() > 0, "the link is closed");
        };
        // The task owns its end of the connection, so that the replica sees the link close.
        let feeds = async move { run(&node, 1, &mut here).await };
        let (ended, ()) = tokio::join!(feeds, talks);
        assert!(ended.is_ok(), "{}", ended.err().map(|e| e.to_string()).unwrap_or_default());
    }
}
