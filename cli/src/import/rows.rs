//! The rows of a counter space as a server has them, or as all masters of its cluster do: each has
//! those of its own slots, and may still have old ones of slots that it has given away.

use crate::import::redis::source::{Remote, bytes};
use crate::import::spaces::{Cluster, Places, Spaces, of_server};
use node::client::connect::{ConnectArgs, refused};
use redis_protocol::resp2::types::OwnedFrame;
use std::collections::{BTreeSet, HashMap};
use std::io;

/// Rows that are listed at once.
const COUNT: &[u8] = b"1000";

/// A row, with its counters in the order of the space.
pub(crate) type Row = (u64, Vec<i64>);

/// See the top of the file.
pub(crate) struct AllRows {
    servers: Vec<(ConnectArgs, Remote)>,
    places: Places,
    /// The counters of each space, in the order of its rows, which is the same at all servers.
    fields: HashMap<String, Vec<String>>,
    connect: ConnectArgs,
    cluster: Cluster,
}

/// Where a list goes on: servers have their rows one after the other.
#[derive(Debug)]
pub(crate) struct Cursor {
    server: usize,
    /// Of CNT.SCAN.
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
    /// Connects to all that have rows, and tells what the first one has.
    pub(crate) fn open(connect: &ConnectArgs) -> io::Result<(AllRows, Spaces)> {
        let (remote, spaces) = Spaces::open(connect)?;
        let servers = match spaces.cluster {
            Cluster::Part(_) => {
                let servers = spaces.cluster.servers(connect).into_iter();
                servers.map(|to| AllRows::open_one(to, &spaces)).collect::<io::Result<_>>()?
            }
            Cluster::Whole | Cluster::Unknown => vec![(connect.clone(), remote)],
        };
        let (places, fields) = (spaces.cluster.places(), spaces.fields.clone());
        let (connect, cluster) = (connect.clone(), spaces.cluster.clone());
        Ok((AllRows { servers, places, fields, connect, cluster }, spaces))
    }

    /// Rows of masters with other counters would be taken for what they are not.
    fn open_one(to: ConnectArgs, first: &Spaces) -> io::Result<(ConnectArgs, Remote)> {
        let open = || {
            let mut remote = Remote::open(&to)?;
            let own = remote.run(Spaces::ask)?;
            Ok((remote, own))
        };
        let (remote, own) = open().map_err(|error| of_server(&to, error))?;
        if own.fields != first.fields {
            return Err(refused(format!(
                "{} has other counters than other masters (tidemark cluster status)",
                to.address()
            )));
        }
        Ok((to, remote))
    }

    /// Some rows of a space, and the next cursor; `None` behind the last.
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
        let reply = server.ask(&request).map_err(|error| of_server(to, error))?;
        let (at, mut rows) = scanned(reply).ok_or_else(strange)?;
        rows.retain(|(id, _)| self.places.of(*id) == number);
        let next = match &at[..] {
            b"0" => Cursor::of(number + 1),
            _ => Cursor { server: number, at },
        };
        self.check(space, &rows)?;
        Ok((rows, Some(next).filter(|next| next.server < self.servers.len())))
    }

    /// These rows; an id without a row has none, nor has one whose row cannot be read.
    pub(crate) fn get(&mut self, space: &str, ids: &[u64]) -> io::Result<Vec<Row>> {
        let mut rows = Vec::with_capacity(ids.len());
        for (number, (to, server)) in self.servers.iter_mut().enumerate() {
            let is_there = |id: &u64| self.places.of(*id) == number;
            let ids: Vec<u64> = ids.iter().copied().filter(is_there).collect();
            if ids.is_empty() {
                continue;
            }
            let mut request = vec![b"CNT.GET".to_vec(), space.as_bytes().to_vec()];
            request.extend(ids.iter().map(|id| id.to_string().into_bytes()));
            let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
            let reply = server.ask(&request).map_err(|error| of_server(to, error))?;
            let OwnedFrame::Array(all) = reply else { return Err(strange()) };
            for (id, row) in ids.into_iter().zip(all) {
                match row {
                    OwnedFrame::Array(values) => {
                        let values = values.into_iter().map(number_of).collect::<Option<_>>();
                        rows.push((id, values.ok_or_else(strange)?));
                    }
                    // Whether there is one is not known.
                    OwnedFrame::Error(reason) if is_elsewhere(&reason) => {
                        return Err(of_server(to, io::Error::other(reason)));
                    }
                    _ => {}
                }
            }
        }
        self.check(space, &rows)?;
        Ok(rows)
    }

    /// A schema may change while rows are listed.
    fn check(&self, space: &str, rows: &[Row]) -> io::Result<()> {
        let Some(fields) = self.fields.get(space) else { return Ok(()) };
        if rows.iter().all(|(_, values)| values.len() == fields.len()) {
            return Ok(());
        }
        Err(io::Error::other(format!("the counters of '{space}' have changed meanwhile")))
    }

    /// Fails if slots have other masters by now: a list may lack some of their rows.
    pub(crate) fn check_slots(&self) -> io::Result<()> {
        let (_, spaces) = Spaces::open(&self.connect)?;
        match spaces.cluster.is_same(&self.cluster) {
            true => Ok(()),
            false => Err(io::Error::other(
                "slots of the cluster have got other masters meanwhile, so rows may have been \
                 passed over",
            )),
        }
    }

    /// Which data sets they are: the same through restarts, failovers and splits. Empty where INFO
    /// is forbidden.
    pub(crate) fn lineage(&mut self) -> String {
        let mut all = BTreeSet::new();
        for (_, server) in &mut self.servers {
            let info = server.ask(&[b"INFO", b"replication"]).ok().and_then(bytes);
            let info = String::from_utf8_lossy(&info.unwrap_or_default()).into_owned();
            let id = info.lines().find_map(|line| line.strip_prefix("master_replid:"));
            let Some(id) = id else { return String::new() };
            // Behind it is the term.
            all.insert(id.chars().take(32).collect::<String>());
        }
        all.into_iter().collect::<Vec<_>>().join(",")
    }
}

/// Whether a node says that it does not answer for an id now.
fn is_elsewhere(reason: &str) -> bool {
    ["MOVED ", "CLUSTERDOWN "].iter().any(|start| reason.starts_with(start))
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server answers what it should not")
}

fn number_of(value: OwnedFrame) -> Option<i64> {
    match value {
        OwnedFrame::Integer(value) => Some(value),
        _ => None,
    }
}

/// The next cursor, and the rows of a reply to CNT.SCAN.
fn scanned(reply: OwnedFrame) -> Option<(Vec<u8>, Vec<Row>)> {
    let OwnedFrame::Array(mut parts) = reply else { return None };
    let OwnedFrame::Array(rows) = parts.pop()? else { return None };
    let row = |row: OwnedFrame| {
        let OwnedFrame::Array(all) = row else { return None };
        let mut all = all.into_iter();
        let id = resp::natural(&bytes(all.next()?)?)?;
        Some((id, all.map(number_of).collect::<Option<_>>()?))
    };
    Some((bytes(parts.pop()?)?, rows.into_iter().map(row).collect::<Option<_>>()?))
}
