//! TLS: stock clients and Tidemark's own client, client certificates, and certificate reload.

use client::Socket;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidemark_server::config::{AuthClients, Tls as Settings};
use tidemark_server::tls::Tls;
use tidemark_tests::{TestServer, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "the tests' authority");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Authority { issuer: rcgen::Issuer::new(params, key), folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Signs a certificate for this machine, as `name`.pem and `name`.key.
    pub(crate) fn sign(&self, name: &str) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params =
            rcgen::CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])
                .unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    pub(crate) fn settings(&self, name: &str, auth_clients: AuthClients) -> Settings {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        // Another process may take the port in the meantime.
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        Settings {
            port,
            cert_file: if name.is_empty() {
                String::new()
            } else {
                text(self.path(&format!("{name}.pem")))
            },
            key_file: if name.is_empty() {
                String::new()
            } else {
                text(self.path(&format!("{name}.key")))
            },
            ca_file: text(self.path("ca.pem")),
            auth_clients,
        }
    }
}

/// Sends requests with Tidemark's client and reads `length` bytes.
fn ask(tls: &Tls, port: u16, request: &[u8], length: usize) -> std::io::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tls = tls.client()?;
        let mut socket = Socket::connect("127.0.0.1", port, Some(&tls), "localhost").await?;
        socket.write_all(request).await?;
        socket.flush().await?;
        let mut reply = vec![0; length];
        tokio::time::timeout(Duration::from_secs(20), socket.read_exact(&mut reply)).await??;
        Ok(reply)
    })
}

fn client(authority: &Authority, name: &str) -> Tls {
    let tls = Tls::default();
    tls.configure(&Settings { port: 0, ..authority.settings(name, AuthClients::No) }).unwrap();
    tls
}

fn redis_cli(
    port: u16,
    authority: &Authority,
    certificate: Option<&str>,
    command: &[&str],
) -> String {
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", "localhost", "-p", &port.to_string(), "--tls", "--cacert"])
        .arg(authority.path("ca.pem"));
    if let Some(name) = certificate {
        cli.arg("--cert").arg(authority.path(&format!("{name}.pem")));
        cli.arg("--key").arg(authority.path(&format!("{name}.key")));
    }
    let output = cli.args(command).output().expect("redis-cli is installed by tests/clients/setup");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn server(settings: &Settings) -> TestServer {
    TestServer::with(|config| {
        config.tls = settings.clone();
        config.security.handshake_timeout_s = 1;
    })
}

#[test]
fn stock_clients_and_ours_speak_tls() {
    let authority = Authority::new();
    authority.sign("server");
    let settings = authority.settings("server", AuthClients::No);
    let server = server(&settings);
    assert_eq!(redis_cli(settings.port, &authority, None, &["HSET", "post:1", "like", "5"]), "1\n");
    assert!(redis_cli(settings.port, &authority, None, &["-3", "HGETALL", "post:1"]).contains('5'));
    // The plain port serves the same data.
    server.raw().request(&["HGET", "post:1", "like"]).expect("$1\r\n5\r\n");
    let ours = client(&authority, "");
    assert_eq!(ask(&ours, settings.port, b"PING\r\n", 7).unwrap(), b"+PONG\r\n");
    // Send replies that need many TLS records to a slow client.
    let mut page = "*20003\r\n$8\r\nFEED.GET\r\n$4\r\nhome\r\n$1\r\n7\r\n".to_owned();
    (10_000..30_000).for_each(|i| page += &format!("$5\r\n{i}\r\n"));
    let row = "*6\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n";
    let expected = format!("*20000\r\n{}", row.repeat(20_000)).repeat(5);
    let reply = ask(&ours, settings.port, page.repeat(5).as_bytes(), expected.len()).unwrap();
    assert!(reply == expected.as_bytes());
    // The client sends a whole pipeline before it reads.
    let row = "*8\r\n$4\r\nlike\r\n$1\r\n5\r\n$6\r\nrepost\r\n$1\r\n0\r\n\
               $7\r\ncomment\r\n$1\r\n0\r\n$4\r\nread\r\n$1\r\n0\r\n";
    let (all, expected) = ("HGETALL post:1\r\n".repeat(300_000), row.repeat(300_000));
    let reply = ask(&ours, settings.port, all.as_bytes(), expected.len()).unwrap();
    assert!(reply == expected.as_bytes());
    // A server certificate of another authority is rejected.
    let stranger = Authority::new();
    assert!(ask(&client(&stranger, ""), settings.port, b"PING\r\n", 7).is_err());
}

#[test]
fn a_certificate_is_asked_of_clients() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for name in ["server", "client"] {
        authority.sign(name);
    }
    stranger.sign("client");
    for (ask_for, without, with_other) in [
        (AuthClients::Yes, false, false),
        (AuthClients::Optional, true, false),
        (AuthClients::No, true, true),
    ] {
        let settings = authority.settings("server", ask_for);
        let server = server(&settings);
        let is_let_in = |tls: &Tls| {
            ask(tls, settings.port, b"PING\r\n", 7).is_ok_and(|reply| reply == b"+PONG\r\n")
        };
        assert_eq!(is_let_in(&client(&authority, "")), without, "{ask_for:?}");
        assert!(is_let_in(&client(&authority, "client")), "{ask_for:?}");
        // The client trusts this authority but presents a certificate of another authority.
        let other = Tls::default();
        let of_stranger = stranger.settings("client", AuthClients::No);
        let ca_file = authority.settings("", AuthClients::No).ca_file;
        other.configure(&Settings { port: 0, ca_file, ..of_stranger }).unwrap();
        assert_eq!(is_let_in(&other), with_other, "{ask_for:?}");
        assert_eq!(redis_cli(settings.port, &authority, Some("client"), &["PING"]), "PONG\n");
        drop(server);
    }
}

