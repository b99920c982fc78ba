//! `podwire cni lint`: mistakes in network configs that no plugin can see.

use std::path::Path;

use clap::Args;
use podwire_cni_runtime::{Loaded, Network, Problem};
use serde_json::json;

use super::runtime_flags::RuntimeFlags;
use super::warnings::{problem_json, problem_lines, warning_json, warning_lines};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni lint                        every file of the config directory
  podwire cni lint pods
  podwire cni lint ./10-pods.conflist --json

Plugins skip keys that they do not know, so a misspelt key has no effect. The command knows the keys
of Podwire's plugins. It does not check keys that begin with _ or contain /, nor the contents of
args. It also finds misspelt plugin types, and networks whose addresses overlap. The exit status is
1 if there is a warning or an invalid file.";

#[derive(Debug, Args)]
pub(crate) struct Lint {
    /// Network, or path of a config file [default: the whole config directory].
    #[arg(value_name = "FILE|NETWORK")]
    networks: Vec<String>,
    #[command(flatten)]
    flags: RuntimeFlags,
}

impl Lint {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let Loaded { networks, problems } = self.load()?;
        let (runtime, paint) = (self.flags.runtime(), Paint::stdout());
        let all = self.flags.configs().load().networks;
        let found: Vec<_> = networks.iter().flat_map(|network| runtime.lint(network, &all)).collect();
        let mut text = problem_lines(&problems, paint) + &warning_lines(&found, paint);
        let success = problems.is_empty() && found.is_empty();
        if success {
            text = format!("no warnings: {} checked\n", counted(networks.len()));
        }
        let json = json!({
            "files": networks.iter().map(|network| &network.path).collect::<Vec<_>>(),
            "warnings": found.iter().map(warning_json).collect::<Vec<_>>(),
            "problems": problems.iter().map(problem_json).collect::<Vec<_>>(),
        });
        Ok(Output { text, json, success })
    }

    fn load(&self) -> Result<Loaded, Failure> {
        let configs = self.flags.configs();
        if self.networks.is_empty() {
            return Ok(configs.load());
        }
        let mut loaded = Loaded::default();
        for name in &self.networks {
            if !name.contains('/') && !Path::new(name).is_file() {
                let found = configs.find(name).map_err(Failure::context(format!("cannot check {name}")))?;
                loaded.networks.push(found);
                continue;
            }
            match Network::read(name) {
                Ok(network) => loaded.networks.push(network),
                Err(error) => loaded.problems.push(Problem { path: name.into(), error }),
            }
        }
        Ok(loaded)
    }
}

fn counted(networks: usize) -> String {
    match networks {
        1 => "1 network".to_owned(),
        many => format!("{many} networks"),
    }
}
