//! Reads the rows of a counter space from a server, or from all masters of its cluster. A master
//! lists only the rows of its own slots, but may still hold old rows of slots that it has given
//! away.

use crate::import::spaces::{Cluster, ServerBySlot, Spaces, with_server_address};
use client::{Client, ConnectArgs, Reply, info_field, refused};
use std::collections::{BTreeSet, HashMap};
use std::io;

const COUNT: &[u8] = b"1000";

/// Id of a row, and its counters in the order of the space.
pub(crate) type Row = (u64, Vec<i64>);

pub(crate) struct AllRows {
    servers: Vec<(ConnectArgs, Client)>,
    server_by_slot: ServerBySlot,
    /// Counters of each space in the order of its rows, equal on all servers.
    fields: HashMap<String, Vec<String>>,
    connect: ConnectArgs,
    cluster: Cluster,
}

/// Position in the listing of rows. The servers are listed one after another.
#[derive(Debug)]
pub(crate) struct Cursor {
    server: usize,
    at: Vec<u8>,
}

impl Cursor {
    fn of(server: usize) -> Cursor {
        Cursor { server, at: b"0".to_vec() }
    }
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor::of(0)
    }
}

impl AllRows {
    /// Connects to all servers that have rows. Also returns the spaces of the first server.
    pub(crate) fn open(connect: &ConnectArgs) -> io::Result<(AllRows, Spaces)> {
        let (remote, spaces) = Spaces::open(connect)?;
        let servers = match spaces.cluster {
            Cluster::Part(_) => {
                let servers = spaces.cluster.servers(connect).into_iter();
                servers.map(|to| AllRows::open_one(to, &spaces)).collect::<io::Result<_>>()?
            }
            Cluster::Whole | Cluster::Unknown => vec![(connect.clone(), remote)],
        };
        let (server_by_slot, fields) = (spaces.cluster.server_by_slot(), spaces.fields.clone());
        let (connect, cluster) = (connect.clone(), spaces.cluster.clone());
        Ok((AllRows { servers, server_by_slot, fields, connect, cluster }, spaces))
    }

    /// Connects to a master. Fails if the counters of this master differ from those of the first
    /// master, because its rows would be misread.
    fn open_one(to: ConnectArgs, first: &Spaces) -> io::Result<(ConnectArgs, Client)> {
        let open = || {
            let mut remote = Client::open(&to)?;
            let own = remote.run(Spaces::ask)?;
            Ok((remote, own))
        };
        let (remote, own) = open().map_err(|error| with_server_address(&to, error))?;
        if own.fields != first.fields {
            return Err(refused(format!(
                "{} has different counters from the other masters (see tidemark cluster status)",
                to.address()
            )));
        }
        Ok((to, remote))
    }

    /// Returns some rows of a space and the next cursor, or `None` at the end.
    pub(crate) fn page(
        &mut self,
        space: &str,
        cursor: Cursor,
    ) -> io::Result<(Vec<Row>, Option<Cursor>)> {
        let Cursor { server: number, at } = cursor;
        let Some((to, server)) = self.servers.get_mut(number) else {
            return Ok((Vec::new(), None));
        };
        let request: [&[u8]; 5] = [b"CNT.SCAN", space.as_bytes(), &at, b"COUNT", COUNT];
        let reply = server.ask(&request).map_err(|error| with_server_address(to, error))?;
        let (at, mut rows) = scanned(reply).ok_or_else(unexpected_reply)?;
        rows.retain(|(id, _)| self.server_by_slot.of(*id) == number);
        let next = match &at[..] {
            b"0" => Cursor::of(number + 1),
            _ => Cursor { server: number, at },
        };
        self.check(space, &rows)?;
        Ok((rows, Some(next).filter(|next| next.server < self.servers.len())))
    }

