//! Which base chains of nf_tables an established packet passes, and how many rules it evaluates there.
//!
//! For some round trips a temporary table turns on tracing (`meta nftrace set 1`) on every node of the path. The kernel
//! reports each rule that matches and each end of a chain. A packet evaluates all rules of a chain up to the one that
//! matches, so their positions in the chain give the number.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use podwire_kernel::Netns;
use podwire_netlink::{attr, nft, Frame, Socket};
use serde::Serialize;

use crate::traffic::Ends;

/// From linux/netfilter/nfnetlink.h and nf_tables.h.
const NFNLGRP_NFTRACE: u32 = 9;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_TRACE: u16 = 17;
const NFTA_TRACE_TABLE: u16 = 1;
const NFTA_TRACE_CHAIN: u16 = 2;
const NFTA_TRACE_RULE_HANDLE: u16 = 3;
const NFTA_TRACE_TYPE: u16 = 4;
const NFTA_TRACE_VERDICT: u16 = 5;
const NFT_TRACETYPE_POLICY: u32 = 1;
const NFTA_VERDICT_CODE: u16 = 1;
const NFT_CONTINUE: i32 = -1;
const NFT_JUMP: i32 = -3;
const NFT_GOTO: i32 = -4;
const NFT_RETURN: i32 = -5;
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;

const TABLE: &str = "podwire_bench_trace";
const FAMILIES: [&str; 2] = ["inet", "bridge"];
/// Traced round trips. At the end the client may send an acknowledgement alone, so the numbers of one are rounded.
const TRIPS: usize = 10;
/// Round trips before, after which neither end sends acknowledgements alone.
const WARM_UP: usize = 60;

/// The chains that a packet and its answer pass.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Passed(Vec<PassedChain>);

/// A base chain.
#[derive(Debug, Serialize)]
pub struct PassedChain {
    /// The node on the path, from the client's on.
    node: usize,
    /// Family, table and name.
    chain: String,
    /// Where the chain is attached: hook and priority.
    hook: String,
    /// How often a round trip passes it.
    times: usize,
    /// The rules that a round trip evaluates in it and in the chains that it calls.
    rules: usize,
}

impl Passed {
    /// How many base chains a round trip passes.
    pub fn chains(&self) -> usize {
        self.0.iter().map(|chain| chain.times).sum()
    }

    /// How many rules a round trip evaluates.
    pub fn rules(&self) -> usize {
        self.0.iter().map(|chain| chain.rules).sum()
    }

    /// Prints the chains.
    pub fn print(&self) {
        for PassedChain { node, chain, hook, times, rules } in &self.0 {
            println!("      node {node}  {hook:22}{chain:44}{times:>3} ×{rules:>5} rules");
        }
    }
}

/// A chain, as events name it: family, table, name.
type Name = (u8, String, String);

/// An event of a traced packet.
#[derive(Debug)]
struct Event {
    chain: Name,
    kind: u32,
    rule: Option<u64>,
    verdict: i32,
}

impl Event {
    fn decode(frame: Frame<'_>) -> Option<Event> {
        if frame.kind != NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_TRACE {
            return None;
        }
        let (family, body) = (*frame.body.first()?, frame.body.get(HEADER..)?);
        let text = |kind| Some(attr::find(body, kind)?.string());
        let verdict = attr::find(body, NFTA_TRACE_VERDICT);
        let code = verdict.and_then(|verdict| attr::find(verdict.value, NFTA_VERDICT_CODE)?.be32());
        Some(Event {
            chain: (family, text(NFTA_TRACE_TABLE)?, text(NFTA_TRACE_CHAIN)?),
            kind: attr::find(body, NFTA_TRACE_TYPE)?.be32()?,
            rule: attr::find(body, NFTA_TRACE_RULE_HANDLE).and_then(|handle| handle.be64()),
            verdict: code.map_or(NFT_CONTINUE, |code| code as i32),
        })
    }
}

/// A chain of the ruleset.
struct Chain {
    /// The hook and the priority of a base chain.
    hook: String,
    /// The handles of its rules, in their order.
    rules: Vec<u64>,
}

type Ruleset = HashMap<Name, Chain>;

