//! What a master that may have been replaced asks the other nodes before it believes a topology.

use crate::client::connect::within;
use crate::cluster::topology::VERSION;
use crate::cluster::{Member, Topology};
use crate::command::error::{Refusal, refuse};
use crate::command::spec::Outcome;
use futures_util::future::join_all;
use std::io;
use std::time::Duration;

/// How long other nodes are asked.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many of them together: each is sent all of the text.
const AT_ONCE: usize = 64;
/// How a node answers that may know better, and cannot say so.
const MUTE: [&str; 4] = ["LOADING", "NOAUTH", "NOPERM", "WRONGPASS"];

/// Whether a node knows better, and is not only unable to say.
pub fn is_final(refusal: &Refusal) -> bool {
    String::from_utf8_lossy(refusal.text()).contains(VERSION)
}

/// Refuses a topology that another of its nodes would refuse: perhaps it is of before this master
/// was replaced, and was long on its way; then others know of a later one, or of another of this
/// version. Those that cannot be reached do not count; one that answers, and has no data yet or
/// does not let this node in, could know better, too. `check` sends it to one of them, which is to
/// say whether it would take it (`CLUSTERX SETNODES ... CHECK`).
pub async fn confirm(next: &Topology, check: impl AsyncFn(&Member) -> io::Result<()>) -> Outcome {
    let others: Vec<&Member> = next.members().iter().filter(|it| it.id != next.own_id).collect();
    let ask = async |member: &Member| {
        let error = within(PATIENCE, check(member)).await.err()?;
        let (address, version, text) = (member.address(), next.version, error.to_string());
        if text.contains(VERSION) {
            return Some(refuse!(
                "ERR {VERSION}: {address} knows a later topology, or another {version} (FORCE: \
                 take this one all the same)"
            ));
        }
        let is_mute = error.kind() == io::ErrorKind::PermissionDenied
            || MUTE.iter().any(|word| text.starts_with(word));
        is_mute.then(|| {
            refuse!(
                "ERR {address} cannot be asked whether it knows a topology later than {version} \
                 ({text}): try again, or FORCE"
            )
        })
    };
    for some in others.chunks(AT_ONCE) {
        let found = join_all(some.iter().map(|member| ask(member))).await;
        if let Some(refusal) = found.into_iter().flatten().next() {
            return Err(refusal);
        }
    }
    Ok(())
}
