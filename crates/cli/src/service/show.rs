//! `podwire service show`.

use clap::Args;
use podwire_services::{Decision, Reach};
use serde_json::json;

use super::node_services::NodeServices;
use super::service_name;
use super::source_flags::SourceFlags;
use super::view::{EndpointView, FrontendView};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

pub(super) const EXAMPLES: &str = "Examples:
  podwire service show shop/web
  podwire service show shop/web --services files:/etc/podwire/services
  podwire lab exec n1 -- podwire service show shop/web

Each address with its port is shown with the endpoints that get its connections on this node, as
the kernel has them. With --services, each endpoint has the reason why it was chosen or left out.";

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The Service: NAMESPACE/NAME, or NAME in the namespace default.
    #[arg(value_name = "SERVICE")]
    service: String,
    #[command(flatten)]
    source: SourceFlags,
}

impl Show {
    pub(super) fn run(&self) -> Result<Output, Failure> {
        let what = format!("cannot show Service {}", self.service);
        let name = service_name::parse(&self.service).map_err(Failure::context(what.clone()))?;
        let node = NodeServices::read(&self.source, &what)?;
        let service = node.get(&name).map_err(Failure::context(what))?;
        let paint = Paint::stdout();
        let mut text = format!("Service {name}, {}\n", service.kind);
        text.extend(service.frontends.iter().map(|frontend| frontend_text(frontend, paint)));
        let problem = |problem: &String| format!("{} {problem}\n", paint.bad("problem:"));
        text.extend(service.problems.iter().map(problem));
        let json = json!({
            "namespace": name.namespace,
            "name": name.name,
            "type": service.kind,
            "frontends": service.frontends.iter().map(FrontendView::json).collect::<Vec<_>>(),
            "problems": service.problems,
        });
        Ok(Output::new(text, json))
    }
}

fn frontend_text(view: &FrontendView, paint: Paint) -> String {
    let port = if view.port_name.is_empty() { String::new() } else { format!(", port {}", view.port_name) };
    let mut lines = vec![format!("\n{}: {}{port}", paint.head(&view.frontend.to_string()), view.kind)];
    if view.backend.reach == Reach::Local {
        lines.push("  for pods and processes of this node:".into());
        lines.extend(endpoint_lines(&view.endpoints, "    "));
        lines.push("  for other clients:".into());
        lines.extend(endpoint_lines(&view.others, "    "));
    } else {
        lines.extend(endpoint_lines(&view.endpoints, "  "));
    }
    let left_out = |one: &Decision| format!("  left out {}: {}", one.addr, one.cluster);
    lines.extend(view.left_out.iter().map(left_out));
    lines.extend(view.refusal().map(|why| format!("  {}", paint.bad(why))));
    lines.push(format!("  source address: {}", view.source()));
    let affinity = view.backend.affinity.map(|time| {
        format!(
            "  session affinity: a client keeps its endpoint for {} s after its last connection",
            time.as_secs()
        )
    });
    lines.extend(affinity);
    lines.extend(view.backend.source_ranges.as_ref().map(|ranges| {
        let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        format!(
            "  only for clients in {}",
            if ranges.is_empty() { "no network".into() } else { ranges.join(", ") }
        )
    }));
    lines.into_iter().map(|line| line + "\n").collect()
}

fn endpoint_lines(endpoints: &[EndpointView], indent: &str) -> Vec<String> {
    if endpoints.is_empty() {
        return vec![format!("{indent}no endpoint")];
    }
    endpoints.iter().map(|one| format!("{indent}endpoint {}: {}", one.addr, one.remark())).collect()
}
