//! A server without cluster mode appears as a cluster of one shard to cluster clients, and as a
//! standalone server to other clients.

use crate::replication::{follow, wait_for_sync};
use tidemark_tests::{Raw, TestServer, eventually};

fn text(raw: &mut Raw, words: &[&str]) -> String {
    let length = raw.ask(words).trim_start_matches('$').parse::<usize>().unwrap();
    let text = raw.take(length);
    raw.expect("\r\n");
    text
}

#[test]
fn one_node_owns_all_slots() {
    let server = TestServer::start();
    let port = server.port();
    let mut raw = server.raw();
    let id = text(&mut raw, &["CLUSTER", "MYID"]);
    assert!(id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
    raw.request(&["CLUSTER", "SLOTS"]).expect(&format!(
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$40\r\n{id}\r\n*0\r\n"
    ));
    let line = format!("{id} 127.0.0.1:{port}@0 myself,master - 0 0 1 connected 0-16383\n");
    assert_eq!(text(&mut raw, &["CLUSTER", "NODES"]), line);
    let info = text(&mut raw, &["CLUSTER", "INFO"]);
    for line in ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:1"] {
        assert!(info.lines().any(|l| l == line), "{info}");
    }
    let offset = crate::replication::number(&server, "master_repl_offset");
    let digits = port.to_string().len();
    assert!(digits <= 5);
    raw.request(&["CLUSTER", "SHARDS"]).expect(&format!(
        "*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n*14\r\n$2\r\nid\r\n\
         $40\r\n{id}\r\n$4\r\nport\r\n:{port}\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$8\r\nendpoint\r\n\
         $9\r\n127.0.0.1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$18\r\nreplication-offset\r\n\
         :{offset}\r\n$6\r\nhealth\r\n$6\r\nonline\r\n"
    ));
    for (words, reply) in [
        (&["CLUSTER", "KEYSLOT", "foo"][..], ":12182\r\n"),
        (&["CLUSTER", "KEYSLOT", "post:{foo}"], ":12182\r\n"),
        (&["CLUSTER", "LINKS"], "*0\r\n"),
        (&["CLUSTER", "REPLICAS", &id], "*0\r\n"),
        (&["CLUSTER", "COUNT-FAILURE-REPORTS", &id], ":0\r\n"),
        (&["READONLY"], "+OK\r\n"),
        (&["READWRITE"], "+OK\r\n"),
        (&["ASKING"], "+OK\r\n"),
        (
            &["CLUSTER", "MEET", "127.0.0.1", "1"],
            "-ERR This instance has cluster support disabled\r\n",
        ),
        (&["CLUSTER", "REPLICAS", "nope"], "-ERR Unknown node nope\r\n"),
        (&["CLUSTER", "COUNTKEYSINSLOT", "16384"], "-ERR Invalid slot\r\n"),
        (&["CLUSTER", "GETKEYSINSLOT", "0", "-1"], "-ERR Invalid slot or number of keys\r\n"),
    ] {
        raw.request(words).expect(reply);
    }
    // A client that asks for the mode sees a standalone server.
    assert!(text(&mut raw, &["INFO", "cluster"]).contains("cluster_enabled:0"));
    assert!(raw.ask(&["HELLO"]).starts_with('*'));
}

#[test]
fn keys_of_a_slot_are_counted_and_listed() {
    let server = TestServer::start();
    let mut raw = server.raw();
    for id in 1..=3 {
        raw.request(&["HSET", &format!("post:{id}"), "like", "1"]).expect(":1\r\n");
    }
    let slots: Vec<String> = (1..=3)
        .map(|id| raw.ask(&["CLUSTER", "KEYSLOT", &format!("post:{id}")])[1..].to_owned())
        .collect();
    for (id, slot) in (1..=3).zip(&slots) {
        raw.request(&["CLUSTER", "COUNTKEYSINSLOT", slot]).expect(":1\r\n");
        raw.request(&["CLUSTER", "GETKEYSINSLOT", slot, "10"])
            .expect(&format!("*1\r\n$6\r\npost:{id}\r\n"));
        raw.request(&["CLUSTER", "GETKEYSINSLOT", slot, "0"]).expect("*0\r\n");
    }
    raw.request(&["CLUSTER", "COUNTKEYSINSLOT", "0"]).expect(":0\r\n");
}

/// All nodes report the same nodes with the same ids.
#[test]
fn replicas_are_nodes_of_the_shard() {
    let (master, replica) = (TestServer::start(), TestServer::start());
    follow(&replica, &master);
    wait_for_sync(&master, &replica);
    let ids = |server: &TestServer| text(&mut server.raw(), &["CLUSTER", "MYID"]);
    let (of_master, of_replica) = (ids(&master), ids(&replica));
    let lines = |server: &TestServer| {
        let text = text(&mut server.raw(), &["CLUSTER", "NODES"]).replace("myself,", "");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        format!("{of_master} 127.0.0.1:{}@0 master - 0 0 1 connected 0-16383", master.port()),
        format!("{of_replica} 127.0.0.1:{}@0 slave {of_master} 0 0 1 connected", replica.port()),
    ];
    eventually("the master lists the replica", || lines(&master) == expected);
    assert_eq!(lines(&replica), expected);
    let slots = |server: &TestServer| {
        let mut client = server.connection();
        redis::cmd("CLUSTER").arg("SLOTS").query::<redis::Value>(&mut client).unwrap()
    };
    assert_eq!(slots(&master), slots(&replica));
    // A Sentinel has made the replica the master.
    let hello = |port: u16, epoch: u64| {
        let text = format!("127.0.0.1,26379,{},9,m,127.0.0.1,{port},{epoch}", "a".repeat(40));
        master.raw().request(&["PUBLISH", "__sentinel__:hello", &text]).line();
    };
    hello(master.port(), 1);
    hello(replica.port(), 2);
    let line = text(&mut master.raw(), &["CLUSTER", "NODES"]);
    assert!(line.starts_with(&of_replica) && line.contains("myself,slave"), "{line}");
}
