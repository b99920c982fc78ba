//! What all clients of etcd share: lists in pages, and messages of bounded size.
//!
//! A client that can write to etcd decides how large its values are, up to 1.5 MB each. A list in one response would
//! exceed any limit of a message, or need the memory for all of it. So a list has pages, all of one revision, and a
//! page that is too large is requested again with fewer keys.

#![forbid(unsafe_code)]

use std::future::Future;
use std::time::Duration;

use etcd_client::{Error, GetOptions, KeyValue, KvClient};

/// The limit of a message from the server. One key and its value fit: a server accepts requests of at most 1.5 MB by
/// default.
pub const MAX_MESSAGE: usize = 16 << 20;

/// The number of keys of the first page. A full block of 64 addresses has 20 KB.
const PAGE: i64 = 512;

/// The divisor of the number of keys after a page that was too large.
const SMALLER: i64 = 8;

/// Which keys a list has.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// What the keys begin with; empty for all keys.
    pub prefix: &'a str,
    /// Without the values.
    pub keys_only: bool,
    /// The revision, if it is not the current one.
    pub revision: Option<i64>,
    /// The time limit of each page.
    pub timeout: Duration,
}

/// All keys of a list, sorted, and its revision. `read` converts each key and value when its page arrives: what it does
/// not keep needs memory for one page only. `client` has the limit [`MAX_MESSAGE`].
pub async fn list<T>(
    client: &mut KvClient,
    list: List<'_>,
    mut read: impl FnMut(&KeyValue) -> T,
) -> Result<(Vec<T>, i64), Error> {
    let end = end_of(list.prefix.as_bytes());
    let mut next = if list.prefix.is_empty() { vec![0] } else { list.prefix.as_bytes().to_vec() };
    let (mut all, mut revision, mut limit) = (Vec::new(), list.revision.unwrap_or(0), PAGE);
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(limit).with_revision(revision);
        let options = if list.keys_only { options.with_keys_only() } else { options };
        let page = match with_timeout(list.timeout, client.get(next.clone(), Some(options))).await {
            Err(error) if limit > 1 && is_too_large(&error) => {
                limit = (limit / SMALLER).max(1);
                continue;
            }
            page => page?,
        };
        if revision == 0 {
            revision = page.header().map_or(0, |header| header.revision());
        }
        let has_more = page.more();
        all.extend(page.kvs().iter().map(&mut read));
        match page.kvs().last() {
            // The smallest key after the last one.
            Some(last) if has_more => next = [last.key(), &[0]].concat(),
            _ => return Ok((all, revision)),
        }
    }
}

/// Limits the time of a request.
pub async fn with_timeout<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, request).await {
        Ok(response) => response,
        Err(_) => Err(Error::Internal(format!("no response within {} s", limit.as_secs()))),
    }
}

/// Whether the client refused a message because of its size. The server has the same code for other errors.
fn is_too_large(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("message length too large"))
}

/// The first key after all keys that begin with `prefix`; for an empty prefix etcd's name for the end of all keys.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(at) => {
            let mut end = prefix[..=at].to_vec();
            end[at] += 1;
            end
        }
        None => vec![0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_its_prefix() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b""), [0]);
        assert_eq!(end_of(b"\xff"), [0]);
    }
}
