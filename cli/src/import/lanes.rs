//! The import's connections: some to the server or, in a cluster, to each of its masters, which
//! take the rows of their own slots only.

use super::spaces::{Places, Spaces, of_server};
use node::client::connect::{ConnectArgs, Link};
use std::io;

/// Connections, and which of them has the commands of an id.
pub(super) struct Lanes {
    pub(super) links: Vec<Link>,
    pub(super) route: Route,
}

/// Which of the connections has the commands of an id: always the same one, so that they are
/// executed in the order of their lines.
pub(super) struct Route {
    /// Connections to one server; those to another one follow.
    each: usize,
    places: Places,
}

impl Lanes {
    /// Opens so many connections to each server, and tells what the first one has.
    pub(super) async fn open(connect: &ConnectArgs, each: u16) -> io::Result<(Lanes, Spaces)> {
        let tls = connect.tls()?;
        let mut first = connect.open(tls.as_ref()).await?;
        let spaces = Spaces::ask(&mut first).await?;
        let mut links = Vec::new();
        for server in spaces.cluster.servers(connect) {
            for _ in 0..each {
                let link = server.open(tls.as_ref()).await;
                links.push(link.map_err(|error| of_server(&server, error))?);
            }
        }
        let route = Route { each: usize::from(each), places: spaces.cluster.places() };
        Ok((Lanes { links, route }, spaces))
    }
}

impl Route {
    /// The number of the connection.
    pub(super) fn of(&self, id: u64) -> usize {
        // Ids of one source often have their low bits in common.
        let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        self.places.of(id) * self.each + mixed as usize % self.each
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::cluster::slot::of_id;

    #[test]
    fn an_id_goes_to_the_master_of_its_slot_by_one_connection() {
        let masters = (0..16_384).map(|slot| u16::from(slot > 8191)).collect();
        let route = Route { each: 3, places: Places(masters) };
        let mut used = [0; 6];
        for id in (0..3000).chain(u64::MAX - 10..=u64::MAX) {
            let lane = route.of(id);
            assert_eq!(lane / 3, usize::from(of_id(id) > 8191), "{id}");
            used[lane] += 1;
        }
        assert!(used.iter().all(|count| *count > 300), "{used:?}");
        let alone = Route { each: 3, places: Places::default() };
        assert!((0..3000).all(|id| alone.of(id) < 3));
    }
}
