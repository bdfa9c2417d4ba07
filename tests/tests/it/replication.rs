//! Replication tests: attach, disconnect, promotion. This file contains the shared helpers.

mod failover;
mod fence;
mod lag;
mod offsets;
mod parting;
mod role;
mod stream;
mod takeover;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use tidemark_server::config::Config;
use tidemark_tests::{TestServer, eventually};

pub(crate) fn info(connection: &mut redis::Connection, field: &str) -> Option<String> {
    let text: String = redis::cmd("INFO").arg("replication").query(connection).ok()?;
    let prefix = format!("{field}:");
    text.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
}

pub(crate) fn number(server: &TestServer, field: &str) -> u64 {
    let client = redis::Client::open(server.url()).unwrap();
    let Ok(mut connection) = client.get_connection() else { return 0 };
    info(&mut connection, field).and_then(|n| n.parse().ok()).unwrap_or(0)
}

pub(crate) fn follow(replica: &TestServer, master: &TestServer) {
    follow_port(replica, master.port());
}

pub(crate) fn follow_port(replica: &TestServer, port: u16) {
    redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(port)
        .query::<()>(&mut replica.connection())
        .unwrap();
}

/// Promotes a replica while its old master keeps running: the function takes the link down first,
/// so that the old master does not step down.
pub(crate) fn detach(replica: &TestServer) {
    for to in [["127.0.0.1", "1"], ["NO", "ONE"]] {
        redis::cmd("REPLICAOF").arg(&to).query::<()>(&mut replica.connection()).unwrap();
    }
}

/// Waits until the replica has everything that the master has synced.
pub(crate) fn wait_for_sync(master: &TestServer, replica: &TestServer) {
    eventually("the replica has caught up", || {
        let link = redis::Client::open(replica.url()).unwrap().get_connection().ok();
        let up = link.and_then(|mut c| info(&mut c, "master_link_status")).as_deref() == Some("up");
        // After a promotion the node may not be a master yet.
        let synced = redis::cmd("WAITAOF")
            .arg(1)
            .arg(0)
            .arg(5000)
            .query::<[u64; 2]>(&mut master.connection());
        let synced = synced.is_ok_and(|done| done[0] == 1);
        up && synced && number(master, "master_repl_offset") == number(replica, "slave_repl_offset")
    });
}

fn small(config: &mut Config) {
    config.counter[0].rows_per_table = 1000;
    config.durability.snapshot_every_s = 0;
}

fn likes(server: &TestServer, ids: std::ops::Range<u64>) -> Vec<Option<i64>> {
    let mut pipe = redis::pipe();
    ids.for_each(|id| {
        pipe.hget(format!("post:{id}"), "like");
    });
    pipe.query(&mut server.connection()).unwrap()
}

/// Proxy to a server. After a number of bytes from the server, the proxy stops forwarding but keeps
/// its connections open.
struct Relay {
    port: u16,
    left: Arc<AtomicI64>,
}

fn relay(server: u16) -> Relay {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Relay {
        port: listener.local_addr().unwrap().port(),
        left: Arc::new(AtomicI64::new(i64::MAX)),
    };
    let left = relay.left.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
            for (from, to, costs) in [(&client, &server, 0), (&server, &client, 1)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let left = left.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 1024];
                    loop {
                        let read = from.read(&mut buffer).unwrap_or(0);
                        while left.load(SeqCst) <= 0 {
                            std::thread::sleep(std::time::Duration::from_millis(5));
                        }
                        left.fetch_sub(read as i64 * costs, SeqCst);
                        if read == 0 || to.write_all(&buffer[..read]).is_err() {
                            let _ = to.shutdown(std::net::Shutdown::Both);
                            return;
                        }
                    }
                });
            }
        }
    });
    relay
}
