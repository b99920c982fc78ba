//! Traffic shaping: a token bucket filter on a device, or a limit for some destinations only.

use podwire_netlink::rt::tc::htb::{self, Htb};
use podwire_netlink::rt::tc::{self, TokenBucket};
use podwire_netlink::Batch;

use crate::error::Result;
use crate::fast_path;
use crate::host::Host;
use podwire_netlink::rt::link::Link;

/// The longest time that a packet waits in the queue.
const LATENCY_MS: u64 = 25;

/// A bucket for `rate` bits per second and bursts of `burst` bits, with a queue for 25 ms of packets.
pub fn bucket(rate: u64, burst: u64) -> TokenBucket {
    let (rate, burst) = (rate / 8, burst / 8);
    let limit = (rate.saturating_mul(LATENCY_MS) / 1000).saturating_add(burst);
    let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    TokenBucket { rate, burst: short(burst), limit: short(limit) }
}

/// Limits outgoing traffic of `link`, also if another qdisc is in place.
pub fn limit_again(host: &mut Host, link: &Link, bucket: TokenBucket) -> Result<()> {
    limit(host, link, bucket).or_else(|_| {
        unlimit(host, link)?;
        limit(host, link, bucket)
    })
}

/// Limits outgoing traffic of `link`.
pub fn limit(host: &mut Host, link: &Link, bucket: TokenBucket) -> Result<()> {
    bypass_fast_path(host, link)?;
    Ok(host.route.request(bucket.set_on(link.index, &link.name))?)
}

/// Limits outgoing traffic of `link` to some destinations, whatever limited it before.
pub fn limit_some(host: &mut Host, link: &Link, limit: &Htb) -> Result<()> {
    bypass_fast_path(host, link)?;
    unlimit(host, link)?;
    let mut batch = Batch::new();
    limit.create_on(link.index, &link.name).into_iter().for_each(|message| batch.push(message));
    Ok(host.route.batch(batch)?)
}

/// The limit on `link` that depends on the destination.
pub fn find_some(host: &mut Host, link: &Link) -> Result<Option<Htb>> {
    Ok(htb::find(&mut host.route, link.index)?)
}

/// The differences between a desired limit for some destinations and an existing one, as texts.
pub fn differences_of_some(wanted: &Htb, found: &Htb) -> Vec<String> {
    let mut all = Vec::new();
    if wanted.rate != found.rate {
        all.push(format!("rate is {} bytes a second, should be {}", found.rate, wanted.rate));
    } else if wanted.burst_ticks != found.burst_ticks {
        all.push(format!("burst is {} ticks, should be {}", found.burst_ticks, wanted.burst_ticks));
    }
    if wanted.is_limited_by_default != found.is_limited_by_default {
        all.push("what is in no subnet has the wrong class".to_owned());
    }
    let list = |of: &Htb| {
        of.subnets.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>().join(" ")
    };
    if wanted.subnets != found.subnets {
        all.push(format!("subnets are [{}], should be [{}]", list(found), list(wanted)));
    }
    all
}

/// Redirects incoming traffic of `from` through `through`, which has the bucket. An existing redirect stays.
pub fn redirect(host: &mut Host, from: &Link, through: &Link) -> Result<()> {
    // The programs would skip the limit, and their qdisc excludes the one for the redirect. Without it the agent cannot
    // add them again.
    fast_path::remove_with_qdisc(&mut host.route, from.index, &from.name)?;
    match host.route.request(tc::add_ingress(from.index, &from.name)) {
        // Left by an interrupted attempt, with or without its filter.
        Err(error) if error.is_exists() => match tc::redirects(&mut host.route, from.index)?.as_slice() {
            [] => {}
            [target] if *target == through.index => return Ok(()),
            // A redirect to a deleted device drops every packet.
            _ => {
                host.route.request(tc::delete_ingress(from.index, &from.name))?;
                host.route.request(tc::add_ingress(from.index, &from.name))?;
            }
        },
        other => other?,
    }
    let redirected = host.route.request(tc::redirect_ingress(from.index, through.index, &from.name));
    if redirected.is_err() {
        // An ingress qdisc without a filter has no effect: remove it.
        let _ = host.route.request(tc::delete_ingress(from.index, &from.name));
    }
    Ok(redirected?)
}