#[test]
fn certificates_are_exchanged_while_it_runs() {
    let (old, new) = (Authority::new(), Authority::new());
    old.sign("server");
    new.sign("server");
    let settings = old.settings("server", AuthClients::No);
    let server = server(&settings);
    let (trusts_old, trusts_new) = (client(&old, ""), client(&new, ""));
    let is_let_in = |tls: &Tls| ask(tls, settings.port, b"PING\r\n", 7).is_ok();
    assert!(is_let_in(&trusts_old) && !is_let_in(&trusts_new));
    let set = |pairs: &[&str]| server.raw().ask(&[&["CONFIG", "SET"], pairs].concat());
    let path = |name: &str| new.path(name).to_str().unwrap().to_owned();
    // Unreadable or mismatched files change nothing.
    for pairs in [
        ["tls-cert-file", "/nonexistent"],
        ["tls-cert-file", &path("server.pem")],
        ["tls-key-file", "/dev/null"],
    ] {
        let reply = set(&pairs);
        assert!(
            reply.starts_with("-ERR CONFIG SET failed (possibly related to argument 'tls-"),
            "{reply}"
        );
    }
    assert!(is_let_in(&trusts_old));
    assert_eq!(
        set(&["tls-cert-file", &path("server.pem"), "tls-key-file", &path("server.key")]),
        "+OK"
    );
    assert!(is_let_in(&trusts_new) && !is_let_in(&trusts_old));
    // Replace the files under the same names.
    let newest = Authority::new();
    newest.sign("server");
    for name in ["server.pem", "server.key"] {
        std::fs::copy(newest.path(name), new.path(name)).unwrap();
    }
    assert!(is_let_in(&trusts_new));
    assert_eq!(set(&["tls-cert-file", &path("server.pem")]), "+OK");
    assert!(is_let_in(&client(&newest, "")) && !is_let_in(&trusts_new));
}

