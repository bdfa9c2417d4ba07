//! Tests brokers that require a login and TLS, and a failover while events arrive.

use super::brokers::{Broker, Brokers, Kafka, Nats, Redis, Running};
use super::{expected, field, follow, listed, offsets, rows, serve};
use harness::program::{Program, call, refusal};
use harness::within;
use std::path::Path;
use std::time::Duration;

fn certificates(dir: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "test CA");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let params = rcgen::CertificateParams::new(names).unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join("broker.pem"), signed.pem()).unwrap();
    std::fs::write(dir.join("broker.key"), key.serialize_pem()).unwrap();
}

fn source<B: Broker>(broker: &Running<B>, more: &str) -> String {
    let (url, stream) = (broker.url(), B::STREAM);
    format!("[[ingest]]\nname = \"events\"\nurl = \"{url}\"\nstream = \"{stream}\"\n{more}\n")
}

fn until(what: &str, holds: impl FnMut() -> bool) {
    within(Duration::from_secs(60), what, holds);
}

/// `options` configures the login and TLS of the broker, with `{dir}` and `{port}` as placeholders.
fn is_read_with_login_and_tls<B: Broker>(login: &str, options: &[&str]) {
    let Some(brokers) = Brokers::<B>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    certificates(dir);
    let broker = brokers.start(&dir.join("broker"));
    B::publish(broker.port, 0, 10).unwrap();
    broker.down();
    let options = options.iter().map(|option| {
        option.replace("{dir}", dir.to_str().unwrap()).replace("{port}", &broker.port.to_string())
    });
    broker.up_with(&options.collect::<Vec<_>>());
    let ca = dir.join("ca.pem").display().to_string();
    let refused = [
        // Try invalid settings: neither TLS nor login, no login, no certificate authority, a wrong
        // password.
        String::new(),
        format!("tls = true\nca_file = \"{ca}\""),
        format!("tls = true\n{login}"),
        format!("tls = true\nca_file = \"{ca}\"\nuser = \"tide\"\npassword = \"wrong\""),
    ];
    for (number, more) in refused.into_iter().enumerate() {
        let server = serve(&dir.join(format!("no{number}")), 0, &source(&broker, &more));
        until("the source fails", || field(&server, "state") == "failing");
        assert!(!field(&server, "last_error").contains("secret"), "{:?}", listed(&server));
    }
    let more = format!("tls = true\nca_file = \"{ca}\"\n{login}");
    let server = serve(&dir.join("yes"), 0, &source(&broker, &more));
    until("the message is read", || offsets(&server).iter().any(|offset| offset.ends_with("11")));
}

#[test]
fn jetstream_is_read_with_login_and_tls() {
    is_read_with_login_and_tls::<Nats>(
        "user = \"tide\"\npassword = \"secret\"",
        &[
            "--tls",
            "--tlscert={dir}/broker.pem",
            "--tlskey={dir}/broker.key",
            "--user=tide",
            "--pass=secret",
        ],
    );
}

#[test]
fn a_redis_is_read_with_login_and_tls() {
    is_read_with_login_and_tls::<Redis>(
        "password = \"secret\"",
        &[
            "--port",
            "0",
            "--tls-port",
            "{port}",
            "--tls-cert-file",
            "{dir}/broker.pem",
            "--tls-key-file",
            "{dir}/broker.key",
            "--tls-ca-cert-file",
            "{dir}/ca.pem",
            "--tls-auth-clients",
            "no",
            "--requirepass",
            "secret",
        ],
    );
}

/// The broker hangs: its connection stays open, but it sends nothing.
fn is_left_while_it_hangs<B: Broker>() {
    let Some(brokers) = Brokers::<B>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    B::publish(broker.port, 0, 10).unwrap();
    let server = serve(&folder.path().join("server"), 0, &source(&broker, ""));
    let is_read_to = |end: &str| offsets(&server).iter().any(|offset| offset.ends_with(end));
    let (tenth, last) = ((10 + B::FIRST).to_string(), (20 + B::FIRST).to_string());
    until("the message is read", || is_read_to(&tenth));
    broker.freeze(true);
    until("the source reports the failure", || field(&server, "state") == "failing");
    let why = field(&server, "last_error");
    assert!(
        ["no reply from the broker", "timed out", "deadline"].iter().any(|word| why.contains(word)),
        "{why}"
    );
    broker.freeze(false);
    B::publish(broker.port, 0, 20).unwrap();
    until("the source continues", || is_read_to(&last));
    until("the source runs again", || field(&server, "state") == "running");
}

#[test]
fn a_jetstream_that_hangs_is_left_and_read_on() {
    is_left_while_it_hangs::<Nats>();
}

#[test]
fn a_redis_that_hangs_is_left_and_read_on() {
    is_left_while_it_hangs::<Redis>();
}

/// FAILOVER waits for the current step of the source; the replica continues after that step.
#[test]
fn a_handover_in_the_middle_of_events_loses_and_repeats_none() {
    const MESSAGES: u64 = 10_000;
    let Some(brokers) = Brokers::<Redis>::here() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broker = brokers.start(&folder.path().join("broker"));
    let config = source(&broker, "batch = 64");
    let first = serve(&folder.path().join("here"), 0, &config);
    let second = follow(&folder.path().join("there"), &first, &config);
    let end = |program: &Program| offsets(program) == [format!("0-{}", MESSAGES + 1)];
    std::thread::scope(|scope| {
        scope.spawn(|| broker.publish_all(MESSAGES, &|| false));
        let order = format!("FAILOVER TO 127.0.0.1 {}", second.port);
        let mut nodes = [&first, &second];
        for _ in 0..3 {
            let before = offsets(nodes[0]);
            until("events are processed", || offsets(nodes[0]) != before || end(nodes[0]));
            let order = order.replace(&second.port.to_string(), &nodes[1].port.to_string());
            until("the handover begins", || {
                refusal(&call(&mut nodes[0].client(), &order)).is_empty()
            });
            until("the other node is the master", || nodes[1].info("role") == "master");
            until("the master has a replica", || nodes[0].info("master_link_status") == "up");
            nodes.reverse();
        }
        until("all messages are processed", || end(nodes[0]));
        assert_eq!(rows(nodes[0]), expected(MESSAGES * super::together()));
        assert_eq!(field(nodes[1], "state"), "idle");
    });
}

/// Tests that need a Kafka broker, which `./test --all` compiles.
mod full {
    use super::*;

    #[test]
    fn a_kafka_that_hangs_is_left_and_read_on() {
        is_left_while_it_hangs::<Kafka>();
    }
}
