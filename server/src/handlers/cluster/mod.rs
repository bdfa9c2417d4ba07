//! Replication, roles and cluster topology, as clients ask for them.

pub(crate) mod replication;
pub(crate) mod topology;
