//! `tidemark import` over TLS, with login and client certificate. `cli/tests/it/import.rs` tests
//! the command itself.

use crate::tls::Authority;
use cli::import::{ImportArgs, run};
use client::ConnectArgs;
use tidemark_server::config::AuthClients;
use tidemark_tests::TestServer;

/// The TLS and login options reach a server that requires all of them. If one option is missing,
/// the error names that option.
#[test]
fn import_speaks_tls_and_logs_in() {
    let authority = Authority::new();
    ["server", "client"].iter().for_each(|name| authority.sign(name));
    let settings = authority.settings("server", AuthClients::Yes);
    let port = settings.port;
    let server = TestServer::with(|config| {
        config.tls = settings;
        config.security.password = "hidden".to_owned();
        config.security.users = vec!["loader on >secret ~* +@all".to_owned()];
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.csv");
    let rows: String = (1..=20_000).map(|id| format!("{id},{}\n", id % 7)).collect();
    std::fs::write(&file, format!("id,like\n{rows}")).unwrap();
    let path = |name: &str| Some(authority.path(name).to_str().unwrap().to_owned());
    let good = ConnectArgs {
        port,
        user: Some("loader".to_owned()),
        pass: Some("secret".to_owned()),
        tls: true,
        cacert: path("ca.pem"),
        cert: path("client.pem"),
        key: path("client.key"),
        ..ConnectArgs::default()
    };
    let import = |connect: ConnectArgs| {
        let files = vec![file.clone()];
        run(&ImportArgs { files, connect, ..ImportArgs::default() })
    };
    let summary = import(good.clone()).unwrap();
    assert_eq!((summary.rows, summary.bad), (20_000, 0));
    let mut raw = server.raw();
    raw.request(&["AUTH", "hidden"]).expect("+OK\r\n");
    raw.request(&["HGET", "post:20000", "like"]).expect("$1\r\n1\r\n");
    let stranger = Authority::new();
    let other_ca = Some(stranger.path("ca.pem").to_str().unwrap().to_owned());
    let cases = [
        (ConnectArgs { pass: Some("no".to_owned()), ..good.clone() }, "WRONGPASS"),
        (ConnectArgs { user: None, pass: None, ..good.clone() }, "Give --user and --pass"),
        (ConnectArgs { cacert: other_ca, ..good.clone() }, "invalid peer certificate"),
        (ConnectArgs { cacert: path("gone.pem"), ..good.clone() }, "--cacert: cannot read"),
        (ConnectArgs { cert: path("gone.pem"), ..good.clone() }, "--cert: cannot read"),
        (ConnectArgs { key: path("server.key"), ..good.clone() }, "does not match the"),
        (
            ConnectArgs { sni: Some("elsewhere".to_owned()), ..good.clone() },
            "invalid peer certificate",
        ),
        (ConnectArgs { cert: None, key: None, ..good.clone() }, "cannot import into"),
    ];
    for (connect, words) in cases {
        let error = import(connect).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}
