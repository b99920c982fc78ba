//! CHECK and STATUS.

use podwire_cni_plugin::Command;
use podwire_cni_spec::{code, NetworkList};
use serde_json::Map;

use crate::invoke::Call;
use crate::{Identity, Record, Result, Runtime};

/// Fails for networks whose version has no CHECK.
pub(crate) fn require_check(list: &NetworkList) -> Result<()> {
    if list.version.has_check() {
        return Ok(());
    }
    let text =
        format!("configuration version {:?} does not support the CHECK command", list.version.as_str());
    let hint = "CHECK exists since version 0.4.0";
    Err(podwire_cni_spec::Error::new(code::INCOMPATIBLE_VERSION, text).with_details(hint).into())
}

impl Runtime<'_> {
    /// Runs CHECK of the plugins in order; the first failure ends it.
    ///
    /// A network with `disableCheck` is not checked. For networks before version 0.4.0, which has the first CHECK, it is an error
    /// (code 1).
    pub fn check(&self, list: &NetworkList, identity: &Identity) -> Result<()> {
        require_check(list)?;
        if list.disable_check {
            return Ok(());
        }
        let record = self.cache.find(&list.name, identity)?;
        let identity = Record::complete(record.as_ref(), identity);
        let result = record.map(|record| record.result_in(list.version)).transpose()?.flatten();
        let deadline = self.deadline();
        for step in self.chain(list, Command::Check)? {
            let config = step.config.request(list, result.as_ref(), &identity.capabilities);
            self.call(
                list,
                &step,
                Call { command: Command::Check, identity: Some(&identity), config, deadline },
            )?;
        }
        Ok(())
    }

    /// Runs STATUS of the plugins: could an ADD succeed now? The error has the code of the first plugin that fails: 50 means not
    /// now, 51 that running containers are affected too. Networks before version 1.1.0 have no STATUS and succeed.
    pub fn status(&self, list: &NetworkList) -> Result<()> {
        if !list.version.has_status() {
            return Ok(());
        }
        let deadline = self.deadline();
        for step in self.chain(list, Command::Status)? {
            let config = step.config.request(list, None, &Map::new());
            self.call(list, &step, Call { command: Command::Status, identity: None, config, deadline })?;
        }
        Ok(())
    }
}
