//! The admin port: metrics, health, the dashboard's JSON, and access control.

use node::metrics;
use redis::cmd;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tidemark_tests::{DEFAULT_TIMEOUT, TestServer, eventually, listener};

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Starts a server with an admin port on a free port.
pub(crate) fn with_admin(
    change: impl FnOnce(&mut tidemark_server::config::Config),
) -> (TestServer, SocketAddr) {
    let port = listener().local_addr().unwrap().port();
    let server = TestServer::with(|config| {
        config.admin.port = port;
        change(config);
    });
    let address = server.server().admin().expect("the port is free");
    (server, address)
}

/// Configures one of each kind of object that has metrics: ledgers, and two ingest sources with an
/// unreachable broker.
fn of_each_kind(config: &mut tidemark_server::config::Config) {
    let read = &mut config.existence[2];
    (read.ledger, read.spill) = (tidemark_server::config::LedgerMode::Exact, true);
    for name in ["likes", "views"] {
        config.ingest.push(tidemark_server::config::Ingest {
            name: name.to_owned(),
            url: "redis://127.0.0.1:1".to_owned(),
            stream: name.to_owned(),
            ..Default::default()
        });
    }
}

pub(crate) fn get(address: SocketAddr, path: &str, headers: &[&str]) -> Answer {
    let has_host = headers.iter().any(|header| header.starts_with("Host:"));
    let host = if has_host { String::new() } else { format!("Host: {address}\r\n") };
    let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    ask(address, &format!("GET {path} HTTP/1.1\r\n{host}{more}Connection: close\r\n\r\n"))
}

