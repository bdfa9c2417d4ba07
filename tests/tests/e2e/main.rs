//! End-to-end tests: a real server on a real socket. One binary, a module per topic.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

mod acl;
mod beside_redis;
mod binary;
mod bounds;
mod channels;
mod client_memory;
mod cold;
mod cold_disk;
mod cold_pairs;
mod commands;
mod compatibility;
mod config;
mod connections;
mod exact;
mod full_sync;
mod gate;
mod golden;
mod hostile;
mod import;
mod manners;
mod merge;
mod model;
mod observe;
mod page;
mod real_data;
mod replication;
mod restart;
mod schema;
mod scripts;
mod stock_clients;
mod strays;
mod tables;
mod tls;
mod transactions;
mod weibo;
