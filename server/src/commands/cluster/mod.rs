//! Cluster commands: topology, routing, and requests to other nodes.

pub(crate) mod controller;
pub(crate) mod gather;
pub(crate) mod gathering;
pub(crate) mod handover;
pub(crate) mod peers;
pub(crate) mod roles;
pub(crate) mod route;
pub(crate) mod shape;
pub(crate) mod topology;
pub(crate) mod trim;