fn ask(address: SocketAddr, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the admin port listens");
    stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// Parses a metrics text into samples by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

/// Writes posts and likes in all spaces and reads some pages.
pub(crate) fn some_traffic(server: &TestServer) {
    let mut c = server.connection();
    for id in 1..=500 {
        let mut pipe = redis::pipe();
        pipe.cmd("HSET").arg(format!("post:{id}")).arg("like").arg(id * 7).ignore();
        pipe.cmd("FEED.ACT").arg("like").arg(id % 17).arg(id).ignore();
        pipe.cmd("FEED.ACT").arg("read").arg(id % 13).arg(id).ignore();
        pipe.cmd("HSET").arg(format!("user:{id}")).arg("post").arg(3).ignore();
        pipe.cmd("FEED.GET").arg("home").arg(7).arg(id).arg(id + 1).ignore();
        pipe.exec(&mut c).unwrap();
    }
    assert!(cmd("GET").arg("post:1:nope").exec(&mut c).is_err());
    cmd("BGSAVE").exec(&mut c).unwrap();
    cmd("WAITAOF").arg(1).arg(0).arg(0).exec(&mut c).unwrap();
    eventually("the snapshot is there", || {
        let info: String = cmd("INFO").arg("persistence").query(&mut c).unwrap();
        info.contains("rdb_bgsave_in_progress:0")
    });
}

/// Audits two actions, whose metrics then exist.
fn audit(server: &TestServer) {
    let mut c = server.connection();
    for action in ["like", "repost"] {
        cmd("TM.AUDIT").arg(action).exec(&mut c).unwrap();
        eventually("the audit is complete", || {
            let info: String = cmd("INFO").arg("everything").query(&mut c).unwrap();
            info.contains(&format!("audit_{action}:"))
        });
    }
}

/// INFO fields that change without activity.
const MOVING: [&str; 11] = [
    "longest_turn_usec",
    "longest_turn_last_minute_usec",
    "reconnects",
    "used_memory_rss",
    "uptime_in_seconds",
    "instantaneous_ops_per_sec",
    "total_commands_processed",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "canaries",
    "connected_clients",
];

/// Every metric with an INFO field has the same value as the field. The test reads both on an idle
/// server.
#[test]
fn info_and_metrics_agree() {
    let (server, address) = with_admin(of_each_kind);
    some_traffic(&server);
    audit(&server);
    let mut c = server.connection();
    let started = Instant::now();
    // The rate and the buffer memory take some time to become constant.
    loop {
        let before = get(address, "/metrics", &[]).body;
        let info: String = cmd("INFO").arg("everything").query(&mut c).unwrap();
        let after = samples(&get(address, "/metrics", &[]).body);
        let before = samples(&before);
        let differing: Vec<String> = metrics::all()
            .iter()
            .filter(|m| !m.field.is_empty() && !MOVING.contains(&m.field))
            .flat_map(|m| {
                info_values(m, &info).into_iter().map(move |info_values| (m, info_values))
            })
            .filter(|(m, (name, value))| {
                let is = |all: &BTreeMap<String, f64>| {
                    let exposed = all.get(name).unwrap_or_else(|| panic!("{name} is not there"));
                    // Unknown values are NaN in both outputs.
                    exposed.is_nan() && value.is_nan()
                        || (exposed * m.per_unit - value).abs() <= value.abs() * 1e-9 + 1e-7
                };
                !is(&before) && !is(&after)
            })
            .map(|(m, (name, value))| {
                format!("{} is {value}, {name} is {:?}", m.field, after.get(&name))
            })
            .collect();
        if differing.is_empty() {
            break;
        }
        assert!(started.elapsed() < DEFAULT_TIMEOUT, "{differing:#?}");
    }
    // Values that change are present in both outputs and nearly equal.
    let info: String = cmd("INFO").query(&mut c).unwrap();
    let all = samples(&get(address, "/metrics", &[]).body);
    for field in ["total_commands_processed", "used_memory_rss", "connected_clients"] {
        let metric = metrics::all().into_iter().find(|m| m.field == field).unwrap();
        let [(name, value)] = &info_values(&metric, &info)[..] else { panic!("{field}") };
        assert!((all[name] / value - 1.0).abs() < 0.2, "{name}: {} {value}", all[name]);
    }
}

/// Returns INFO's values for a metric, with the names of its samples in `/metrics`.
fn info_values(metric: &metrics::Described, info: &str) -> Vec<(String, f64)> {
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{metric:?}: {text}"));
    let prefix = match () {
        () if metric.name.starts_with("tidemark_counters_") => "counter_",
        () if metric.name.starts_with("tidemark_existence_") => "existence_",
        () if metric.name.starts_with("tidemark_ledger_") => "ledger_",
        () if metric.name.starts_with("tidemark_ingest_") => "ingest_",
        () if metric.name.starts_with("tidemark_audit_") => "audit_",
        () => "",
    };
    if prefix.is_empty() {
        let start = format!("{}:", metric.field);
        let labels =
            if metric.labels.is_empty() { String::new() } else { format!("{{{}}}", metric.labels) };
        let line = info.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("INFO has no {}", metric.field));
        return vec![(format!("{}{labels}", metric.name), number(line))];
    }
    let lines = info.lines().filter_map(|line| line.strip_prefix(prefix)?.split_once(':'));
    let found: Vec<_> = lines
        .filter_map(|(space, pairs)| {
            let mut pairs = pairs.split(',').filter_map(|pair| pair.split_once('='));
            let value = pairs.find(|(field, _)| *field == metric.field)?.1;
            let label = match prefix {
                "ingest_" => "source",
                "audit_" => "action",
                _ => "space",
            };
            Some((format!("{}{{{label}=\"{space}\"}}", metric.name), number(value)))
        })
        .collect();
    assert!(found.len() >= 2, "{metric:?}");
    found
}

#[test]
fn metrics_use_the_accepted_format_and_cover_each_family() {
    let (server, address) = with_admin(of_each_kind);
    some_traffic(&server);
    audit(&server);
    let plain = get(address, "/metrics", &[]);
    assert!(plain.head.contains("content-type: text/plain; version=0.0.4"), "{}", plain.head);
    let accept =
        "Accept: application/openmetrics-text; version=1.0.0; charset=utf-8;q=0.75,*/*;q=0.1";
    let open = get(address, "/metrics", &[accept]);
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(open.body.ends_with("# EOF\n") && !plain.body.contains("# EOF"));
    assert!(plain.body.contains("# TYPE tidemark_commands_total counter\n"));
    assert!(open.body.contains("# TYPE tidemark_commands counter\n"));
    // Both formats have the same samples; order of labels and spelling of bucket bounds differ.
    let names = |text: &str| {
        let names = samples(text).into_keys();
        let mut names: Vec<String> =
            names.map(|name| name.split('{').next().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert!(names(&plain.body) == names(&open.body), "{}\n\n{}", plain.body, open.body);
    let all = samples(&plain.body);
    assert_eq!(all["tidemark_command_calls_total{command=\"feed.get\"}"], 500.0);
    assert!(all["tidemark_command_duration_seconds_count{command=\"feed.get\"}"] >= 7.0);
    assert!(all["tidemark_command_duration_seconds_sum{command=\"feed.get\"}"] > 0.0);
    assert_eq!(all["tidemark_errors_total{error=\"ERR\"}"], 1.0);
    assert_eq!(all["tidemark_counters_rows{space=\"post\"}"], 500.0);
    assert!(all["tidemark_log_sync_duration_seconds_count"] >= 1.0);
    // Every declared metric is present, except those of replicas.
    for metric in metrics::all().iter().filter(|m| !m.labels.starts_with("replica=")) {
        let stem = format!("{}_count", metric.name);
        let is_it = |name: &String| {
            let name = name.split('{').next().unwrap();
            name == metric.name || name == stem
        };
        assert!(all.keys().any(is_it), "{} is not in /metrics", metric.name);
    }
    server.stop();
}

/// Returns whether a program installed by `tests/clients/setup` is available.
pub(crate) fn is_there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|found| found.status.success());
    if !found {
        tidemark_tests::cannot(&format!("needs {program}: tests/clients/setup installs it"));
    }
    found
}

