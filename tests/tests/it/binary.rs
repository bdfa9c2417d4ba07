//! Packed pages: the decoders of docs/binary.md, in Rust and Python, must agree with the integer
//! reply.

#[path = "../../../examples/binary_page.rs"]
mod binary_page;

use binary_page::{Post, decode, page};
use redis::Value;
use std::path::Path;
use std::process::Command;
use tidemark_tests::TestServer;

const IDS: [u64; 5] = [17, u64::MAX, 3_631_614_501_919_378, 0, 17];

/// Starts a server with extreme counter values and some flags.
fn server() -> TestServer {
    let server = TestServer::start();
    let mut raw = server.raw();
    let rows: [(&str, [&str; 4]); 2] = [
        ("17", ["1", "-1", "9223372036854775807", "-9223372036854775808"]),
        ("3631614501919378", ["4095", "256", "0", "65535"]),
    ];
    for (id, [like, repost, comment, read]) in rows {
        let reply = raw.ask(&[
            "CNT.SET", "post", id, "like", like, "repost", repost, "comment", comment, "read", read,
        ]);
        assert!(!reply.starts_with('-'), "{reply}");
    }
    raw.request(&["PH.ADD", "liked", "42", "17"]).expect("*1\r\n:1\r\n");
    raw.request(&["PH.ADD", "read", "42", "3631614501919378", "0"]).expect("*2\r\n:1\r\n:1\r\n");
    server
}

fn expected(server: &TestServer) -> Vec<Post> {
    let rows: Vec<Vec<Value>> = redis::cmd("FEED.GET")
        .arg("home")
        .arg(42)
        .arg(&IDS)
        .query(&mut server.connection())
        .unwrap();
    let int = |value: &Value| if let Value::Int(n) = value { *n } else { panic!("{value:?}") };
    let post = |(id, row): (&u64, &Vec<Value>)| Post {
        id: *id,
        counters: row[..4].iter().map(int).collect(),
        flags: row[4..].iter().map(|flag| Some(int(flag) == 1)).collect(),
    };
    IDS.iter().zip(&rows).map(post).collect()
}

#[test]
fn the_rust_client_reads_what_the_integers_say() {
    let server = server();
    let posts = page(&mut server.connection(), "home", 42, &IDS, 4, 2).unwrap();
    assert_eq!(posts, expected(&server));
    assert_eq!(posts[0].counters, [1, -1, i64::MAX, i64::MIN]);
    assert_eq!((&posts[0], &posts[2].flags[..]), (&posts[4], &[Some(false), Some(true)][..]));
    assert!(page(&mut server.connection(), "nowhere", 42, &IDS, 4, 2).is_err());
}

#[test]
fn a_reply_of_another_shape_is_an_error() {
    assert_eq!(
        decode(&[0xff, 1, 0], &[1, 2, 3], 0, 1)
            .unwrap()
            .iter()
            .map(|p| p.flags[0])
            .collect::<Vec<_>>(),
        [None, Some(true), Some(false)]
    );
    assert!(decode(&[0; 33], &[1], 4, 2).is_err(), "a byte is missing");
    assert!(decode(&[0; 35], &[1], 4, 2).is_err(), "one extra byte");
    assert!(decode(&[2], &[1], 0, 1).is_err(), "no flag");
}

/// Runs the ten lines of Python in the document verbatim.
#[test]
fn the_python_of_the_document_reads_what_the_integers_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("docs/binary.md")).unwrap();
    let code = text.split_once("```python\n").unwrap().1.split_once("```").unwrap().0;
    assert!(code.lines().count() <= 10, "{code}");
    let server = server();
    let print = "\nimport redis, sys\nfor id, counters, flags in \
                 page(redis.Redis(port=int(sys.argv[1])), 'home', 42, [int(i) for i in \
                 sys.argv[2:]]):\n    print(id, *counters, *flags)\n";
    for client in ["redis-py-5", "redis-py-new"] {
        let mut python = Command::new(root.join("target/clients").join(client).join("bin/python"));
        python
            .arg("-c")
            .arg(format!("{code}{print}"))
            .arg(server.port().to_string())
            .args(IDS.map(|id| id.to_string()));
        let done = python.output().expect("run tests/clients/setup once");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let line = |post: &Post| {
            let counters = post.counters.iter().map(i64::to_string);
            let flags = post
                .flags
                .iter()
                .map(|f| if *f == Some(true) { "True" } else { "False" }.to_owned());
            [post.id.to_string()]
                .into_iter()
                .chain(counters)
                .chain(flags)
                .collect::<Vec<_>>()
                .join(" ")
                + "\n"
        };
        let lines: String = expected(&server).iter().map(line).collect();
        assert_eq!(String::from_utf8_lossy(&done.stdout), lines, "{client}");
    }
}

/// TM.VIEW LIST describes the columns of a packed row, TM.ACTION LIST the effects of an action.
#[test]
fn views_and_actions_say_what_they_are_made_of() {
    use std::collections::BTreeMap;
    let server = TestServer::with(|config| {
        config.view.push(tidemark_server::config::View {
            name: "mixed".to_owned(),
            counters: ["user.following", "post.comment", "user"].map(str::to_owned).to_vec(),
            flags: vec!["read".to_owned()],
            ..Default::default()
        });
    });
    let mut c = server.connection();
    let list = |c: &mut redis::Connection, what: &str| {
        redis::cmd(what).arg("LIST").query::<Vec<BTreeMap<String, redis::Value>>>(c).unwrap()
    };
    let text = |value: &redis::Value| redis::from_redis_value::<String>(value.clone()).unwrap();
    let texts =
        |value: &redis::Value| redis::from_redis_value::<Vec<String>>(value.clone()).unwrap();
    let views = list(&mut c, "TM.VIEW");
    assert_eq!(views.iter().map(|view| text(&view["name"])).collect::<Vec<_>>(), ["home", "mixed"]);
    assert_eq!(
        texts(&views[0]["counters"]),
        ["post.like", "post.repost", "post.comment", "post.read"]
    );
    assert_eq!(texts(&views[0]["flags"]), ["liked", "read"]);
    let mixed = texts(&views[1]["counters"]);
    assert_eq!(
        mixed,
        ["user.following", "post.comment", "user.follower", "user.following", "user.post"]
    );
    for (at, column) in mixed.iter().enumerate() {
        // The listed order is the page's order.
        let (space, field) = column.split_once('.').unwrap();
        let value = at as i64 + 100;
        redis::cmd("CNT.SET").arg(space).arg(1).arg(field).arg(value).query::<()>(&mut c).unwrap();
        let page: Vec<Vec<i64>> =
            redis::cmd("FEED.GET").arg("mixed").arg(7).arg(1).query(&mut c).unwrap();
        assert_eq!(page[0][at], value, "{column}");
    }
    for view in views {
        let page: redis::Value = redis::cmd("FEED.GET")
            .arg(text(&view["name"]))
            .arg(7)
            .arg(1)
            .arg("BINARY")
            .query(&mut c)
            .unwrap();
        let redis::Value::BulkString(row) = page else { panic!("{page:?}") };
        assert_eq!(redis::Value::Int(row.len() as i64), view["row_bytes"]);
    }
    let actions = list(&mut c, "TM.ACTION");
    let shown =
        actions.iter().map(|a| ["name", "flag", "counter"].map(|key| text(&a[key])).join(" "));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        ["like liked post.like", "repost reposted post.repost", "read read post.read"]
    );
}
