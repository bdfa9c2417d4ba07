//! CLUSTERX HOLD: a lock that ensures that only one command at a time changes a cluster.

use super::remote::{Net, NodeClient};
use node::cluster::topology::ID_BYTES;
use node::cluster::{Member, Topology};
use std::time::Duration;
use tokio::time::Instant;

/// Lifetime of a hold without renewal.
const HOLD: Duration = Duration::from_secs(5);
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to wait for the hold of another command.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// Interval between attempts to acquire the hold or to hand over slots, and between progress checks
/// of a node that copies rows.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn random_id() -> String {
    let id = format!("{:032x}{:032x}", fastrand::u128(..), fastrand::u128(..));
    id[..ID_BYTES].to_owned()
}

/// An acquired lock. No other command changes the cluster until the lock is released or expires.
pub(super) struct Hold<'n, N: Net> {
    net: &'n N,
    token: String,
    masters: Vec<String>,
    renewed: Instant,
}

impl<N: Net> Hold<'_, N> {
    /// Acquires the lock on all masters, in id order. The fixed order ensures that one of two
    /// concurrent commands acquires all locks.
    pub(super) async fn begin<'n>(net: &'n N, topology: &Topology) -> Result<Hold<'n, N>, String> {
        let mut masters: Vec<&Member> = topology.masters().collect();
        masters.sort_unstable_by_key(|member| &member.id);
        let masters = masters.into_iter().map(Member::address).collect();
        let mut hold = Hold { net, token: random_id(), masters, renewed: Instant::now() };
        let began = Instant::now();
        loop {
            match hold.ask(HOLD).await {
                Err(why) if why.contains("another command") && began.elapsed() < MAX_WAIT => {
                    hold.release().await;
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Err(why) => {
                    hold.release().await;
                    return Err(why);
                }
                Ok(()) => return Ok(hold),
            }
        }
    }

    async fn ask(&mut self, time: Duration) -> Result<(), String> {
        self.renewed = Instant::now();
        for address in &self.masters {
            let mut node = NodeClient::open(self.net, address).await?;
            let ms = time.as_millis().to_string();
            node.ask(&["CLUSTERX", "HOLD", &self.token, &ms]).await?;
        }
        Ok(())
    }

    pub(super) async fn renew(&mut self) -> Result<(), String> {
        if self.renewed.elapsed() < RENEW_INTERVAL { Ok(()) } else { self.ask(HOLD).await }
    }

    /// Releases the lock on all masters. If the request does not reach a master, the lock expires
    /// there.
    pub(super) async fn release(&mut self) {
        let _ = self.ask(Duration::ZERO).await;
    }
}