#[test]
fn promtool_has_nothing_to_say_of_the_metrics() {
    if !is_there("promtool") {
        return;
    }
    let (server, address) = with_admin(of_each_kind);
    some_traffic(&server);
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = get(address, "/metrics", &[]).body;
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.is_empty() && err.is_empty(), "{out}{err}");
}

struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ALERTS: &str = include_str!("../../../deploy/prometheus/alerts.yml");
const GRAFANA: &str = include_str!("../../../deploy/grafana/tidemark.json");

/// Returns the expressions of the Grafana dashboard in Prometheus syntax.
fn grafana_expressions() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(GRAFANA).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let plain = |expr: &str| expr.replace("$__rate_interval", "1m").replace("$instance", ".*");
    targets.map(|target| plain(target["expr"].as_str().unwrap())).collect()
}

/// Returns the metric names in an expression or a file of rules.
fn names_in(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_word(c));
    words.filter(|word| word.starts_with("tidemark_") || word.starts_with("process_")).collect()
}

#[test]
fn every_metric_of_the_alerts_and_of_grafanas_file_exists() {
    let declared = metrics::all();
    let exists = |name: &str| {
        let stem = name.strip_suffix("_bucket").unwrap_or(name);
        declared.iter().any(|metric| metric.name == stem)
    };
    let expressions = grafana_expressions();
    assert!(expressions.len() > 30);
    let mut names = names_in(ALERTS);
    names.extend(expressions.iter().flat_map(|expr| names_in(expr)));
    assert!(names.len() > 60, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // Each alert has a description.
    let alerts = ALERTS.matches("- alert:").count();
    assert_eq!(ALERTS.matches("description: >-").count(), alerts);
}

#[test]
fn promtool_has_nothing_to_say_of_the_alerts() {
    if !is_there("promtool") {
        return;
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/prometheus/alerts.yml");
    let said = Command::new("promtool")
        .args(["check", "rules", "--lint=all", "--lint-fatal", file])
        .output();
    let said = said.unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

/// A real Prometheus scrapes the server without warnings, accepts every expression of the alerts
/// and of the Grafana dashboard, and fires no alert.
#[test]
fn prometheus_scrapes_it_and_knows_every_expression() {
    if !is_there("prometheus") {
        return;
    }
    let (server, address) = with_admin(|_| {});
    some_traffic(&server);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prometheus.yml");
    let alerts = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/prometheus/alerts.yml");
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{alerts}']\n\
         scrape_configs:\n- job_name: tidemark\n  static_configs: [{{targets: ['{address}']}}]\n"
    );
    std::fs::write(&file, config).unwrap();
    let own = listener().local_addr().unwrap();
    let said = std::fs::File::create(folder.path().join("said")).unwrap();
    let _prometheus = KillOnDrop(
        Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={own}"))
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap(),
    );
    eventually("Prometheus has scraped", || {
        let path = "/api/v1/query?query=tidemark_counters_rows";
        TcpStream::connect(own).is_ok() && {
            let answer = get(own, path, &[]).body;
            answer.contains("\"space\":\"post\"") && answer.contains("\"500\"")
        }
    });
    let targets = get(own, "/api/v1/targets", &[]).body;
    assert!(
        targets.contains("\"health\":\"up\"") && targets.contains("\"lastError\":\"\""),
        "{targets}"
    );
}

#[test]
fn readiness_says_what_is_missing() {
    let (master, of_master) = with_admin(|_| {});
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(of_master, path, &[]).status, 200, "{path}");
    }
    // Start a replica whose master is unreachable.
    let nowhere = listener().local_addr().unwrap().port();
    let (replica, of_replica) = with_admin(|_| {});
    let mut c = replica.connection();
    cmd("REPLICAOF").arg("127.0.0.1").arg(nowhere).exec(&mut c).unwrap();
    let answer = get(of_replica, "/readyz", &[]);
    assert_eq!(answer.status, 503);
    assert!(
        answer.body.starts_with("not ready: the link to the master is down"),
        "{}",
        answer.body
    );
    assert_eq!(get(of_replica, "/healthz", &[]).status, 200);
    cmd("REPLICAOF").arg("127.0.0.1").arg(master.port()).exec(&mut c).unwrap();
    eventually("the replica has caught up", || get(of_replica, "/readyz", &[]).status == 200);
    // The master identifies the replica by address.
    let lag = format!("tidemark_replica_lag_bytes{{replica=\"127.0.0.1:{}\"}}", replica.port());
    eventually("the replica has all", || {
        samples(&get(of_master, "/metrics", &[]).body).get(&lag) == Some(&0.0)
    });
    let status: serde_json::Value =
        serde_json::from_str(&get(of_replica, "/api/status", &[]).body).unwrap();
    assert_eq!(status["replication"]["role"], "replica");
    assert_eq!(status["replication"]["master"]["state"], "connected");
}

