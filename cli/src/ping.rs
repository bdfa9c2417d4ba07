//! `tidemark ping`: health check of a server.

use clap::Args;
use client::{ConnectArgs, Reply};
use std::time::Duration;

/// Asks a server whether it is up. The exit status is 0 if it answers PONG.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  tidemark ping                               the server on 127.0.0.1:6399
  tidemark ping --wait 60                     waits until it has loaded its data
  REDISCLI_AUTH=secret tidemark ping --host db1")]
pub(super) struct PingArgs {
    #[command(flatten)]
    to: ConnectArgs,
    /// Seconds to retry until the server answers PONG, for example while it loads its data.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

/// Timeout of one attempt. `RETRY_INTERVAL`: time between two attempts.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn run(args: &PingArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let until = tokio::time::Instant::now() + Duration::from_secs(args.wait);
        loop {
            let attempt = tokio::time::timeout(ATTEMPT_TIMEOUT, ping(&args.to)).await;
            match attempt.unwrap_or_else(|_| Err("no answer within 2 seconds".to_owned())) {
                Ok(()) => return crate::terminal::print("PONG\n"),
                Err(_) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(RETRY_INTERVAL).await
                }
                Err(error) => return Err(format!("{}: {error}", args.to.address())),
            }
        }
    })
}

async fn ping(to: &ConnectArgs) -> Result<(), String> {
    let tls = to.tls().map_err(|e| e.to_string())?;
    let mut link = to.open(tls.as_ref()).await.map_err(|e| e.to_string())?;
    match link.call(&[b"PING"]).await.map_err(|e| e.to_string())? {
        Reply::SimpleString(text) if text == b"PONG" => Ok(()),
        Reply::Error(error) => Err(error),
        other => Err(format!("unexpected reply: {other:?}")),
    }
}