/// Measures a path.
pub fn trace(ends: &Ends) -> Result<Passed> {
    let (mut client, mut server) = ends.connect()?;
    let mut round_trip = || -> std::io::Result<()> {
        let mut byte = [0];
        client.write_all(b"?")?;
        server.read_exact(&mut byte)?;
        server.write_all(&byte)?;
        client.read_exact(&mut byte)
    };
    for _ in 0..WARM_UP {
        round_trip()?;
    }
    let mut traces = ends.nodes.iter().map(Trace::start).collect::<Result<Vec<_>>>()?;
    for _ in 0..TRIPS {
        round_trip()?;
        traces.iter_mut().try_for_each(Trace::read)?;
    }
    let ended = traces.iter().enumerate().map(|(node, trace)| trace.end(node + 1));
    Ok(Passed(ended.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()))
}

/// Tracing on a node.
struct Trace {
    netns: Arc<Netns>,
    socket: Socket,
    events: Vec<Event>,
}

impl Trace {
    fn start(netns: &Arc<Netns>) -> Result<Trace> {
        let mut socket = netns.run(Socket::netfilter)??;
        socket.subscribe(NFNLGRP_NFTRACE)?;
        let chain = |hook| {
            let head = format!("chain {hook} {{ type filter hook {hook} priority -500;");
            format!("{head} meta protocol ip meta oifname != \"lo\" meta nftrace set 1; }}\n")
        };
        let table =
            |family| format!("table {family} {TABLE} {{\n{}{}}}\n", chain("prerouting"), chain("output"));
        nft(netns, &FAMILIES.map(table).concat())?;
        Ok(Trace { netns: netns.clone(), socket, events: Vec::new() })
    }

    fn read(&mut self) -> Result<()> {
        let is_complete = self.socket.drain(|frame| self.events.extend(Event::decode(frame)))?;
        ensure!(is_complete, "the kernel dropped trace events");
        Ok(())
    }

    /// The chains passed on this node.
    fn end(&self, node: usize) -> Result<Vec<PassedChain>> {
        nft(&self.netns, &FAMILIES.map(|family| format!("delete table {family} {TABLE}\n")).concat())?;
        let ruleset = self.netns.run(ruleset)??;
        let average = |all: usize| (all as f64 / TRIPS as f64).round() as usize;
        let chain = |(name, (times, rules)): (Name, (usize, usize))| {
            let hook = ruleset.get(&name).map_or_else(String::new, |chain| chain.hook.clone());
            let chain = format!("{} {} {}", family_name(name.0), name.1, name.2);
            PassedChain { node, chain, hook, times: average(times), rules: average(rules) }
        };
        Ok(count(&self.events, &ruleset)?.into_iter().map(chain).filter(|chain| chain.times > 0).collect())
    }
}

/// How often each base chain was passed, and how many rules were evaluated in it. The events of one packet in one chain
/// follow each other: all packets are handled on the CPU of the sender, one after the other.
fn count(events: &[Event], ruleset: &Ruleset) -> Result<BTreeMap<Name, (usize, usize)>> {
    let mut passed: BTreeMap<Name, (usize, usize)> = BTreeMap::new();
    let mut base: Option<&Name> = None;
    // The rules of each chain that this packet has evaluated.
    let mut done: HashMap<&Name, usize> = HashMap::new();
    for event in events.iter().filter(|event| event.chain.1 != TABLE) {
        let base_chain = *base.get_or_insert(&event.chain);
        let chain = ruleset.get(&event.chain).with_context(|| format!("unknown chain {:?}", event.chain))?;
        let all = &chain.rules;
        let before = done.get(&event.chain).copied().unwrap_or_default();
        let position = event.rule.and_then(|rule| all.iter().position(|other| *other == rule));
        let until = position.map_or(all.len(), |at| at + 1);
        let (times, evaluated) = passed.entry(base_chain.clone()).or_default();
        *evaluated += until.saturating_sub(before);
        if event.kind == NFT_TRACETYPE_POLICY || event.verdict >= 0 {
            *times += 1;
            base = None;
            done.clear();
            continue;
        }
        let is_over = position.is_none() || matches!(event.verdict, NFT_GOTO | NFT_RETURN);
        done.insert(
            &event.chain,
            match event.verdict {
                NFT_CONTINUE | NFT_JUMP if !is_over => until,
                // The end of a base chain is reported twice, with its policy. A called chain may be called again.
                _ if event.chain == *base_chain => all.len(),
                _ => 0,
            },
        );
    }
    Ok(passed)
}