#[test]
fn server_starts_without_admin_if_port_is_taken_or_0() {
    let (first, address) = with_admin(|_| {});
    let second = TestServer::with(|config| config.admin.port = address.port());
    assert_eq!(second.server().admin(), None);
    let info: String = cmd("INFO").arg("server").query(&mut second.connection()).unwrap();
    assert!(info.contains("admin_port:0\r\n"), "{info}");
    let info: String = cmd("INFO").arg("server").query(&mut first.connection()).unwrap();
    assert!(info.contains(&format!("admin_port:{}\r\n", address.port())), "{info}");
    // The port is free once the server has stopped.
    first.stop();
    assert!(TcpStream::connect(address).is_err());
    let off = TestServer::with(|config| config.admin.port = 0);
    assert_eq!(off.server().admin(), None);
}

#[test]
fn only_reading_is_possible_and_answers_are_for_no_other_site() {
    let (_server, address) = with_admin(|_| {});
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let request = format!(
            "{method} /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Length: 0\r\n\r\n"
        );
        let answer = ask(address, &request);
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.head.contains("allow: GET, HEAD"), "{}", answer.head);
    }
    let answer = get(address, "/api/status", &["Origin: http://evil.example"]);
    assert!(!answer.head.contains("access-control-allow-origin"), "{}", answer.head);
    assert!(answer.head.contains("default-src 'none'") && answer.head.contains("nosniff"));
    assert_eq!(get(address, "/nothing", &[]).status, 404);
    let head = "HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!((ask(address, head).status, ask(address, head).body.as_str()), (200, ""));
}

/// Paths that show clients, commands or data.
const GUARDED: [&str; 3] = ["/api/slowlog", "/api/clients", "/api/page?view=home&viewer=7&ids=77"];

#[test]
fn foreign_host_names_are_misdirected() {
    let (server, address) = with_admin(|config| {
        config.server.slowlog_slower_than_us = 0;
        config.admin.hosts = vec!["feeds.internal".to_owned()];
    });
    let mut c = server.connection();
    cmd("GET").arg("post:77:like").query::<Option<i64>>(&mut c).unwrap();
    let slow: serde_json::Value =
        serde_json::from_str(&get(address, "/api/slowlog", &[]).body).unwrap();
    let entries = slow["entries"].as_array().unwrap();
    assert!(
        entries.iter().any(|e| e["args"] == serde_json::json!(["GET", "post:77:like"])),
        "{slow}"
    );
    let clients: serde_json::Value =
        serde_json::from_str(&get(address, "/api/clients", &[]).body).unwrap();
    assert_eq!(clients["clients"].as_array().unwrap().len(), 1);
    assert_eq!(clients["clients"][0]["last_command"], "get");
    let open = ["/api/status", "/api/spaces", "/api/history", "/metrics", "/healthz", "/"];
    for path in GUARDED.iter().chain(&open) {
        let status = |host: &str| get(address, path, &[host]).status;
        assert_eq!(status("Host: localhost:6398"), 200, "{path}");
        assert_eq!(status("Host: feeds.internal:6398"), 200, "{path}");
        assert_eq!(status("Host: rebound.example:6398"), 421, "{path}");
    }
}

