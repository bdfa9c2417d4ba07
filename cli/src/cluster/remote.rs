//! Nodes of a cluster, as its commands reach them: over the network, or in a simulated one.

use crate::cluster_nodes::text_of;
use node::client::connect::{ConnectArgs, Link, within};
use node::cluster::{Member, Topology};
use redis_protocol::resp2::types::OwnedFrame;
use std::time::Duration;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How nodes are reached.
pub(super) trait Net {
    /// A connection to a node.
    type Conn;

    /// The address of the node that the command was given.
    fn first(&self) -> String;

    /// A connection to `host:port`.
    async fn open(&self, address: &str) -> Result<Self::Conn, String>;

    /// One request and its reply; an error of the node is one here.
    async fn ask(&self, conn: &mut Self::Conn, words: &[&str]) -> Result<OwnedFrame, String>;

    /// Tells people that wait how far it is.
    fn say(&self, text: &str);
}

/// The network. These are options of the command: as which user, and how.
impl Net for ConnectArgs {
    type Conn = Link;

    fn first(&self) -> String {
        self.address()
    }

    async fn open(&self, address: &str) -> Result<Link, String> {
        let parts = address.rsplit_once(':');
        let (host, port) = parts
            .and_then(|(host, port)| Some((host, port.parse().ok()?)))
            .ok_or_else(|| format!("'{address}' is no HOST:PORT"))?;
        let to = ConnectArgs { host: host.to_owned(), port, ..self.clone() };
        let tls = to.tls().map_err(|e| e.to_string())?;
        to.open(tls.as_ref()).await.map_err(|e| format!("{address}: {e}"))
    }

    async fn ask(&self, conn: &mut Link, words: &[&str]) -> Result<OwnedFrame, String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        within(PATIENCE, conn.ask(&words)).await.map_err(|e| e.to_string())
    }

    /// What a script reads is on stdout.
    fn say(&self, text: &str) {
        eprintln!("{text}");
    }
}

/// A node that is reached.
pub(super) struct Remote<'n, N: Net> {
    pub(super) address: String,
    net: &'n N,
    conn: N::Conn,
}

impl<N: Net> Remote<'_, N> {
    pub(super) async fn open<'n>(net: &'n N, address: &str) -> Result<Remote<'n, N>, String> {
        Ok(Remote { address: address.to_owned(), net, conn: net.open(address).await? })
    }

    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<OwnedFrame, String> {
        let reply = self.net.ask(&mut self.conn, words).await;
        reply.map_err(|e| format!("{}: {e}", self.address))
    }

    pub(super) async fn text(&mut self, words: &[&str]) -> Result<String, String> {
        match self.ask(words).await? {
            OwnedFrame::BulkString(text) | OwnedFrame::SimpleString(text) => {
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            OwnedFrame::Integer(number) => Ok(number.to_string()),
            other => Err(format!("{}: an unexpected answer: {other:?}", self.address)),
        }
    }

    /// The topology that it knows. `None`: it has none yet.
    pub(super) async fn topology(&mut self) -> Result<Option<Topology>, String> {
        let version: i64 = self.text(&["CLUSTERX", "VERSION"]).await?.parse().unwrap_or(-1);
        if version < 0 {
            return Ok(None);
        }
        let nodes = self.text(&["CLUSTER", "NODES"]).await?;
        Topology::parse(&text_of(&nodes), version, "")
            .map(Some)
            .map_err(|why| format!("{}: CLUSTER NODES: {why}", self.address))
    }

    /// Whether it has pairs in any existence space. DBSIZE counts rows alone.
    pub(super) async fn has_flags(&mut self) -> Result<bool, String> {
        let info = self.text(&["INFO", "spaces"]).await?;
        let is_some = |line: &str| {
            line.starts_with("existence_")
                && line
                    .split([':', ','])
                    .any(|field| field.strip_prefix("pairs=").is_some_and(|pairs| pairs != "0"))
        };
        Ok(info.lines().any(is_some))
    }

    /// A field of INFO.
    pub(super) async fn info(&mut self, section: &str, name: &str) -> Result<String, String> {
        let info = self.text(&["INFO", section]).await?;
        let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(found.unwrap_or_default().to_owned())
    }
}

/// The newest topology that a node of a cluster knows, asked of all nodes that one names. Two of
/// one version cannot both be right: then no command goes on.
pub(super) async fn newest<N: Net>(net: &N) -> Result<Topology, String> {
    let mut first = Remote::open(net, &net.first()).await?;
    let none = || format!("{}: it knows no topology yet", net.first());
    let mut newest = first.topology().await?.ok_or_else(none)?;
    let mut from = net.first();
    for address in addresses(&newest) {
        // One that is away has nothing to say.
        let Ok(mut node) = Remote::open(net, &address).await else { continue };
        let Ok(Some(other)) = node.topology().await else { continue };
        if other.version == newest.version && !other.agrees_with(&newest) {
            return Err(format!(
                "{from} and {address} know two topologies {}: find out which one is right, and \
                 give it to all nodes under the next version (CLUSTERX SETNODES)",
                newest.version
            ));
        }
        if other.version > newest.version {
            (newest, from) = (other, address);
        }
    }
    Ok(newest)
}

/// Where the nodes of a topology are.
pub(super) fn addresses(topology: &Topology) -> Vec<String> {
    topology.members().iter().map(Member::address).collect()
}