/// The chains of the current namespace.
fn ruleset() -> Result<Ruleset> {
    let mut socket = Socket::netfilter()?;
    let mut all = Ruleset::new();
    for chain in nft::list_chains(&mut socket, None)? {
        let rules = nft::list_rules(&mut socket, &chain.table, &chain.name)?;
        let rules = rules.iter().map(|rule| rule.handle).collect();
        let hook = chain.base.map(|base| format!("{:?} {}", base.hook, base.priority).to_lowercase());
        let name = (chain.table.family.number(), chain.table.name.into_owned(), chain.name);
        all.insert(name, Chain { hook: hook.unwrap_or_default(), rules });
    }
    Ok(all)
}

fn family_name(number: u8) -> &'static str {
    let all = [
        (nft::Family::Inet, "inet"),
        (nft::Family::Ip, "ip"),
        (nft::Family::Ip6, "ip6"),
        (nft::Family::Bridge, "bridge"),
    ];
    all.iter().find(|(family, _)| family.number() == number).map_or("other", |(_, name)| name)
}

fn nft(netns: &Netns, text: &str) -> Result<()> {
    let start = || {
        let mut command = Command::new("nft");
        command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let mut nft = netns.run(start)?.context("start nft")?;
    nft.stdin.take().context("nft has no input")?.write_all(text.as_bytes())?;
    let output = nft.wait_with_output()?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: u32 = 3;
    const RETURN: u32 = 2;
    const ACCEPT: i32 = 1;

    fn name(chain: &str) -> Name {
        (nft::Family::Inet.number(), "t".into(), chain.into())
    }

    fn counted(events: &[(&str, u32, Option<u64>, i32)]) -> (usize, usize) {
        let chain = |rules: &[u64]| Chain { hook: String::new(), rules: rules.to_vec() };
        let ruleset =
            Ruleset::from([(name("base"), chain(&[1, 2, 3, 4])), (name("called"), chain(&[5, 6, 7]))]);
        let event = |(chain, kind, rule, verdict): &(&str, u32, Option<u64>, i32)| Event {
            chain: name(chain),
            kind: *kind,
            rule: *rule,
            verdict: *verdict,
        };
        let events: Vec<Event> = events.iter().map(event).collect();
        let passed = count(&events, &ruleset).unwrap();
        assert_eq!(passed.keys().collect::<Vec<_>>(), [&name("base")]);
        passed[&name("base")]
    }

    #[test]
    fn a_packet_evaluates_the_rules_up_to_its_verdict() {
        assert_eq!(counted(&[("base", RULE, Some(2), ACCEPT)]), (1, 2));
        let without = [("base", RETURN, None, NFT_CONTINUE), ("base", NFT_TRACETYPE_POLICY, None, ACCEPT)];
        assert_eq!(counted(&without), (1, 4));
        assert_eq!(counted(&[without, without].concat()), (2, 8));
        let marks = [("base", RULE, Some(1), NFT_CONTINUE), ("base", RULE, Some(3), ACCEPT)];
        assert_eq!(counted(&marks), (1, 3));
    }

    #[test]
    fn called_chains_count_for_their_base_chain() {
        let jump = ("base", RULE, Some(1), NFT_JUMP);
        assert_eq!(counted(&[jump, ("called", RULE, Some(6), ACCEPT)]), (1, 3));
        let end = [("base", RETURN, None, NFT_CONTINUE), ("base", NFT_TRACETYPE_POLICY, None, ACCEPT)];
        let back = [jump, ("called", RETURN, None, NFT_CONTINUE)];
        assert_eq!(counted(&[back, end].concat()), (1, 7));
        let early = [jump, ("called", RETURN, Some(5), NFT_RETURN)];
        assert_eq!(counted(&[early, end].concat()), (1, 5));
        let again = ("base", RULE, Some(3), NFT_JUMP);
        let twice = [&back[..], &[again], &back[1..], &end[..]].concat();
        assert_eq!(counted(&twice), (1, 10));
    }

    #[test]
    fn a_chain_ends_with_goto() {
        let goto = [("base", RULE, Some(2), NFT_GOTO), ("called", RETURN, None, NFT_CONTINUE)];
        let end = [("base", NFT_TRACETYPE_POLICY, None, ACCEPT)];
        assert_eq!(counted(&[&goto[..], &end[..]].concat()), (1, 5));
    }
}