/// On addresses other than loopback, or if the default user has a password, these paths require an
/// ACL user with permission for the equivalent command.
#[test]
fn what_shows_keys_needs_a_user_with_the_right_to_see_them() {
    // Encode user:password in Base64.
    let of = |name: &str| {
        let encoded = match name {
            "ops" => "b3BzOnNlY3JldA==",         // ops:secret
            "wrong" => "b3BzOndyb25n",           // ops:wrong
            "app" => "YXBwOnNlY3JldA==",         // app:secret
            "default" => "ZGVmYXVsdDpzZWNyZXQ=", // default:secret
            _ => unreachable!("{name}"),
        };
        format!("Authorization: Basic {encoded}")
    };
    let beyond = |config: &mut tidemark_server::config::Config| {
        config.admin.bind = "0.0.0.0".to_owned();
    };
    let (server, address) = with_admin(beyond);
    let address = SocketAddr::from(([127, 0, 0, 1], address.port()));
    let mut c = server.connection();
    cmd("ACL")
        .arg(&["SETUSER", "ops", "on", ">secret", "+@admin", "+feed.get", "~*"])
        .exec(&mut c)
        .unwrap();
    cmd("ACL").arg(&["SETUSER", "app", "on", ">secret", "~*", "+@write"]).exec(&mut c).unwrap();
    for path in GUARDED {
        let answer = get(address, path, &[]);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.head.contains("www-authenticate: Basic"), "{}", answer.head);
        assert_eq!(get(address, path, &[&of("wrong")]).status, 401);
        assert_eq!(get(address, path, &[&of("app")]).status, 403);
        assert_eq!(get(address, path, &[&of("ops")]).status, 200);
    }
    for path in ["/metrics", "/healthz", "/readyz", "/api/status", "/api/spaces", "/api/history"] {
        assert_eq!(get(address, path, &[]).status, 200, "{path}");
    }
    // A failed login is counted and logged like a failed login over RESP.
    let info: String = cmd("INFO").arg("stats").query(&mut c).unwrap();
    assert!(info.contains(&format!("acl_access_denied_auth:{}\r\n", GUARDED.len())), "{info}");
    let log = format!("{:?}", cmd("ACL").arg("LOG").query::<redis::Value>(&mut c).unwrap());
    assert!(log.contains("HTTP") && log.contains("ops"), "{log}");

    let (_server, address) = with_admin(|config| config.security.password = "secret".to_owned());
    for path in GUARDED {
        assert_eq!(get(address, path, &[]).status, 401, "{path}");
        assert_eq!(get(address, path, &[&of("default")]).status, 200, "{path}");
    }
}

/// Clients that send half a request are disconnected after a few seconds and do not block other
/// clients.
#[test]
fn slow_clients_do_not_keep_others_out() {
    let (server, address) = with_admin(|_| {});
    let mut slow: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
    }
    assert_eq!(get(address, "/healthz", &[]).status, 200);
    let mut rest = Vec::new();
    slow[0].read_to_end(&mut rest).unwrap();
    // Such clients also do not delay a shutdown.
    let began = Instant::now();
    server.stop();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Scraping 100 spaces, the maximum, takes under 20 ms in an optimized build. This test uses a
/// debug build and shares the machine with other tests, so it checks only the order of magnitude.
#[test]
fn a_scrape_of_100_spaces_takes_milliseconds() {
    let (server, address) = with_admin(|config| {
        let (counter, existence) = (config.counter[1].clone(), config.existence[2].clone());
        for n in 0..50 {
            let mut counter = counter.clone();
            (counter.name, counter.rows) = (format!("c{n}"), format!("c{n}:{{id}}"));
            config.counter.push(counter);
            let mut existence = existence.clone();
            (existence.name, existence.pairs) = (format!("e{n}"), format!("e{n}:{{id}}"));
            existence.pairs_per_table = 1 << 12;
            config.existence.push(existence);
        }
    });
    some_traffic(&server);
    let scrape = || {
        let began = Instant::now();
        let text = get(address, "/metrics", &[]).body;
        assert!(text.contains("space=\"c49\"") && text.contains("space=\"e49\""));
        began.elapsed()
    };
    let best = (0..20).map(|_| scrape()).min().unwrap();
    eprintln!("a scrape of 105 spaces: {best:?}");
    assert!(best < Duration::from_millis(200), "{best:?}");
}

/// Clients that never read their responses do not block other clients.
#[test]
fn clients_that_do_not_read_do_not_keep_others_out() {
    let (_server, address) = with_admin(|_| ());
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(300);
    let stuck: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(get(address, "/healthz", &[]).status, 200);
    }
    drop(stuck);
}