#[test]
fn a_handshake_that_does_not_come_is_ended() {
    let authority = Authority::new();
    authority.sign("server");
    let settings = authority.settings("server", AuthClients::No);
    let server = server(&settings);
    // Connect clients that send nothing, a partial hello, another protocol, or only a complete
    // hello.
    let hello = [&[0x16, 3, 1, 2, 0][..], &[1; 100]].concat();
    let streams: Vec<TcpStream> =
        [&b""[..], &hello, b"PING\r\n", b"*1\r\n$4\r\nPING\r\n", &[0xff; 3000]]
            .iter()
            .map(|bytes| {
                let mut stream = TcpStream::connect(("127.0.0.1", settings.port)).unwrap();
                let _ = stream.write_all(bytes);
                stream
            })
            .collect();
    assert_eq!(redis_cli(settings.port, &authority, None, &["PING"]), "PONG\n");
    for mut stream in streams {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        let outcome = stream.read_to_end(&mut rest);
        assert!(
            outcome.is_ok()
                || outcome.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
        );
        // The server sends at most a TLS alert, and no RESP.
        assert!(rest.is_empty() || rest[0] == 0x15, "{rest:?}");
    }
    eventually("all have gone", || {
        let list: String =
            redis::cmd("CLIENT").arg("LIST").query(&mut server.connection()).unwrap();
        list.lines().count() == 1
    });
    let info: String = redis::cmd("INFO").arg("stats").query(&mut server.connection()).unwrap();
    assert!(
        info.lines().any(|l| l.strip_prefix("tls_handshakes_failed:").is_some_and(|n| n != "0")),
        "{info}"
    );
}

#[test]
fn a_server_without_its_certificates_does_not_start() {
    let authority = Authority::new();
    authority.sign("server");
    let good = authority.settings("server", AuthClients::Yes);
    let gone = Path::new("/nonexistent").to_str().unwrap().to_owned();
    for settings in [
        Settings { cert_file: gone.clone(), ..good.clone() },
        Settings { key_file: gone.clone(), ..good.clone() },
        Settings { ca_file: gone, ..good.clone() },
        Settings { key_file: good.cert_file.clone(), ..good },
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = tidemark_server::config::Config { tls: settings, ..Default::default() };
        config.durability.dir = folder.path().to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let error =
            tidemark_server::start(config, listener).err().expect("the server started").to_string();
        assert!(error.starts_with("tls."), "{error}");
    }
}

#[test]
fn a_replica_follows_only_a_trusted_master_over_tls() {
    let authority = Authority::new();
    authority.sign("server");
    let settings = authority.settings("server", AuthClients::Yes);
    let master = server(&settings);
    let replica = |of: &Authority| {
        TestServer::with(|config| {
            config.tls = of.settings("server", AuthClients::Yes);
            config.replication.tls = true;
            (config.replication.master_user, config.replication.master_auth) =
                ("copy".to_owned(), "pw".to_owned());
        })
    };
    let mut at_master = master.connection();
    let copy = ["SETUSER", "copy", "on", ">pw", "+tm.replicate"];
    redis::cmd("ACL").arg(&copy).query::<()>(&mut at_master).unwrap();
    // The data exceeds one TLS record and one socket buffer.
    let mut pipe = redis::pipe();
    (0..20_000u64).for_each(|id| {
        pipe.hset(format!("post:{id}"), "like", id + 1).ignore();
    });
    pipe.query::<()>(&mut at_master).unwrap();
    let follows = replica(&authority);
    let follow = |replica: &TestServer, port: u16| {
        let mut connection = replica.connection();
        redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).query::<()>(&mut connection).unwrap();
    };
    follow(&follows, settings.port);
    eventually("it has everything", || {
        // A full sync may close connections.
        let Ok(mut connection) = redis::Client::open(follows.url()).unwrap().get_connection()
        else {
            return false;
        };
        let last: Result<Option<u64>, _> =
            redis::cmd("HGET").arg("post:19999").arg("like").query(&mut connection);
        last == Ok(Some(20_000))
    });
    redis::cmd("HSET").arg("post:1").arg("like").arg(77).query::<()>(&mut at_master).unwrap();
    assert_eq!(redis::cmd("WAIT").arg(1).arg(5000).query::<u64>(&mut at_master).unwrap(), 1);
    let says = |replica: &TestServer, what: &str| {
        let connection = redis::Client::open(replica.url()).unwrap().get_connection().ok();
        let error =
            connection.and_then(|mut c| crate::replication::info(&mut c, "master_link_error"));
        error.is_some_and(|e| e.to_lowercase().contains(what))
    };
    let stranger = Authority::new();
    stranger.sign("server");
    let refuses = replica(&stranger);
    follow(&refuses, settings.port);
    eventually("it does not trust that master", || says(&refuses, "certificate"));
    // A certificate does not replace the password.
    redis::cmd("ACL")
        .arg(&["SETUSER", "copy", "resetpass", ">other"])
        .query::<()>(&mut at_master)
        .unwrap();
    let mistaken = replica(&authority);
    follow(&mistaken, settings.port);
    eventually("it has no password", || says(&mistaken, "wrongpass"));
}

