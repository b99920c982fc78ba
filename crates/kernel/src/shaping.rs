//! Limits: a token bucket where packets leave a device.

use podwire_netlink::rt::tc::{self, TokenBucket};

use crate::{Host, Link, Result};

/// How long a packet may wait in a bucket's queue, in thousandths of a second.
const LATENCY_MS: u64 = 25;

/// A bucket for `rate` bits a second and bursts of `burst` bits, with room for 25 ms of packets to wait.
pub fn bucket(rate: u64, burst: u64) -> TokenBucket {
    let (rate, burst) = (rate / 8, burst / 8);
    let limit = (rate.saturating_mul(LATENCY_MS) / 1000).saturating_add(burst);
    let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    TokenBucket { rate, burst: short(burst), limit: short(limit) }
}

/// Limits what leaves `link` again, whatever took the place of the limit.
pub fn limit_again(host: &mut Host, link: &Link, bucket: TokenBucket) -> Result<()> {
    limit(host, link, bucket).or_else(|_| {
        unlimit(host, link)?;
        limit(host, link, bucket)
    })
}

/// Limits what leaves `link`.
pub fn limit(host: &mut Host, link: &Link, bucket: TokenBucket) -> Result<()> {
    Ok(host.route.request(bucket.set_on(link.index, &link.name))?)
}

/// Sends what comes in at `from` through `through`, where a bucket waits for it. A redirect that is there
/// already stays.
pub fn redirect(host: &mut Host, from: &Link, through: &Link) -> Result<()> {
    match host.route.request(tc::add_ingress(from.index, &from.name)) {
        // Left by an attempt that was cut off: its filter may be there too, or not.
        Err(error) if error.is_exists() => match tc::redirects(&mut host.route, from.index)?.as_slice() {
            [] => {}
            [target] if *target == through.index => return Ok(()),
            // A redirect into a device that was deleted swallows every packet.
            _ => {
                host.route.request(tc::delete_ingress(from.index, &from.name))?;
                host.route.request(tc::add_ingress(from.index, &from.name))?;
            }
        },
        other => other?,
    }
    let redirected = host.route.request(tc::redirect_ingress(from.index, through.index, &from.name));
    if redirected.is_err() {
        // An ingress queue without a filter is of no use, and nobody would find it by what it does.
        let _ = host.route.request(tc::delete_ingress(from.index, &from.name));
    }
    Ok(redirected?)
}

/// Whether all that comes in at `from` is sent through `through`, and nowhere else.
pub fn is_redirected_only(host: &mut Host, from: &Link, through: &Link) -> Result<bool> {
    let all = tc::redirects(&mut host.route, from.index)?;
    Ok(!all.is_empty() && all.iter().all(|target| *target == through.index))
}

/// Whether what comes in at `from` is sent through `through`.
pub fn is_redirected(host: &mut Host, from: &Link, through: &Link) -> Result<bool> {
    Ok(tc::redirects(&mut host.route, from.index)?.contains(&through.index))
}

/// Lets what comes in at `from` go its normal way again.
pub fn stop_redirect(host: &mut Host, from: &Link) -> Result<()> {
    gone_is_fine(host.route.request(tc::delete_ingress(from.index, &from.name)))
}

/// Takes the limit from what leaves `link`.
pub fn unlimit(host: &mut Host, link: &Link) -> Result<()> {
    gone_is_fine(host.route.request(tc::delete_root(link.index, &link.name)))
}

fn gone_is_fine(result: podwire_netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => Ok(other?),
    }
}

/// The bucket on `link`, if there is one and everything goes through it.
pub fn find(host: &mut Host, link: &Link) -> Result<Option<TokenBucket>> {
    let all = tc::list(&mut host.route, link.index)?;
    Ok(all.into_iter().filter(|one| one.parent == tc::ROOT).find_map(|discipline| discipline.bucket))
}

/// What is not as wanted in a bucket that was read back, in words; empty if all is well.
pub fn differences(wanted: &TokenBucket, found: &TokenBucket) -> Vec<String> {
    let mut all = Vec::new();
    let mut compare = |what: &str, unit: &str, wanted: u64, found: u64, slack: u64| {
        if wanted.abs_diff(found) > slack {
            all.push(format!("{what} is {found} {unit}, should be {wanted}"));
        }
    };
    compare("rate", "bytes a second", wanted.rate, found.rate, 0);
    compare("queue", "bytes", wanted.limit.into(), found.limit.into(), 0);
    // The kernel keeps the burst as a time. Tools round that differently, by a millionth of a second or two.
    let slack = wanted.rate / 250_000 + u64::from(wanted.burst) / 1_000_000 + 2;
    // With another rate the same burst is another time: it says nothing of its own.
    if wanted.rate == found.rate {
        compare("burst", "bytes", wanted.as_told().burst.into(), found.burst.into(), slack);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_room_for_25_ms() {
        let bucket = bucket(8_000_000, 800_000);
        assert_eq!(bucket, TokenBucket { rate: 1_000_000, burst: 100_000, limit: 125_000 });
        let huge = super::bucket(u64::MAX, u64::from(u32::MAX) * 8);
        assert_eq!((huge.burst, huge.limit), (u32::MAX, u32::MAX));
    }

    #[test]
    fn differences_are_named_and_rounding_is_none() {
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
