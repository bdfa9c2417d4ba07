//! Connections of an import: several to the server, or several to each master of a cluster. A
//! master receives only rows of its own slots.

use super::spaces::{ServerBySlot, Spaces, with_server_address};
use client::{ConnectArgs, Link};
use std::io;

pub(super) struct Lanes {
    pub(super) links: Vec<Link>,
    pub(super) route: Route,
}

/// Maps an id to a connection. All commands of an id use the same connection, which keeps the order
/// of their lines.
pub(super) struct Route {
    /// Number of connections per server. Connections to the same server have adjacent indexes.
    each: usize,
    server_by_slot: ServerBySlot,
}

impl Lanes {
    /// Opens the same number of connections (`each`) to every server. Returns the spaces of the
    /// first server.
    pub(super) async fn open(connect: &ConnectArgs, each: u16) -> io::Result<(Lanes, Spaces)> {
        let tls = connect.tls()?;
        let mut first = connect.open(tls.as_ref()).await?;
        let spaces = Spaces::ask(&mut first).await?;
        let mut links = Vec::new();
        for server in spaces.cluster.servers(connect) {
            for _ in 0..each {
                let link = server.open(tls.as_ref()).await;
                links.push(link.map_err(|error| with_server_address(&server, error))?);
            }
        }
        let route =
            Route { each: usize::from(each), server_by_slot: spaces.cluster.server_by_slot() };
        Ok((Lanes { links, route }, spaces))
    }
}

impl Route {
    pub(super) fn of(&self, id: u64) -> usize {
        // Mix the bits, because ids from the same source often have equal low bits.
        let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.server_by_slot.of(id) * self.each + mixed as usize % self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::cluster::slot::of_id;

    #[test]
    fn an_id_goes_to_the_master_of_its_slot_by_one_connection() {
        let masters = (0..16_384).map(|slot| u16::from(slot > 8191)).collect();
        let route = Route { each: 3, server_by_slot: ServerBySlot(masters) };
        let mut used = [0; 6];
        for id in (0..3000).chain(u64::MAX - 10..=u64::MAX) {
            let lane = route.of(id);
            assert_eq!(lane / 3, usize::from(of_id(id) > 8191), "{id}");
            used[lane] += 1;
        }
        assert!(used.iter().all(|count| *count > 300), "{used:?}");
        let alone = Route { each: 3, server_by_slot: ServerBySlot::default() };
        assert!((0..3000).all(|id| alone.of(id) < 3));
    }
}
