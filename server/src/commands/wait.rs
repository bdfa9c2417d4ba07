//! WAIT and WAITAOF: wait for replicas and disks.

use crate::commands::call::{Call, answer, integer};
use node::command::error::{Refusal, refuse};
use node::command::spec::Outcome;
use node::roles::node::Node;
use node::roles::{ConnectedReplica, failover};
use resp::Reply;
use std::time::Duration;
use tokio::time::Instant;

/// Parses a timeout in milliseconds; 0 means no timeout.
pub(crate) fn deadline(text: &[u8]) -> Result<Instant, Refusal> {
    let ms = resp::integer(text)
        .ok_or_else(|| refuse!("ERR timeout is not an integer or out of range"))?;
    let ms = u64::try_from(ms).map_err(|_| refuse!("ERR timeout is negative"))?;
    Ok(Instant::now()
        + if ms == 0 { failover::FAR } else { Duration::from_millis(ms).min(failover::FAR) })
}

fn count(text: &[u8]) -> Result<usize, Refusal> {
    let n = integer(text)?;
    usize::try_from(n).map_err(|_| refuse!("ERR value is out of range, must be positive"))
}

/// Condition that a node must meet to be counted.
#[derive(Clone, Copy)]
enum WaitCondition {
    /// The replica has applied the writes.
    Written,
    /// The writes are durable on the node.
    Durable,
}

/// Returns whether a replica meets the condition for `offset`.
fn has(until: WaitCondition, offset: u64) -> impl Fn(&ConnectedReplica) -> bool {
    move |fed| match until {
        WaitCondition::Written => fed.written >= offset,
        WaitCondition::Durable => fed.durable >= offset,
    }
}

/// Waits until this node and `replicas` replicas meet the condition, or until the deadline. Returns
/// whether this node meets the condition, and the number of replicas that do.
async fn wait_until_met(
    node: &Node,
    ticket: store::Ticket,
    until: WaitCondition,
    replicas: usize,
    deadline: Instant,
) -> (bool, usize) {
    // Log offset that includes the ticket's writes. Replicas receive the log from this node, so no
    // separate wait for the local log is needed.
    let own = async {
        match until {
            WaitCondition::Written if replicas > 0 => {
                node.durability.committer().begin_round_for(ticket);
                None
            }
            WaitCondition::Written => node.durability.shown_offset(ticket).await.ok(),
            WaitCondition::Durable => Some(node.durability.synced_offset(ticket).await),
        }
    };
    let Ok(end) = tokio::time::timeout_at(deadline, own).await else { return (false, 0) };
    let now =
        || match end.map_or_else(|| node.durability.shown_at(ticket), |offset| Some(Ok(offset))) {
            Some(Ok(offset)) => Some((true, node.replication.feeds.count(has(until, offset)))),
            Some(Err(())) => Some((false, 0)),
            None => None,
        };
    let done = || now().filter(|&(is_there, count)| !is_there || count >= replicas);
    let over = tokio::time::timeout_at(deadline, node.durability.until(done)).await;
    over.ok().or_else(now).unwrap_or((false, 0))
}

/// Fails on a replica. The error texts are the same as in Redis, and differ between the two
/// commands.
fn refuse_on_replica(call: &Call<'_>, what: &str, since: &str) -> Outcome {
    if !call.node.replication.is_master() {
        return Err(refuse!(
            "ERR {what} cannot be used with replica instances. Please also note that {since}writes \
             to replicas are just local and are not propagated."
        ));
    }
    Ok(())
}

/// Fails if the connection has written on other nodes, because the replicas of this node do not
/// receive those writes.
fn refuse_elsewhere(call: &Call<'_>, what: &str) -> Outcome {
    if call.session.wrote_elsewhere {
        return Err(refuse!(
            "ERR {what} does not cover other shards, and this connection changed ids of other \
             shards: send these changes and the wait to their master (RESET clears this)"
        ));
    }
    Ok(())
}

/// Error of a wait that ends because the node was demoted. The text is the same as in Redis.
pub(crate) const DEMOTED: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
pub(crate) const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

/// Defers the reply until the wait has ended. `write` formats the result.
fn answer_after_wait(
    call: &mut Call<'_>,
    until: WaitCondition,
    replicas: usize,
    deadline: Instant,
    write: impl FnOnce(&mut Reply<'_>, bool, usize) + Send + 'static,
) {
    if call.session.in_exec {
        // As in Redis, WAIT inside EXEC does not block; it counts replicas that have the writes
        // before the transaction. WAITAOF is stricter than in Redis: a transaction with writes is
        // not on any disk yet.
        let durability = &call.node.durability;
        let ticket = call.session.last_write;
        let is_synced = !call.session.wrote && durability.committer().synced() >= ticket;
        let end = durability.shown_at(ticket).and_then(Result::ok);
        let count = end.map_or(0, |end| call.node.replication.feeds.count(has(until, end)));
        write(&mut call.reply, is_synced, count);
        return;
    }
    let (node, protocol) = (call.node.node().clone(), call.reply.protocol());
    // The ticket covers all writes so far, including this client's.
    let ticket = node.durability.committer().ticket();
    let client = call.session.client.clone();
    call.answer_when(async move {
        client.blocked.begin(true);
        let ended = tokio::select! {
            biased;
            () = node.replication.demoted() => Err(DEMOTED),
            known = wait_until_met(&node, ticket, until, replicas, deadline) => Ok(known),
            with_error = client.blocked.wait_for_unblock() => match with_error {
                true => Err(UNBLOCKED),
                false => Ok(wait_until_met(&node, ticket, until, replicas, Instant::now()).await),
            },
        };
        client.blocked.end(matches!(ended, Err(DEMOTED)));
        answer(protocol, |reply| {
            let (local, count) = ended.map_err(|why| refuse!("{why}"))?;
            write(reply, local, count);
            Ok(())
        })
    });
}

pub(crate) fn wait(call: &mut Call<'_>) -> Outcome {
    let since =
        "since Redis 4.0 if a replica is configured to be writable (which is not the default) ";
    refuse_on_replica(call, "WAIT", since)?;
    refuse_elsewhere(call, "WAIT")?;
    let (replicas, deadline) = (count(call.args.at(1))?, deadline(call.args.at(2))?);
    answer_after_wait(call, WaitCondition::Written, replicas, deadline, |reply, _, count| {
        reply.int(count as i64)
    });
    Ok(())
}

pub(crate) fn waitaof(call: &mut Call<'_>) -> Outcome {
    let local = count(call.args.at(1))?;
    if local > 1 {
        return Err(refuse!("ERR value is out of range, value must between 0 and 1"));
    }
    refuse_on_replica(call, "WAITAOF", "")?;
    refuse_elsewhere(call, "WAITAOF")?;
    let (replicas, deadline) = (count(call.args.at(2))?, deadline(call.args.at(3))?);
    answer_after_wait(call, WaitCondition::Durable, replicas, deadline, |reply, local, count| {
        reply.array(2);
        reply.int(i64::from(local));
        reply.int(count as i64);
    });
    Ok(())
}
