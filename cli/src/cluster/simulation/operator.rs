//! Simulated operators: they split and move shards with the real command.

use super::world::killed;
use super::{REPLY_TIMEOUT, World, address, number_of};
use crate::cluster::growth::SlotMoveArgs;
use crate::cluster::growth::{SlotSelection, move_slots};
use crate::cluster::remote::Net;
use client::{Reply, within};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::spawn_local;
use tokio::time::sleep;

/// Simulated network as seen from outside the cluster.
pub(super) struct ExternalNetwork {
    pub(super) world: Rc<World>,
    pub(super) first: usize,
}

impl Net for ExternalNetwork {
    type Conn = usize;

    fn first(&self) -> String {
        address(self.first)
    }

    async fn open(&self, address: &str) -> Result<usize, String> {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let number = port.and_then(number_of).ok_or_else(|| format!("no node {address}"))?;
        sleep(self.world.delay()).await;
        match self.world.process(number) {
            Some(_) => Ok(number),
            None => Err(format!("{address}: Connection refused")),
        }
    }

    async fn ask(&self, conn: &mut usize, words: &[&str]) -> Result<Reply, String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let asked =
            async { self.world.request(None, *conn, words).await.map_err(io::Error::other) };
        within(REPLY_TIMEOUT, asked).await.map_err(|e| e.to_string())
    }

    fn print_progress(&self, text: &str) {
        self.world.tell(|| text.to_owned());
    }
}

/// Substrings of errors after which the operator repeats the command.
const RETRYABLE_ERRORS: [&str; 7] =
    ["refused", "closed", "answer", "timed out", "again", "retry", "not"];

/// Substring of errors that a retry does not resolve, because a node has the wrong role.
const FINAL: &str = "is not a ";

/// Runs several commands, each repeatedly until it succeeds.
pub(super) async fn operate(world: Rc<World>) {
    while !world.calm.get() {
        sleep(Duration::from_millis(world.draw(0..500))).await;
        let Some((from, to)) = world.choose() else { continue };
        let is_move = world.chance(3);
        for _ in 0..15 {
            let first = world.draw(0..4) as usize;
            let given = spawn_local(give(
                ExternalNetwork { world: world.clone(), first },
                from,
                to,
                is_move,
            ));
            if !world.calm.get() && world.chance(3) {
                let (killer, later) = (given.abort_handle(), world.draw(0..1_500));
                spawn_local(async move {
                    sleep(Duration::from_millis(later)).await;
                    killer.abort();
                });
            }
            let ended = given.await;
            world.tell(|| format!("{from} to {to}, move: {is_move}: {ended:?}"));
            match ended {
                Err(ended) => {
                    killed(ended, "");
                    world.sim_counts.borrow_mut().killed_commands += 1;
                }
                Ok(Ok(_)) => {
                    world.sim_counts.borrow_mut().done += 1;
                    break;
                }
                Ok(Err(why)) => {
                    world.sim_counts.borrow_mut().failed += 1;
                    // Any other error means that another command has changed the cluster.
                    if !RETRYABLE_ERRORS.iter().any(|word| why.contains(word))
                        || why.contains(FINAL)
                    {
                        break;
                    }
                }
            }
            sleep(Duration::from_millis(world.draw(1..600))).await;
        }
    }
}

async fn give(
    net: ExternalNetwork,
    from: usize,
    to: usize,
    is_move: bool,
) -> Result<String, String> {
    let nodes =
        SlotMoveArgs { from: address(from), to_node: address(to), plan: false, timeout: 20 };
    move_slots(
        &net,
        &nodes,
        if is_move { SlotSelection::Shard } else { SlotSelection::Slots(None) },
    )
    .await
}