/// An error in a certificate file names the setting, the file and the remedy, at startup and in
/// CONFIG SET.
#[test]
fn bad_certificate_names_setting_and_cure() {
    let authority = Authority::new();
    ["server", "other"].iter().for_each(|name| authority.sign(name));
    let good = authority.settings("server", AuthClients::Yes);
    let file = |name: &str, content: &str| {
        std::fs::write(authority.path(name), content).unwrap();
        authority.path(name).to_str().unwrap().to_owned()
    };
    let (none, text) = ("/nonexistent/x.pem".to_owned(), file("text", "no PEM"));
    let encrypted = file(
        "enc",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let cut = file("cut", "-----BEGIN CERTIFICATE-----\nMIIB\n");
    let other_key = authority.path("other.key").to_str().unwrap().to_owned();
    type Change<'a> = &'a dyn Fn(&mut Settings);
    let cases: &[(Change<'_>, &[&str])] = &[
        (&|s| s.cert_file.clear(), &["tls.cert_file is empty", "tls.port = "]),
        (&|s| s.key_file.clear(), &["tls.key_file is empty", "tls.port = "]),
        (
            &|s| s.ca_file.clear(),
            &[
                "tls.ca_file is empty",
                "tls.auth_clients = \"yes\"",
                "set tls.auth_clients = \"no\"",
            ],
        ),
        (&|s| s.cert_file = none.clone(), &["tls.cert_file", "/nonexistent/x.pem", "No such file"]),
        (&|s| s.key_file = none.clone(), &["tls.key_file", "/nonexistent/x.pem", "No such file"]),
        (&|s| s.ca_file = none.clone(), &["tls.ca_file", "/nonexistent/x.pem", "No such file"]),
        (&|s| s.cert_file = text.clone(), &["tls.cert_file", "no certificate", "DER"]),
        (&|s| s.key_file = text.clone(), &["tls.key_file", "no private key", "DER"]),
        (&|s| s.ca_file = text.clone(), &["tls.ca_file", "no certificate", "DER"]),
        (&|s| s.cert_file = cut.clone(), &["tls.cert_file", "is not a PEM file"]),
        (&|s| s.key_file = encrypted.clone(), &["tls.key_file", "encrypted", "openssl pkey"]),
        (&|s| s.key_file = s.cert_file.clone(), &["tls.key_file", "swapped"]),
        (&|s| s.cert_file = s.key_file.clone(), &["tls.cert_file", "swapped"]),
        (
            &|s| s.key_file = other_key.clone(),
            &["tls.key_file", "other.key", "does not match the certificate in tls.cert_file"],
        ),
    ];
    for (change, words) in cases {
        let mut settings = good.clone();
        change(&mut settings);
        let error = Tls::default().configure(&settings).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }
    let link = Settings { port: 0, key_file: String::new(), ..good.clone() };
    let error = Tls::default().configure(&link).unwrap_err();
    assert!(error.contains("tls.key_file is empty, but tls.cert_file"), "{error}");
    Tls::default().configure(&good).unwrap();
}
