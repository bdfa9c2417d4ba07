//! CLUSTERX HOLD: one command at a time changes a cluster.

use super::growth::{LOOK_EVERY, random_id};
use super::remote::{Net, Remote};
use node::cluster::{Member, Topology};
use std::time::Duration;
use tokio::time::Instant;

/// How long it lasts, how often it is renewed, and how long another command's is waited for.
const HOLD: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(1);
const HELD: Duration = Duration::from_secs(15);

/// Keeps other commands from changing the cluster until it is released, or this one is killed and
/// its time is over.
pub(super) struct Hold<'n, N: Net> {
    net: &'n N,
    token: String,
    masters: Vec<String>,
    renewed: Instant,
}

impl<N: Net> Hold<'_, N> {
    /// All masters are asked in the order of their ids, so of two commands one gets all.
    pub(super) async fn begin<'n>(net: &'n N, topology: &Topology) -> Result<Hold<'n, N>, String> {
        let mut masters: Vec<&Member> = topology.masters().collect();
        masters.sort_unstable_by_key(|member| &member.id);
        let masters = masters.into_iter().map(Member::address).collect();
        let mut hold = Hold { net, token: random_id(), masters, renewed: Instant::now() };
        let began = Instant::now();
        loop {
            match hold.ask(HOLD).await {
                Err(why) if why.contains("another command") && began.elapsed() < HELD => {
                    hold.release().await;
                    tokio::time::sleep(LOOK_EVERY).await;
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
            let mut node = Remote::open(self.net, address).await?;
            let ms = time.as_millis().to_string();
            node.ask(&["CLUSTERX", "HOLD", &self.token, &ms]).await?;
        }
        Ok(())
    }

    pub(super) async fn renew(&mut self) -> Result<(), String> {
        if self.renewed.elapsed() < RENEW_EVERY { Ok(()) } else { self.ask(HOLD).await }
    }

    /// If a master does not hear of it, it knows when the time is over.
    pub(super) async fn release(&mut self) {
        let _ = self.ask(Duration::ZERO).await;
    }
}
