//! Sockets, connections, the request loop, workers, and the in-process transport.

pub(crate) mod connection;
pub(crate) mod in_process;
pub(crate) mod request_loop;
pub(crate) mod workers;
