//! `tidemark upgrade`: makes a replica with the new version the master, so that the old master can
//! be upgraded next. The switch loses no acknowledged write, and Sentinels learn of the new master
//! (`FAILOVER`).

use clap::Args;
use client::{ConnectArgs, Link, Reply, info_field, within};
use std::io;
use std::time::{Duration, Instant};

/// Promotes an upgraded replica to master without losing a write.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Upgrade the replica first: stop it, replace the program, start it. Then run
this command with the address of the master. Afterwards upgrade the old master
in the same way. The command makes a snapshot, waits until the replica has
caught up, switches the roles and checks both nodes. An error before the switch
changes nothing.

Examples:
  tidemark upgrade -p 7001                        makes its replica the master
  tidemark upgrade -p 7001 --to 127.0.0.1:7002    chooses one of several")]
pub(super) struct UpgradeArgs {
    #[command(flatten)]
    master: ConnectArgs,
    /// Replica that becomes the master. Default: the replica with the smallest lag.
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,
    /// Timeout of each step in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum lag of the new master before the roles are switched. With a larger lag, writes would
/// wait too long for the replica.
const MAX_LAG_BYTES: u64 = 1 << 20;

pub(super) fn run(args: &UpgradeArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(upgrade(args))
}

struct Info(String);

impl Info {
    async fn of(link: &mut Link) -> io::Result<Info> {
        match link.ask(&[b"INFO", b"replication"]).await? {
            Reply::BulkString(text) => Ok(Info(String::from_utf8_lossy(&text).into_owned())),
            other => Err(io::Error::other(format!("unexpected reply: {other:?}"))),
        }
    }

    fn get(&self, field: &str) -> &str {
        info_field(&self.0, field).unwrap_or_default()
    }

    fn is_master(&self) -> bool {
        self.get("role") == "master"
    }

    /// Returns host, port and lag in bytes of each connected replica.
    fn replicas(&self) -> Vec<(String, String, u64)> {
        let lines = self.0.lines().filter(|line| line.starts_with("slave"));
        let fed = lines.filter_map(|line| line.split_once(":ip=")).filter_map(|(_, rest)| {
            let rest = format!("ip={rest}");
            let of = |name: &str| {
                let part = rest.split(',').find_map(|part| part.strip_prefix(name));
                part.map(str::to_owned)
            };
            let lag = of("lag_bytes=")?.parse().ok()?;
            (of("state=")? == "online").then_some((of("ip=")?, of("port=")?, lag))
        });
        fed.collect()
    }
}

/// Polls a node until `ready` returns a value.
async fn until<T>(
    link: &mut Link,
    what: &str,
    timeout: Duration,
    mut ready: impl FnMut(&Info) -> Result<Option<T>, String>,
) -> Result<T, String> {
    let began = Instant::now();
    loop {
        let info = within(timeout, Info::of(link)).await.map_err(|e| format!("{what}: {e}"))?;
        if let Some(done) = ready(&info)? {
            return Ok(done);
        }
        if began.elapsed() >= timeout {
            return Err(format!("{what}: timed out after {} s", timeout.as_secs()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn upgrade(args: &UpgradeArgs) -> Result<(), String> {
    let timeout = Duration::from_secs(args.timeout.max(1));
    let tls = args.master.tls().map_err(|e| e.to_string())?;
    let open = async |to: &ConnectArgs| {
        let link = to.open(tls.as_ref()).await;
        link.map_err(|e| format!("{}: {e}", to.address()))
    };
    let mut old = open(&args.master).await?;
    let info = within(timeout, Info::of(&mut old)).await.map_err(|e| e.to_string())?;
    if !info.is_master() {
        return Err(format!("{} is not a master", args.master.address()));
    }
    let began = Instant::now();
    let saved = within(timeout, old.ask(&[b"SAVE"])).await;
    saved.map_err(|e| format!("the snapshot failed, and nothing was changed: {e}"))?;
    crate::terminal::print(&format!("snapshot     {:.2} s\n", began.elapsed().as_secs_f64()))?;

    let is_chosen = |host: &str, port: &str| match &args.to {
        Some(to) => *to == format!("{host}:{port}"),
        None => true,
    };
    let (host, port, lag) = until(&mut old, "a replica that has caught up", timeout, |info| {
        let mut near = info.replicas();
        near.retain(|(host, port, lag)| is_chosen(host, port) && *lag <= MAX_LAG_BYTES);
        near.sort_by_key(|(.., lag)| *lag);
        Ok(near.into_iter().next())
    })
    .await?;
    crate::terminal::print(&format!("replica      {host}:{port}, {lag} bytes behind\n"))?;
    let number = port.parse().map_err(|_| format!("'{port}' is not a valid port"))?;
    let mut new =
        open(&ConnectArgs { host: host.clone(), port: number, ..args.master.clone() }).await?;

    let began = Instant::now();
    let ms = timeout.as_millis().to_string();
    let order = ["FAILOVER", "TO", &host, &port, "TIMEOUT", &ms].map(str::as_bytes);
    // After an earlier switch, a few seconds pass until all Sentinels have published a hello
    // message.
    while let Err(error) = within(timeout, old.ask(&order)).await {
        let error = error.to_string();
        if !error.contains("needs two Sentinels") || began.elapsed() >= timeout {
            return Err(format!("FAILOVER failed, and nothing was changed: {error}"));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    until(&mut old, "the failover", timeout * 2, |info| {
        let is_over = info.get("master_failover_state") == "no-failover";
        match info.is_master() {
            true if is_over => Err("the failover was aborted".to_owned()),
            is_master => Ok((!is_master && is_over).then_some(())),
        }
    })
    .await?;
    until(&mut new, "the promotion", timeout, |info| Ok(info.is_master().then_some(()))).await?;
    crate::terminal::print(&format!(
        "roles        switched in {:.2} s\n",
        began.elapsed().as_secs_f64()
    ))?;

    until(&mut old, "the old master as a replica", timeout, |info| {
        Ok((info.get("master_link_status") == "up").then_some(()))
    })
    .await?;
    let sentinels = until(&mut new, "the catch-up of the old master", timeout, |info| {
        if info.get("repl_fenced") == "1" {
            return Err(format!("{host}:{port} is fenced and refuses writes"));
        }
        let is_followed = info.replicas().iter().any(|(.., lag)| *lag <= MAX_LAG_BYTES);
        Ok(is_followed.then(|| info.get("repl_sentinels").to_owned()))
    })
    .await?;
    let heard = if sentinels.is_empty() { "0".to_owned() } else { sentinels };
    crate::terminal::print(&format!(
        "old master   {} follows {host}:{port}: upgrade it next\nsentinels    {heard} notified\n",
        args.master.address()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_from_info() {
        let text = "role:master\r\nslave0:ip=::1,port=7,state=online,offset=9,lag=0,lag_bytes=3,\
                    synced_offset=9\r\nslave1:ip=a,port=8,state=send_bulk,lag_bytes=0\r\n\
                    slave_priority:100\r\n";
        let info = Info(text.to_owned());
        assert_eq!(info.replicas(), [("::1".to_owned(), "7".to_owned(), 3)]);
        assert!(
            info.is_master() && info.get("slave_priority") == "100" && info.get("x").is_empty()
        );
    }
}
