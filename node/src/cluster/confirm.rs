//! Asks the other nodes to confirm a topology, for a master that may have been replaced.

use crate::cluster::topology::VERSION;
use crate::cluster::{Member, Topology};
use crate::command::error::{Refusal, refuse};
use crate::command::spec::Outcome;
use client::within;
use futures_util::future::join_all;
use std::io;
use std::time::Duration;

/// Timeout for a node's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of concurrent requests. The limit bounds memory, since each request contains the
/// topology.
const MAX_CONCURRENT_NODES: usize = 64;
/// Error codes of nodes that cannot answer. Such a node may know a later topology.
const INCONCLUSIVE_ERRORS: [&str; 4] = ["LOADING", "NOAUTH", "NOPERM", "WRONGPASS"];

/// Whether another node knows a later topology, so that a retry would fail again. False if a node
/// was unable to answer.
pub fn is_final(refusal: &Refusal) -> bool {
    String::from_utf8_lossy(refusal.text()).contains(VERSION)
}

/// Fails if another node of the topology refuses the topology. A delayed message may carry a
/// topology that predates the replacement of this master. Other nodes then know a later topology,
/// or a different one of the same version. Unreachable nodes are ignored. A node that is loading or
/// denies access counts as a refusal, because it could know a later topology. `check` sends the
/// topology to one node (`CLUSTERX SETNODES ... CHECK`).
pub async fn confirm(next: &Topology, check: impl AsyncFn(&Member) -> io::Result<()>) -> Outcome {
    let others: Vec<&Member> = next.members().iter().filter(|it| it.id != next.own_id).collect();
    let ask = async |member: &Member| {
        let error = within(ANSWER_TIMEOUT, check(member)).await.err()?;
        let (address, version, text) = (member.address(), next.version, error.to_string());
        if text.contains(VERSION) {
            return Some(refuse!(
                "ERR {VERSION}: {address} has a newer topology, or a different {version}. Use \
                 FORCE to apply this one anyway"
            ));
        }
        let is_mute = error.kind() == io::ErrorKind::PermissionDenied
            || INCONCLUSIVE_ERRORS.iter().any(|word| text.starts_with(word));
        is_mute.then(|| {
            refuse!(
                "ERR cannot check whether {address} has a topology newer than {version} ({text}). \
                 Try again, or use FORCE"
            )
        })
    };
    for some in others.chunks(MAX_CONCURRENT_NODES) {
        let found = join_all(some.iter().map(|member| ask(member))).await;
        if let Some(refusal) = found.into_iter().flatten().next() {
            return Err(refusal);
        }
    }
    Ok(())
}
