//! Node records as rows. All columns are text, readable with `sqlite3`.

use rusqlite::{params, Connection, Row};
use serde_json::Value;

use crate::go_json;
use crate::node::{Backend, LeaseTerm, Node, PodCidrs, Underlay};
use crate::snapshot::SkippedNode;

/// All nodes, and the invalid rows.
pub(super) fn all(connection: &Connection) -> rusqlite::Result<(Vec<Node>, Vec<SkippedNode>)> {
    let columns =
        "SELECT name, v4, v6, underlay_v4, underlay_v6, backend, data, data_v6 FROM node ORDER BY name";
    let mut statement = connection.prepare(columns)?;
    let (mut nodes, mut skipped) = (Vec::new(), Vec::new());
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        match node(name.clone(), row)? {
            Ok(node) => nodes.push(node),
            Err(why) => skipped.push(SkippedNode { name, reason: why }),
        }
    }
    Ok((nodes, skipped))
}

/// The pod CIDRs of all nodes, also of rows that are otherwise invalid.
pub(super) fn pod_cidrs(connection: &Connection) -> rusqlite::Result<Vec<(String, PodCidrs)>> {
    let mut statement = connection.prepare("SELECT name, v4, v6 FROM node")?;
    let read = |row: &Row<'_>| {
        let (v4, v6): (Option<String>, Option<String>) = (row.get(1)?, row.get(2)?);
        let (v4, v6) = (v4.and_then(|text| text.parse().ok()), v6.and_then(|text| text.parse().ok()));
        Ok((row.get(0)?, PodCidrs { v4, v6 }))
    };
    let rows = statement.query_map([], read)?;
    rows.collect()
}

fn node(name: String, row: &Row<'_>) -> rusqlite::Result<Result<Node, String>> {
    let texts: [Option<String>; 4] = [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
    let (kind, data): (String, [Option<String>; 2]) = (row.get(5)?, [row.get(6)?, row.get(7)?]);
    let read = || -> Result<Node, String> {
        let [v4, v6, underlay_v4, underlay_v6] = &texts;
        Ok(Node {
            name,
            pod_cidrs: PodCidrs { v4: parse("v4", v4)?, v6: parse("v6", v6)? },
            underlay: Underlay {
                v4: parse("underlay_v4", underlay_v4)?,
                v6: parse("underlay_v6", underlay_v6)?,
            },
            backend: Backend { kind, data: parse("data", &data[0])?, data_v6: parse("data_v6", &data[1])? },
            lease_term: LeaseTerm::Permanent,
        })
    };
    Ok(read())
}

fn parse<T: std::str::FromStr>(column: &str, text: &Option<String>) -> Result<Option<T>, String>
where
    T::Err: std::fmt::Display,
{
    let read = |text: &String| text.parse().map_err(|error| format!("column {column}: {error}: {text:?}"));
    text.as_ref().map(read).transpose()
}

/// Writes a node, replacing its row. The table refuses a pod CIDR that another node has.
pub(super) fn put(connection: &Connection, node: &Node) -> rusqlite::Result<()> {
    let json = |value: &Option<Value>| value.as_ref().map(go_json::compact);
    connection.execute("DELETE FROM node WHERE name = ?1", [&node.name])?;
    connection.execute(
        "INSERT INTO node (name, v4, v6, underlay_v4, underlay_v6, backend, data, data_v6) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            node.name,
            node.pod_cidrs.v4.map(|net| net.to_string()),
            node.pod_cidrs.v6.map(|net| net.to_string()),
            node.underlay.v4.map(|ip| ip.to_string()),
            node.underlay.v6.map(|ip| ip.to_string()),
            node.backend.kind,
            json(&node.backend.data),
            json(&node.backend.data_v6),
        ],
    )?;
    Ok(())
}