/// Whether incoming traffic of `from` is redirected only through `through`.
pub fn is_redirected_only(host: &mut Host, from: &Link, through: &Link) -> Result<bool> {
    let all = tc::redirects(&mut host.route, from.index)?;
    Ok(!all.is_empty() && all.iter().all(|target| *target == through.index))
}

/// Whether incoming traffic of `from` is redirected through `through`.
pub fn is_redirected(host: &mut Host, from: &Link, through: &Link) -> Result<bool> {
    Ok(tc::redirects(&mut host.route, from.index)?.contains(&through.index))
}

/// Removes the redirect of incoming traffic of `from`.
pub fn stop_redirect(host: &mut Host, from: &Link) -> Result<()> {
    ignore_gone(host.route.request(tc::delete_ingress(from.index, &from.name)))
}

/// Removes the limit of outgoing traffic of `link`.
pub fn unlimit(host: &mut Host, link: &Link) -> Result<()> {
    ignore_gone(host.route.request(tc::delete_root(link.index, &link.name)))
}

/// The programs of the fast path would skip the limit. An agent that adds them again just now removes them within a second.
fn bypass_fast_path(host: &mut Host, link: &Link) -> Result<()> {
    fast_path::remove_programs(&mut host.route, link.index, &link.name).map(drop)
}

fn ignore_gone(result: podwire_netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}

/// The bucket on `link`, if it is the root qdisc.
pub fn find(host: &mut Host, link: &Link) -> Result<Option<TokenBucket>> {
    let all = tc::list(&mut host.route, link.index)?;
    Ok(all.into_iter().filter(|one| one.parent == tc::ROOT).find_map(|qdisc| qdisc.bucket))
}

/// The differences between a desired and an existing bucket, as texts.
pub fn differences(wanted: &TokenBucket, found: &TokenBucket) -> Vec<String> {
    let mut all = Vec::new();
    let mut compare = |what: &str, unit: &str, wanted: u64, found: u64, slack: u64| {
        if wanted.abs_diff(found) > slack {
            all.push(format!("{what} is {found} {unit}, should be {wanted}"));
        }
    };
    compare("rate", "bytes a second", wanted.rate, found.rate, 0);
    compare("queue", "bytes", wanted.limit.into(), found.limit.into(), 0);
    // The kernel stores the burst as a time, which tools round differently, by one or two microseconds.
    let slack = wanted.rate / 250_000 + u64::from(wanted.burst) / 1_000_000 + 2;
    // With another rate the burst is another time, so only equal rates are comparable.
    if wanted.rate == found.rate {
        compare("burst", "bytes", wanted.as_reported().burst.into(), found.burst.into(), slack);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_holds_25_ms() {
        let bucket = bucket(8_000_000, 800_000);
        assert_eq!(bucket, TokenBucket { rate: 1_000_000, burst: 100_000, limit: 125_000 });
        let huge = super::bucket(u64::MAX, u64::from(u32::MAX) * 8);
        assert_eq!((huge.burst, huge.limit), (u32::MAX, u32::MAX));
    }

    #[test]
    fn differences_are_listed_and_rounding_is_ignored() {
        let wanted = bucket(8_000_000, 800_000);
        assert!(differences(&wanted, &TokenBucket { burst: 99_999, ..wanted }).is_empty());
        let found = TokenBucket { burst: 50_000, limit: 75_000, ..wanted };
        assert_eq!(
            differences(&wanted, &found),
            ["queue is 75000 bytes, should be 125000", "burst is 50000 bytes, should be 100000"]
        );
        let found = TokenBucket { rate: 2_000_000, ..wanted };
        assert_eq!(differences(&wanted, &found), ["rate is 2000000 bytes a second, should be 1000000"]);
    }
}
