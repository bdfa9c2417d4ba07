//! Requests to the nodes of a cluster, over the network or in a simulation.

use crate::cluster_nodes::text_of;
use client::{ConnectArgs, Link, Reply, info_field, within};
use node::cluster::{Member, Topology};
use std::time::Duration;

/// Timeout of a reply from a node.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Network through which a command reaches the nodes of a cluster.
pub(super) trait Net {
    type Conn;

    fn first(&self) -> String;

    async fn open(&self, address: &str) -> Result<Self::Conn, String>;

    /// Sends a request and returns its reply. An error reply becomes `Err`.
    async fn ask(&self, conn: &mut Self::Conn, words: &[&str]) -> Result<Reply, String>;

    /// Shows progress to the operator.
    fn print_progress(&self, text: &str);
}

/// The real network, with the login and TLS options of the command line.
impl Net for ConnectArgs {
    type Conn = Link;

    fn first(&self) -> String {
        self.address()
    }

    async fn open(&self, address: &str) -> Result<Link, String> {
        let parts = address.rsplit_once(':');
        let (host, port) = parts
            .and_then(|(host, port)| Some((host, port.parse().ok()?)))
            .ok_or_else(|| format!("'{address}': expected HOST:PORT"))?;
        let to = ConnectArgs { host: host.to_owned(), port, ..self.clone() };
        let tls = to.tls().map_err(|e| e.to_string())?;
        to.open(tls.as_ref()).await.map_err(|e| format!("{address}: {e}"))
    }

    async fn ask(&self, conn: &mut Link, words: &[&str]) -> Result<Reply, String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        within(REPLY_TIMEOUT, conn.ask(&words)).await.map_err(|e| e.to_string())
    }

    /// Progress goes to standard error, because scripts read standard output.
    fn print_progress(&self, text: &str) {
        eprintln!("{text}");
    }
}

pub(super) struct NodeClient<'n, N: Net> {
    pub(super) address: String,
    net: &'n N,
    conn: N::Conn,
}

impl<N: Net> NodeClient<'_, N> {
    pub(super) async fn open<'n>(net: &'n N, address: &str) -> Result<NodeClient<'n, N>, String> {
        Ok(NodeClient { address: address.to_owned(), net, conn: net.open(address).await? })
    }

    pub(super) async fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let reply = self.net.ask(&mut self.conn, words).await;
        reply.map_err(|e| format!("{}: {e}", self.address))
    }

    pub(super) async fn text(&mut self, words: &[&str]) -> Result<String, String> {
        match self.ask(words).await? {
            Reply::BulkString(text) | Reply::SimpleString(text) => {
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            Reply::Integer(number) => Ok(number.to_string()),
            other => Err(format!("{}: unexpected reply: {other:?}", self.address)),
        }
    }

    /// Returns the node's topology, or `None` if it has none yet.
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

    /// Returns whether any existence space contains pairs. DBSIZE counts only rows.
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

    pub(super) async fn info(&mut self, section: &str, name: &str) -> Result<String, String> {
        let info = self.text(&["INFO", section]).await?;
        Ok(info_field(&info, name).unwrap_or_default().to_owned())
    }
}

/// Returns the newest topology among the nodes of the cluster. Fails if two nodes have different
/// topologies with the same version: only an operator can decide which one is valid.
pub(super) async fn newest<N: Net>(net: &N) -> Result<Topology, String> {
    let mut first = NodeClient::open(net, &net.first()).await?;
    let none = || format!("{} has no topology yet", net.first());
    let mut newest = first.topology().await?.ok_or_else(none)?;
    let mut from = net.first();
    for address in addresses(&newest) {
        // Skip an unreachable node.
        let Ok(mut node) = NodeClient::open(net, &address).await else { continue };
        let Ok(Some(other)) = node.topology().await else { continue };
        if other.version == newest.version && !other.agrees_with(&newest) {
            return Err(format!(
                "{from} and {address} have different topologies with version {}: find out which \
                 one is correct, and send it to all nodes with the next version (CLUSTERX \
                 SETNODES)",
                newest.version
            ));
        }
        if other.version > newest.version {
            (newest, from) = (other, address);
        }
    }
    Ok(newest)
}

pub(super) fn addresses(topology: &Topology) -> Vec<String> {
    topology.members().iter().map(Member::address).collect()
}