    /// Returns the rows of these ids. Omits ids without a row.
    pub(crate) fn get(&mut self, space: &str, ids: &[u64]) -> io::Result<Vec<Row>> {
        let mut rows = Vec::with_capacity(ids.len());
        for (number, (to, server)) in self.servers.iter_mut().enumerate() {
            let is_there = |id: &u64| self.server_by_slot.of(*id) == number;
            let ids: Vec<u64> = ids.iter().copied().filter(is_there).collect();
            if ids.is_empty() {
                continue;
            }
            let mut request = vec![b"CNT.GET".to_vec(), space.as_bytes().to_vec()];
            request.extend(ids.iter().map(|id| id.to_string().into_bytes()));
            let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
            let reply = server.ask(&request).map_err(|error| with_server_address(to, error))?;
            let Reply::Array(all) = reply else { return Err(unexpected_reply()) };
            for (id, row) in ids.into_iter().zip(all) {
                match row {
                    Reply::Array(values) => {
                        let values = values
                            .into_iter()
                            .map(|value| value.as_integer())
                            .collect::<Option<_>>();
                        rows.push((id, values.ok_or_else(unexpected_reply)?));
                    }
                    // The node does not serve the id, so it is unknown whether the row exists.
                    Reply::Error(reason) if is_slot_error(&reason) => {
                        return Err(with_server_address(to, io::Error::other(reason)));
                    }
                    _ => {}
                }
            }
        }
        self.check(space, &rows)?;
        Ok(rows)
    }

    /// Fails if the number of counters changed during the listing.
    fn check(&self, space: &str, rows: &[Row]) -> io::Result<()> {
        let Some(fields) = self.fields.get(space) else { return Ok(()) };
        if rows.iter().all(|(_, values)| values.len() == fields.len()) {
            return Ok(());
        }
        Err(io::Error::other(format!("the counters of '{space}' have changed during the scan")))
    }

    /// Fails if slots have moved to other masters, because rows may then be missing in the listing.
    pub(crate) fn check_slots(&self) -> io::Result<()> {
        let (_, spaces) = Spaces::open(&self.connect)?;
        match spaces.cluster.is_same(&self.cluster) {
            true => Ok(()),
            false => Err(io::Error::other(
                "slots have moved to other masters during the scan, so some rows may be missing",
            )),
        }
    }

    /// Returns the lineage of the data sets, which survives restarts, failovers and splits. Returns
    /// an empty string without permission for INFO.
    pub(crate) fn lineage(&mut self) -> String {
        let mut all = BTreeSet::new();
        for (_, server) in &mut self.servers {
            let info = server.ask(&[b"INFO", b"replication"]).ok().and_then(Reply::into_text);
            let info = info.unwrap_or_default();
            let Some(id) = info_field(&info, "master_replid") else { return String::new() };
            // The first 32 characters are the lineage; the rest is the term.
            all.insert(id.chars().take(32).collect::<String>());
        }
        all.into_iter().collect::<Vec<_>>().join(",")
    }
}

/// Returns whether the error means that the node does not serve the id.
fn is_slot_error(reason: &str) -> bool {
    ["MOVED ", "CLUSTERDOWN "].iter().any(|start| reason.starts_with(start))
}

fn unexpected_reply() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected reply from the server")
}

/// Parses a reply to CNT.SCAN. Returns the next cursor and the rows.
fn scanned(reply: Reply) -> Option<(Vec<u8>, Vec<Row>)> {
    let Reply::Array(mut parts) = reply else { return None };
    let Reply::Array(rows) = parts.pop()? else { return None };
    let row = |row: Reply| {
        let Reply::Array(all) = row else { return None };
        let mut all = all.into_iter();
        let id = resp::natural(&all.next()?.into_bytes()?)?;
        Some((id, all.map(|value| value.as_integer()).collect::<Option<_>>()?))
    };
    Some((parts.pop()?.into_bytes()?, rows.into_iter().map(row).collect::<Option<_>>()?))
}
