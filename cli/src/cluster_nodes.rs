//! Parser of CLUSTER NODES replies, from Redis or Tidemark.

/// A line of the reply: `id host:port@bus,name flags master ping pong epoch state slots...`.
pub(crate) struct Node<'a> {
    pub(crate) id: &'a str,
    /// `host:port`
    pub(crate) address: &'a str,
    flags: &'a str,
    pub(crate) master: &'a str,
    pub(crate) slots: Vec<&'a str>,
}

impl Node<'_> {
    pub(crate) fn is_master(&self) -> bool {
        self.has("master")
    }

    /// Returns whether this is the node that sent the reply.
    pub(crate) fn is_myself(&self) -> bool {
        self.has("myself")
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|one| one == flag)
    }
}

/// Parses all lines. Skips malformed lines.
pub(crate) fn nodes(text: &str) -> impl Iterator<Item = Node<'_>> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [id, address, flags, master, _, _, _, _, slots @ ..] = &words[..] else { return None };
        let address = address.split('@').next().unwrap_or_default();
        Some(Node { id, address, flags, master, slots: slots.to_vec() })
    })
}

/// Converts a CLUSTER NODES reply to the text of a topology.
pub(crate) fn text_of(answer: &str) -> String {
    let line = |node: Node<'_>| {
        let (host, port) = node.address.rsplit_once(':')?;
        let role = if node.is_master() { "master" } else { "slave" };
        let Node { id, master, slots, .. } = node;
        Some(format!("{id} {host} {port} {role} {master} {}\n", slots.join(" ")))
    };
    nodes(answer).filter_map(line).collect()
}
