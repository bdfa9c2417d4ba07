//! What a master that may have been replaced asks the other nodes before it believes a topology.

use crate::client::connect::within;
use crate::cluster::topology::VERSION;
use crate::cluster::{Member, Topology};
use crate::command::error::refuse;
use crate::command::spec::Outcome;
use futures_util::future::join_all;
use std::io;
use std::time::Duration;

/// How long other nodes are asked.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many of them together: each is sent all of the text.
const AT_ONCE: usize = 64;

/// Refuses a topology that another of its nodes would refuse: perhaps it is of before this master
/// was replaced, and was long on its way; then others know of a later one, or of another of this
/// version. Only those that can be reached count. `check` sends it to one of them, which is to say
/// whether it would take it (`CLUSTERX SETNODES ... CHECK`).
pub async fn confirm(next: &Topology, check: impl AsyncFn(&Member) -> io::Result<()>) -> Outcome {
    let others: Vec<&Member> = next.members().iter().filter(|it| it.id != next.own_id).collect();
    let ask = async |member: &Member| {
        let error = within(PATIENCE, check(member)).await.err()?.to_string();
        error.contains(VERSION).then(|| member.address())
    };
    for some in others.chunks(AT_ONCE) {
        let found = join_all(some.iter().map(|member| ask(member))).await;
        if let Some(address) = found.into_iter().flatten().next() {
            return Err(refuse!(
                "ERR {VERSION}: {address} knows a later topology, or another {} (FORCE: take this \
                 one all the same)",
                next.version
            ));
        }
    }
    Ok(())
}
