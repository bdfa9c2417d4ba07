//! The rows of a counter space as a server has them, or as all masters of its cluster do: each has
//! those of its own slots, and may still have old ones of slots that it has given away.

use crate::import::redis::source::{Remote, bytes};
use crate::import::spaces::{Cluster, Spaces, of_server};
use node::client::connect::ConnectArgs;
use node::cluster::slot::of_id;
use redis_protocol::resp2::types::OwnedFrame;
use std::io;

/// Rows that are listed at once.
const COUNT: &[u8] = b"1000";

/// A row, with its counters in the order of the space.
pub(crate) type Row = (u64, Vec<i64>);

/// See the top of the file.
pub(crate) struct AllRows {
    servers: Vec<Remote>,
    /// By slot, which of the servers has its rows; empty where one has all.
    masters: Vec<u16>,
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
        let cluster = spaces.cluster.clone();
        let mut all = AllRows {
            servers: vec![remote],
            masters: cluster.masters_of_slots(),
            connect: connect.clone(),
            cluster,
        };
        if !all.masters.is_empty() {
            let open = |to: &ConnectArgs| Remote::open(to).map_err(|error| of_server(to, error));
            let servers = all.cluster.servers(connect);
            all.servers = servers.iter().map(open).collect::<io::Result<_>>()?;
        }
        Ok((all, spaces))
    }

    /// Some rows of a space, and the next cursor; `None` behind the last.
    pub(crate) fn page(
        &mut self,
        space: &str,
        cursor: Cursor,
    ) -> io::Result<(Vec<Row>, Option<Cursor>)> {
        let Cursor { server: number, at } = cursor;
        let Some(server) = self.servers.get_mut(number) else { return Ok((Vec::new(), None)) };
        let request: [&[u8]; 5] = [b"CNT.SCAN", space.as_bytes(), &at, b"COUNT", COUNT];
        let (at, mut rows) = scanned(server.ask(&request)?).ok_or_else(strange)?;
        rows.retain(|(id, _)| {
            let master = self.masters.get(usize::from(of_id(*id)));
            master.is_none_or(|master| usize::from(*master) == number)
        });
        let next = match &at[..] {
            b"0" => Cursor::of(number + 1),
            _ => Cursor { server: number, at },
        };
        Ok((rows, Some(next).filter(|next| next.server < self.servers.len())))
    }

    /// These rows; an id without a row has none.
    pub(crate) fn get(&mut self, space: &str, ids: &[u64]) -> io::Result<Vec<Row>> {
        let mut request = vec![b"CNT.GET".to_vec(), space.as_bytes().to_vec()];
        request.extend(ids.iter().map(|id| id.to_string().into_bytes()));
        let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        // Any of them answers for ids of all.
        let Some(server) = self.servers.first_mut() else { return Err(strange()) };
        let OwnedFrame::Array(all) = server.ask(&request)? else { return Err(strange()) };
        let mut rows = Vec::with_capacity(all.len());
        for (id, row) in ids.iter().copied().zip(all) {
            match row {
                OwnedFrame::Array(values) => {
                    let values = values.into_iter().map(number).collect::<Option<_>>();
                    rows.push((id, values.ok_or_else(strange)?));
                }
                // Whether there is one is not known.
                OwnedFrame::Error(reason) => return Err(io::Error::other(reason)),
                _ => {}
            }
        }
        Ok(rows)
    }

    /// Whether slots have other masters by now, so that a list may lack some of their rows.
    pub(crate) fn have_moved(&self) -> io::Result<bool> {
        let (_, spaces) = Spaces::open(&self.connect)?;
        Ok(!spaces.cluster.is_same(&self.cluster))
    }
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server answers what it should not")
}

fn number(value: OwnedFrame) -> Option<i64> {
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
        Some((id, all.map(number).collect::<Option<_>>()?))
    };
    Some((bytes(parts.pop()?)?, rows.into_iter().map(row).collect::<Option<_>>()?))
}
